"""Encrypted PDFs on the command line."""

import shutil
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.documents import files_with
from tests.support.samples import ENCRYPTED_FOLDER, PASSWORD


@pytest.fixture
def ledger(cli: Cli) -> Path:
    return Path(shutil.copy(ENCRYPTED_FOLDER / "aes-256.pdf", cli.cwd / "ledger.pdf"))


def test_an_encrypted_pdf_is_converted_and_its_password_is_kept_nowhere(cli: Cli, ledger: Path) -> None:
    refused = cli.run("convert", ledger)
    assert (refused.code, "--password" in refused.err) == (1, True), refused.err
    refused = cli.run("convert", ledger, "--password-file", "-", stdin="wrong\n")
    assert (refused.code, "The password does not open ledger.pdf" in refused.err) == (1, True), refused.err
    assert not (cli.cwd / "ledger.md").exists()
    (cli.cwd / "secret.txt").write_text(f"{PASSWORD}\n")
    converted = cli.run("convert", ledger, "--password-file", "secret.txt")
    assert converted.code == 0, converted.err
    assert "harbour master" in (cli.cwd / "ledger.md").read_text()
    assert "Page two" in (cli.cwd / "ledger.md").read_text()
    assert files_with(cli.cwd, PASSWORD[-8:]) == [str(cli.cwd / "secret.txt")]
    assert not files_with(Path(cli.env["PENSTOCK_DATA_DIR"]), PASSWORD[-8:])


def test_a_terminal_asks_for_the_password_without_showing_it(cli: Cli, ledger: Path) -> None:
    code, shown = cli.terminal("convert", ledger, answers={"Password of ledger.pdf": PASSWORD})
    assert code == 0, shown
    assert PASSWORD[-8:] not in shown
    assert "harbour master" in (cli.cwd / "ledger.md").read_text()


def test_a_password_is_never_an_argument(cli: Cli, ledger: Path) -> None:
    assert cli.run("convert", ledger, f"--password={PASSWORD}").code == 2
    without_terminal = cli.run("convert", ledger, "--password")
    assert (without_terminal.code, "--password-file" in without_terminal.err) == (2, True)
    assert cli.run("convert", "-", "--password-file", "-", stdin="x").code == 2
    assert (
        "cannot be read from /nope: No such file or directory"
        in cli.run("convert", ledger, "--password-file", "/nope").err
    )
