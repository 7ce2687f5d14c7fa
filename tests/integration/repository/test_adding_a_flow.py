"""The flow in docs/how-to/adding-a-flow.md, put into a copy of the tree as the page says, and run there."""

import json
import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from pipeline.flows import FLOWS

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/how-to/adding-a-flow.md"
MAX_LINES = 150
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
USE = Path(__file__).with_name("use_checksums.py")
_FILE = re.compile(r"^# (\S+\.py)\n", re.MULTILINE)


def follow(folder: Path) -> None:
    """Do what the page says in `folder`: write its files. In a file that is there, each line replaces its namesake."""
    for block in _BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        _, *parts = _FILE.split(block)
        for name, content in zip(parts[::2], parts[1::2], strict=True):
            path = folder / name
            if path.exists():
                for line in content.strip().split("\n"):
                    begin = re.escape(line.partition(" = ")[0])
                    text, changed = re.subn(rf"^{begin} = .*$", line, path.read_text(), flags=re.MULTILINE)
                    assert changed == 1, f"{name} has no line {line}"
                    path.write_text(text)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)


def test_the_page_is_short_and_names_every_flow() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(text.splitlines()) < MAX_LINES
    assert f"FLOWS = {(*FLOWS, 'checksums')}".replace("'", '"') in text


def test_the_flow_of_the_page_works(tmp_path: Path, redis_url: str, sqlite_url: str) -> None:
    for name in ("pipeline", "tasks"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "celeryconfig.py", tmp_path)
    follow(tmp_path)
    file = tmp_path / "file"
    file.write_bytes(b"content")
    env = {
        **os.environ,
        "PENSTOCK_DATA_DIR": str(tmp_path / "data"),
        "PENSTOCK_REDIS_URL": redis_url,
        "PENSTOCK_DATABASE_URL": sqlite_url,
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
    }
    command = [sys.executable, str(USE), str(file), str(tmp_path / "missing")]
    done = subprocess.run(command, check=False, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    digest = sha256(b"content").hexdigest()
    assert report == {
        "differences": [],
        "holders": ["dead"],
        "figures": {"checksums": {"PENDING": 1, "DONE": 2}},
        "results": [digest, digest],
        "attempts": 2,
        "waits": True,
        "claims": [None, None, None],
        "events": ["checksum.pending", "checksum.running", "checksum.done"],
    }
