"""The detector of endless replies, fed as a stream."""

import sys
from itertools import cycle, islice

import pytest

from pipeline.reading.replies.repetition import Repetition
from tests.support.model_replies import replies


def _characters_until_noticed(unit, piece_length=5, most=60_000):
    detector = Repetition()
    text = "".join(islice(cycle(unit), most))
    for start in range(0, most, piece_length):
        if detector.feed(text[start : start + piece_length]):
            return start + piece_length
    return None


@pytest.mark.parametrize(
    ("unit", "within"),
    [
        ("This is because the model is trained on a large dataset. ", 500),
        ("的", 500),
        (" very", 500),
        ("See also: Appendix A\n", 1000),
        (", {'bbox': [10, 80, 500, 120], 'category': 'Text', 'text': 'Words.'}", 1500),
        ("<td></td>", 1500),
        ("<tr><td>Total</td><td>0.00</td></tr>", 5000),
        (".", 5000),
    ],
)
def test_a_loop_is_noticed_long_before_the_token_limit(unit, within):
    noticed = _characters_until_noticed(unit)
    assert noticed is not None
    assert noticed <= within


@pytest.mark.parametrize("piece_length", [1, 3, 64, 1000])
def test_the_pieces_of_a_stream_do_not_matter(piece_length):
    for reply in replies("good"):
        detector = Repetition()
        assert not any(
            detector.feed(reply.raw[start : start + piece_length]) for start in range(0, len(reply.raw), piece_length)
        )
        assert not detector.close()


def test_a_long_stream_takes_no_more_memory():
    detector = Repetition()
    sizes = []
    for number in range(900):
        detector.feed("".join(f"{chr(97 + (number * place) % 26)}{number * place} " for place in range(20)))
        if number in {400, 899}:
            sizes.append(sum(sys.getsizeof(value) for value in vars(detector).values()))
    assert not detector.endless
    assert sizes[1] < sizes[0] + 10_000
