"""The lines of a waiting command where standard error is not a terminal."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.interfaces.cli import progress as shown_progress
from pipeline.interfaces.cli.progress import Bar, Progress


def progress(trouble: str = "", **options: Any) -> Progress:
    stack: Any = SimpleNamespace(ensure=bool, trouble=lambda: trouble)
    return Progress(stack, interrupted="Nothing is lost.", **options)


def messages(capsys: pytest.CaptureFixture[str]) -> list[str]:
    written = capsys.readouterr()
    assert written.out == "", "standard output is for results alone"
    return written.err.splitlines()


def bar(done: int) -> Bar:
    return Bar("songs", done, 3, f"{done}/3 songs")


def test_a_line_is_written_whenever_the_figures_change(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as shown:
        assert shown.follow([0, 0, 1, 1, 3], bar) == 3
    assert messages(capsys) == ["songs: 0/3 songs", "songs: 1/3 songs", "songs: 3/3 songs"]


def test_without_a_terminal_lines_show_progress_and_what_a_document_waits_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown_progress, "LINE_EVERY_S", 0.0)
    with progress(patience_s=1000) as shown:
        shown.keep()
        shown.show("", Bar("all [files]", 0, None, "0/2 files", waits="waits to be split"))
        shown.show("one", Bar("one.pdf", 0, 1, "0/1 page"))
        for _ in range(3):
            shown.keep()
        shown.show("", Bar("all [files]", 1, 3, "0/2 files, 1/3 pages", "PROCESSING"))
        shown.keep()
    assert messages(capsys) == [
        "all [files]: 0/2 files, waits to be split",
        "all [files]: 0/2 files, 1/3 pages, PROCESSING",
    ]


def test_quiet_follows_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("The disk is full.", quiet=True, patience_s=0) as shown:
        shown.follow([0, 3], bar)
        shown.keep(lambda: ["[a] is paused"])
    assert messages(capsys) == []


def test_the_reason_for_a_wait_is_shown_once_and_only_without_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("The disk is full.", patience_s=1000) as patient:
        patient.keep(lambda: ["[a] is paused"])
    assert messages(capsys) == []
    with progress("The disk is full.", patience_s=0) as impatient:
        for _ in range(3):
            impatient.keep(lambda: ["[a] is paused", ""])
    assert messages(capsys) == ["Note: The disk is full.", "Note: [a] is paused"]


def test_a_quiet_command_keeps_the_stack_up() -> None:
    renewals: list[bool] = []
    stack: Any = SimpleNamespace(ensure=lambda: renewals.append(True), trouble=str)
    with Progress(stack, interrupted="", quiet=True) as shown:
        shown.keep()
    assert renewals == [True]


def test_ctrl_c_says_how_to_continue(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), progress():
        raise KeyboardInterrupt
    assert messages(capsys) == ["Nothing is lost."]
