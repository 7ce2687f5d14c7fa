"""Flower listens on the loopback address alone, unless every user has to log in."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from flower.options import options

from pipeline.engine.errors import UserError
from pipeline.interfaces.cli.dashboard import COLUMNS, flower_arguments


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = options.as_dict()
    yield
    for name, value in before.items():
        setattr(options, name, value)


@pytest.mark.parametrize("arguments", [[], ["--port=5001"], ["--address=::1"], ["--address=localhost"]])
def test_the_dashboard_needs_no_login_on_a_loopback_address(arguments: list[str]) -> None:
    address = arguments[0] if arguments and "address" in arguments[0] else "--address=127.0.0.1"
    assert flower_arguments(arguments) == ["--conf=/dev/null", *arguments, f"--tasks_columns={COLUMNS}", address]


def test_a_socket_has_no_address() -> None:
    assert flower_arguments(["--unix_socket=/run/flower.sock", "--tasks_columns=name"])[1:] == [
        "--unix_socket=/run/flower.sock",
        "--tasks_columns=name",
        "--tasks_columns=name",
    ]


@pytest.mark.parametrize("login", [None, "", "name", "name:", ":password", "name:password,other:"])
@pytest.mark.parametrize("address", ["0.0.0.0", "::", "", "192.0.2.7", "flower.example"])
def test_the_dashboard_refuses_other_addresses_without_a_login(
    address: str, login: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if login is not None:
        monkeypatch.setenv("FLOWER_BASIC_AUTH", login)
    with pytest.raises(UserError, match="without a login: set FLOWER_BASIC_AUTH"):
        flower_arguments([f"--address={address}"])
    monkeypatch.setenv("FLOWER_ADDRESS", address)
    with pytest.raises(UserError, match="without a login"):
        flower_arguments([])
    monkeypatch.setenv("FLOWER_BASIC_AUTH", "name:password")
    assert flower_arguments([])[-1] == f"--address={address}"


def test_the_dashboards_own_file_counts(tmp_path: Path) -> None:
    conf = tmp_path / "flower.py"
    conf.write_text('address = "0.0.0.0"\n')
    with pytest.raises(UserError, match=r"on 0\.0\.0\.0 without a login"):
        flower_arguments([f"--conf={conf}"])
    conf.write_text('address = "0.0.0.0"\nbasic_auth = ["name:password"]\n')
    assert flower_arguments([f"--conf={conf}"])[0::2] == [f"--conf={conf}", "--address=0.0.0.0"]


def test_invalid_options_are_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match="does not understand its options"):
        flower_arguments(["--port=several"])
