"""The types of the Python interface: a type checker reads the snippets of the docs, against the wheel."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.installed import Installed

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "docs/how-to/python.md",
    "docs/how-to/webhooks.md",
    "docs/how-to/screenshots.md",
    "docs/how-to/knowledge.md",
)
WRONG = """
from tasks import calls, knowledge, music
from tasks.documents import submit, watch

submit("report.pdf", page_rang="1")
submit("report.pdf", fresh="yes")
watch(7)
music.start(limit="all")
knowledge.create_base("manuals", chunk_tokens="many")
knowledge.search(None, "words", around=None)
calls.stats(provder="openai")
submit("report.pdf").wait().pages + ""
"""
"""Each line after the first three has one mistake."""


def snippets() -> dict[str, str]:
    """Return the docs' Python blocks that use Penstock, by file name."""
    snippets_by_page = {}
    for page in PAGES:
        blocks = re.findall(
            r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        )
        own_blocks = [block for block in blocks if re.search(r"^from (tasks|pipeline)\b", block, re.MULTILINE)]
        snippets_by_page |= {f"{Path(page).stem.lower()}_{number}.py": block for number, block in enumerate(own_blocks)}
    return snippets_by_page


@pytest.mark.rotating
@pytest.mark.slow
def test_snippets_of_the_docs_pass_a_strict_type_checker_and_mistakes_do_not(wheel: Installed, tmp_path: Path) -> None:
    snippets_by_page = snippets()
    assert {"readme_0.py", "python_0.py", "webhooks_0.py"} <= snippets_by_page.keys()
    for name, text in {**snippets_by_page, "wrong.py": WRONG}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--python-executable",
            wheel.python,
            "--config-file",
            "",
            "--cache-dir",
            ROOT / ".mypy_cache" / "docs",
            "--no-error-summary",
            "--hide-error-context",
            "--no-color-output",
            *snippets_by_page,
            "wrong.py",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    messages = checked.stdout.splitlines()
    assert not [line for line in messages if not line.startswith("wrong.py:")], checked.stdout + checked.stderr
    lines = [int(line.split(":")[1]) for line in messages if ": error:" in line]
    assert sorted(set(lines)) == list(range(5, 5 + WRONG.count("\n") - 4)), checked.stdout
