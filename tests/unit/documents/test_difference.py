import time
from itertools import count

import pytest

from pipeline.flows.documents.rules.difference import MAX_CHARACTERS, Difference, Piece, difference


def texts(found: Difference) -> tuple[str, str]:
    old, new = ("".join(piece.text for piece in side) for side in (found.old, found.new))
    return old, new


def test_words_that_differ_are_found_within_their_line() -> None:
    found = difference("one\ntwo three four\nend", "one\ntwo 3 four\nend")
    assert found.old == [Piece("one\ntwo ", False), Piece("three", True), Piece(" four\nend", False)]
    assert found.new == [Piece("one\ntwo ", False), Piece("3", True), Piece(" four\nend", False)]
    assert not found.same
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
def test_any_texts_are_compared_in_time_and_nothing_is_lost(old: str, new: str) -> None:
    began = time.thread_time()
    found = difference(old, new)
    assert time.thread_time() - began < 5
    before, after = texts(found)
    assert old.startswith(before)
    assert new.startswith(after)
    assert found.cut or (before, after) == (old, new)


def test_what_is_too_long_is_cut_and_says_so() -> None:
    found = difference("a" * (MAX_CHARACTERS + 1), "a")
    assert found.cut
    assert len(texts(found)[0]) == MAX_CHARACTERS


def test_who_has_no_more_patience_sees_whole_lines() -> None:
    ticks = count(0, 10)
    found = difference("one two\n", "one 2\n", clock=lambda: float(next(ticks)))
    assert found.old == [Piece("one two\n", True)]
