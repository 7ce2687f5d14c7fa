import io
import json
import sys
from importlib import import_module
from typing import Any

import pytest
from rich.console import Console
from rich.spinner import Spinner
from rich.text import Text

from pipeline.engine.control_characters import printable
from pipeline.interfaces.cli import output
from pipeline.interfaces.cli.output import Table, escape, marked, one_line, print_json, print_pairs, print_text

COMMANDS: Any = import_module("pipeline.interfaces.cli.main")  # a function of the same name hides the module
HOSTILE = "a\x1b[2J\x9b31m\u202e\x07[/nope][link=https://x.example]y[/link][bold]z[@click=f()]:bug:\\"
SHOWN = r"a\x1b[2J\x9b31m\u202e\x07[/nope][link=https://x.example]y[/link][bold]z[@click=f()]:bug:" + "\\"
TEXTS = [
    HOSTILE,
    "\\",
    "\\\\\\",
    "[",
    "[bold",
    "[/bold]",
    "[red]",
    r"\[ 1 ]",
    r"\[bold]",
    "[bold]\\",
    "a[/]",
    "[[bold]]",
    "\0[bold]",
    "[\0bold]",
]


def on_a_terminal(*printed: Any, **options: Any) -> str:
    """Return the output of our console on a terminal with colours."""
    written = io.StringIO()
    console = output.Printer(file=written, force_terminal=True, color_system="truecolor", width=500, highlight=False)
    for part in printed:
        console.print(part, soft_wrap=True, **options)
    return written.getvalue()


@pytest.mark.parametrize("text", TEXTS)
def test_escaped_text_is_shown_literally_within_any_markup(text: str) -> None:
    for before, after in (("", ""), ("[bold]", "[/bold]"), ("", "[red]x[/red]"), ("a [dim]", "[/dim][bold]b[/bold]")):
        around = [marked(part).plain for part in (before, after)]
        shown = marked(before + escape(text) + after)
        assert shown.plain == around[0] + printable(text) + around[1]
        assert {str(span.style) for span in shown.spans} <= {"bold", "dim", "red"}


def test_a_tag_of_a_stranger_colours_nothing() -> None:
    assert not marked(escape("[red]x[/red]")).spans
    assert not marked(one_line("[red]x[/red]")).spans
    assert [(span.start, span.end, span.style) for span in marked("a[red]b[/red]c").spans] == [(1, 2, "red")]


@pytest.mark.parametrize("forgotten", [HOSTILE, Text(HOSTILE), Spinner("dots", Text(HOSTILE)), f"[dim]{HOSTILE}[/dim]"])
def test_text_that_was_not_escaped_is_harmless(forgotten: object) -> None:
    for options in ({}, {"markup": False}):
        written = on_a_terminal(forgotten, **options)
        assert set(output_codes(written)) <= {"\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[1;2m", "\x1b[2;1m", "\x1b[32m"}
        for char in "\x9b\u202e\x07":
            assert char not in written


def output_codes(written: str) -> list[str]:
    """Return the escape sequences in `written`, up to the letter that ends each."""
    return [
        "\x1b" + part[: 1 + next(i for i, char in enumerate(part) if char.isalpha())]
        for part in written.split("\x1b")[1:]
    ]


def test_a_joiner_between_two_colours_stays() -> None:
    assert on_a_terminal("[bold]می[/bold]\u200cخواهم").endswith("\u200cخواهم\n")


def test_tables_and_pairs_show_strangers_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(output, "out", output.Printer(file=written, width=10_000, highlight=False))
    table = Table("NAME", "STATE")
    table.add(one_line(HOSTILE), "[green]ok[/green]")
    table.add(HOSTILE + "\nforged", "x")
    table.print()
    print_pairs([("name", one_line(HOSTILE)), ("text", escape("two\nlines\x1b"))])
    lines = written.getvalue().splitlines()
    assert lines[1].split()[0] == SHOWN
    assert len(lines) == 6, lines
    assert lines[3] == f"name  {SHOWN}"
    assert lines[5] == r"      lines\x1b"


def test_json_is_valid_and_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": HOSTILE, "path": "caf\udce9"})
    written = capsys.readouterr().out
    assert json.loads(written) == {"name": HOSTILE, "path": "caf\udce9"}
    assert printable(written) == written


def test_a_result_is_written_unchanged_to_a_program_and_printable_to_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_text(HOSTILE)
    assert capsys.readouterr().out == HOSTILE
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    print_text("# Title\n\n\tcode " + HOSTILE)
    assert capsys.readouterr().out == "# Title\n\n\tcode " + SHOWN


def test_the_library_s_own_console_would_do_harm() -> None:
    written = io.StringIO()
    Console(file=written, width=80).print("a\x1b]0;x", markup=False)
    assert "\x1b]0;" in written.getvalue(), "rich escapes control characters now, so our printer is superfluous"


@pytest.mark.parametrize(
    "arguments",
    [
        ["calls", "list", "--status", HOSTILE],
        [HOSTILE],
        [f"--{HOSTILE}"],
        ["calls", "show", HOSTILE, "caf\udce9"],
        ["convert", "a.pdf", "--format", "caf\udce9\u202e"],
    ],
)
def test_wrong_arguments_are_named_without_obeying_them(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        COMMANDS.app(arguments)
    assert ended.value.code == 2
    assert_harmless(capsys.readouterr().err)


def test_a_defect_s_traceback_quotes_without_obeying(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError(HOSTILE + "caf\udce9")

    monkeypatch.setattr(COMMANDS, "app", broken)
    with pytest.raises(SystemExit) as ended:
        COMMANDS.main()
    assert ended.value.code == 1
    traceback_text = capfd.readouterr().err
    assert "RuntimeError: a\\x1b[2J" in traceback_text
    assert_harmless(traceback_text)


def assert_harmless(text: str) -> None:
    assert text == printable(text)
    text.encode()


def test_an_argument_that_is_not_utf_8_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(COMMANDS, "app", lambda **_: "caf\udce9".encode())
    with pytest.raises(SystemExit) as ended:
        COMMANDS.main()
    assert ended.value.code == 1
    assert capfd.readouterr().err == "penstock: an argument is not text in UTF-8: caf\\xe9\n"
