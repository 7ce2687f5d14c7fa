"""A command whose streams are closed or full prints one sentence at most, and no traceback."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.cli import RUN_S
from tests.support.installed import ROOT


def run(shell: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PENSTOCK_DATA_DIR": str(tmp_path / "data")}
    command = ["sh", "-c", f'"$0" -P -m penstock_entry {shell}', sys.executable]
    return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=RUN_S, check=False)


def test_without_streams_a_command_works_and_no_file_gets_their_descriptors(tmp_path: Path) -> None:
    done = run("keys create mine <&- >&- 2>&-", tmp_path)
    assert done.returncode == 0
    data = (tmp_path / "data" / "penstock.db").read_bytes()
    assert data.startswith(b"SQLite format 3"), "the command printed nothing into the database file"


def test_a_full_output_is_reported_in_one_sentence(tmp_path: Path) -> None:
    full = run("--version >/dev/full", tmp_path)
    assert (full.returncode, full.stderr.count("\n")) == (1, 1), full.stderr
    assert "standard output cannot be written to: No space left on device" in full.stderr
