"""No other user can read files of a stack and its commands; results elsewhere follow the user's umask."""

import os
import stat
from pathlib import Path

from pipeline.engine.privacy import is_open
from tests.support.cli import Cli, new_pdf


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_an_open_data_folder_and_its_files_become_private(cli: Cli) -> None:
    umask = os.umask(0o022)
    os.umask(umask)
    new_pdf(cli.cwd / "report.pdf")
    cli.data_dir.chmod(0o755)
    assert cli.run("convert", "report.pdf", "-o", "made/here/report.md").code == 0
    assert mode(cli.data_dir) == 0o700
    # The test itself writes this file with the stack's output.
    written = [path for path in cli.data_dir.rglob("*") if not path.name.startswith("output-")]
    assert {"penstock.db", "installation", "uploads", "output"} <= {path.name for path in written}
    assert [path for path in written if is_open(path)] == []
    result = cli.cwd / "made" / "here" / "report.md"
    assert [mode(path) for path in (result.parent.parent, result.parent)] == [0o777 & ~umask] * 2
    assert [mode(path) for path in result.parent.iterdir()] == [0o666 & ~umask] * 2


def test_doctor_names_files_that_others_could_read_and_paths_it_cannot_protect(alone: Cli) -> None:
    alone.data_dir.chmod(0o755)
    assert "others could read it (mode 755" in alone.run("doctor").out
    assert mode(alone.data_dir) == 0o700
    alone.data_dir.chmod(0o1777)
    assert f"chmod 700 {alone.data_dir}" in alone.run("doctor").out
    assert mode(alone.data_dir) == 0o1777
