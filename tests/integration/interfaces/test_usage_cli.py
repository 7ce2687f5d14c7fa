"""Exit code 2 for wrong usage, wherever the program notices it, and 1 for missing things."""

import sys

import pytest

from pipeline.interfaces.cli.main import main
from pipeline.storage.context import Context


def code(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    exit_code = ended.value.code
    assert isinstance(exit_code, int)
    return exit_code


WRONG: list[tuple[str, ...]] = [
    ("convert", "x.pdf", "--provider", "nope"),
    ("convert", "x.pdf", "--format", "doc"),
    ("kb", "create", " "),
    ("convert", "x.pdf", "--pages", "abc"),
    ("convert", "x.pdf", "--page-range", "5-1"),
    ("kb", "create", "n", "--chunk-tokens", "5"),
    ("search", " "),
    ("documents", "search", " "),
    ("screenshots", "search", " "),
    ("settings", "set", "nope", "1"),
    ("queues", "pause", "nope"),
    ("webhooks", "create", "nowhere"),
    ("keys", "create", "a", "--scope", "all"),
    ("calls", "list", "--since", "never"),
    ("connect", "paperless", "paperless.lan"),
    ("connect", "paperless", "http://127.0.0.1:1025"),
    ("connect", "paperless", "http://127.0.0.1:1025", "--write", "tags"),
    ("connect", "paperless", "http://127.0.0.1:1025", "--done-tag", "Penstock"),
    ("connect", "paperless", "http://127.0.0.1:1025", "--every", "5s", "--once"),
    ("connect", "paperless", "http://127.0.0.1:1025", "--provider", "nope"),
]


def test_wrong_usage_ends_with_two(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {arguments: code(monkeypatch, *arguments) for arguments in WRONG} == dict.fromkeys(WRONG, 2)


@pytest.mark.parametrize(
    "arguments", [("kb", "show", "nope"), ("documents", "show", "dead"), ("music", "show", "nope")]
)
def test_missing_things_end_with_one(
    arguments: tuple[str, ...], context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert code(monkeypatch, *arguments) == 1


def test_an_unsupported_format_is_refused_in_words(
    context: Context, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code(monkeypatch, "convert", "x.pdf", "--format", "md,doc")
    message = " ".join(capsys.readouterr().err.replace("\u2502", " ").split())
    assert "does not write 'doc': choose md, json, html, docling, txt, pdf" in message
