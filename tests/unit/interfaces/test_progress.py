"""What a command says while it waits, where standard error is not a terminal."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.interfaces.cli import progress as shown_progress
from pipeline.interfaces.cli.progress import Bar, Progress


def progress(trouble: str = "", **options: Any) -> Progress:
    stack: Any = SimpleNamespace(ensure=bool, trouble=lambda: trouble)
    return Progress(stack, interrupted="Nothing is lost.", **options)


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    written = capsys.readouterr()
    assert written.out == "", "results alone go to standard output"
    return written.err.splitlines()


def bar(done: int) -> Bar:
    return Bar("songs", done, 3, f"{done}/3 songs")


def test_a_line_is_written_whenever_the_figures_change(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as shown:
        assert shown.follow([0, 0, 1, 1, 3], bar) == 3
    assert said(capsys) == ["songs: 0/3 songs", "songs: 1/3 songs", "songs: 3/3 songs"]


def test_without_a_terminal_lines_say_how_far_it_is_and_what_it_waits_for(
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
    assert said(capsys) == [
        "all [files]: 0/2 files, waits to be split",
        "all [files]: 0/2 files, 1/3 pages, PROCESSING",
    ]


def test_quiet_follows_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("The disk is full.", quiet=True, patience_s=0) as shown:
        shown.follow([0, 3], bar)
        shown.keep(lambda: ["[a] is paused"])
    assert said(capsys) == []


def test_why_work_waits_is_said_once_and_only_when_nothing_moves(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("The disk is full.", patience_s=1000) as patient:
        patient.keep(lambda: ["[a] is paused"])
    assert said(capsys) == []
    with progress("The disk is full.", patience_s=0) as impatient:
        for _ in range(3):
            impatient.keep(lambda: ["[a] is paused", ""])
    assert said(capsys) == ["Note: The disk is full.", "Note: [a] is paused"]


def test_the_stack_is_kept_up_even_if_nothing_is_said() -> None:
    kept: list[bool] = []
    stack: Any = SimpleNamespace(ensure=lambda: kept.append(True), trouble=str)
    with Progress(stack, interrupted="", quiet=True) as shown:
        shown.keep()
    assert kept == [True]


def test_ctrl_c_says_how_to_continue(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), progress():
        raise KeyboardInterrupt
    assert said(capsys) == ["Nothing is lost."]
