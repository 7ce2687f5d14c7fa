"""`penstock kb` on the embedded stack: from files to a search, with exit codes for scripts."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Cli, environment, plain
from tests.support.leftovers import short_folder


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Cli]:
    """Runs commands on a data folder of the test's own, without a stack so far."""
    folder = short_folder()
    cli = Cli(folder, tmp_path, environment(folder))
    yield cli
    cli.kill_everything()
    shutil.rmtree(folder, ignore_errors=True)


def test_add_and_wait_with_a_bar_then_search(here: Cli, tmp_path: Path) -> None:
    assert here.run("kb", "create", "manuals").code == 0
    (tmp_path / "pump.md").write_text("# Pumps\n\nThe filter is changed every May.\n")
    (tmp_path / "broken.docx").write_bytes(b"PK\x03\x04 no archive")
    note = ("--note", "Valves close clockwise.")
    code, written = here.terminal("kb", "add", "manuals", "pump.md", "broken.docx", *note, "--wait", columns=160)
    assert code == 3, written
    for line in ("3/3 items, 1 failed", "3 items added.", "2 items of 3 can be searched.", "kb reprocess --failed"):
        assert line in plain(written)
    hits = here.run("kb", "search", "manuals", "filter", "--json").json()["hits"]
    assert hits[0]["heading"] == ["Pumps"]
    assert here.run("kb", "check").code == 0
    item = here.run("kb", "items", "manuals", "--status", "completed", "--type", "file", "--json").json()[0]
    assert here.run("kb", "item", item["id"], "--chunks", "--json").json()["chunks"][0]["text"].endswith("May.")
