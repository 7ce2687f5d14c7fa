"""Each tutorial's blocks run in one shell, in their order, and print the lines that the page shows."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.cli import Cli, environment
from tests.support.leftovers import short_folder

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_MARK = "=== block {} ==="


def steps(page: str) -> list[tuple[str, list[str]]]:
    """Return each block to run, with the lines that the page shows below it."""
    blocks: list[tuple[str, list[str]]] = []
    for language, text in _BLOCK.findall(page):
        if language == "sh":
            blocks.append((text, []))
        elif language == "text" and blocks:
            blocks[-1][1].extend(line for line in text.splitlines() if line)
    return blocks


def _pattern(line: str) -> re.Pattern[str]:
    """The line, in which `…` stands for any text, any id for another, and a space for several."""
    parts = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in line.split("…")]
    return re.compile(re.sub(r"[0-9a-f]{16}", "[0-9a-f]{16}", ".*".join(parts)))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A data folder with short paths for sockets. Its stack ends with the test."""
    path = short_folder()
    yield path
    Cli(path, tmp_path, environment(path)).kill_everything()
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "first-document",
        pytest.param("first-knowledge-base", marks=pytest.mark.rotating),
        pytest.param("first-fleet", marks=pytest.mark.rotating),
    ],
)
def test_a_tutorial_prints_what_its_page_shows(name: str, tmp_path: Path, folder: Path, redis_url: str) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    own = environment(folder, PENSTOCK_STACK_LINGER_S="20")
    if name == "first-fleet":
        own["PENSTOCK_REDIS_URL"] = redis_url
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    blocks = steps((TUTORIALS / f"{name}.md").read_text(encoding="utf-8"))
    script = "set -e\n" + "".join(f"echo '{_MARK.format(number)}'\n{text}" for number, (text, _) in enumerate(blocks))
    with subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            out, _ = shell.communicate(timeout=500)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)  # including workers of a failed block
    logs = "".join(f"\n{log.name}: {log.read_text()[-2000:]}" for log in tmp_path.glob("*.log"))
    assert shell.returncode == 0, out + logs
    for number, (text, shown) in enumerate(blocks):
        printed = out.partition(_MARK.format(number))[2].partition(_MARK.format(number + 1))[0]
        assert [line for line in shown if not _pattern(line).search(printed)] == [], f"{text}\nprinted\n{printed}"
