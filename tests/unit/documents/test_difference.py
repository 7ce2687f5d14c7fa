import time
from itertools import count

import pytest

from pipeline.flows.documents.rules.difference import MAX_CHARACTERS, Difference, Piece, difference


def texts(compared: Difference) -> tuple[str, str]:
    old, new = ("".join(piece.text for piece in side) for side in (compared.old, compared.new))
    return old, new


def test_a_comparison_marks_the_different_words_of_a_line() -> None:
    compared = difference("one\ntwo three four\nend", "one\ntwo 3 four\nend")
    assert compared.old == [Piece("one\ntwo ", False), Piece("three", True), Piece(" four\nend", False)]
    assert compared.new == [Piece("one\ntwo ", False), Piece("3", True), Piece(" four\nend", False)]
    assert not compared.same
    assert difference("same", "same").same
    assert difference("", "new").new == [Piece("new", True)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a b " * 3000, "b a " * 3000),
        ("\n".join(str(n * 7 % 150) for n in range(4000)), "\n".join(str(n * 11 % 150) for n in range(4000))),
        ("x" * 150_000, "y\n" * 150_000),
        ("a\r\nb\fc\u2028d", "a\nb"),
    ],
)
def test_any_texts_are_compared_in_time_and_in_full(old: str, new: str) -> None:
    began = time.thread_time()
    compared = difference(old, new)
    assert time.thread_time() - began < 5
    before, after = texts(compared)
    assert old.startswith(before)
    assert new.startswith(after)
    assert compared.cut or (before, after) == (old, new)


def test_a_text_that_is_too_long_to_compare_is_cut_with_a_note() -> None:
    compared = difference("a" * (MAX_CHARACTERS + 1), "a")
    assert compared.cut
    assert len(texts(compared)[0]) == MAX_CHARACTERS


def test_a_comparison_past_its_time_limit_shows_whole_lines() -> None:
    ticks = count(0, 10)
    compared = difference("one two\n", "one 2\n", clock=lambda: float(next(ticks)))
    assert compared.old == [Piece("one two\n", True)]
