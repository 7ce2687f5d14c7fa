"""Places of words within recognised lines."""

import pytest
from PIL import ImageFont

from pipeline.flows.screenshots.frames.renditions import place_of
from pipeline.flows.screenshots.rules.headings import Box, SeenLine

LINE = Box(0.1, 0.2, 0.5, 0.23)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("abcd abcd", "abcd"),
        ("Invoice of March", "March"),
        ("mmm iii", "iii"),
        ("whole", "whole"),
        ("Pressure in the second line fell by four bar, most likely because", "fell"),
        ("def flow(area: float, speed: float) -> float:", "speed"),
        ("The pump station was checked at nine and again at noon.", "noon"),
    ],
)
def test_a_words_box_has_its_share_of_the_lines_width(text: str, word: str) -> None:
    font, begin = ImageFont.load_default(20), text.index(word)
    box = place_of(SeenLine(text, LINE), begin, begin + len(word))
    across = (LINE.right - LINE.left) / font.getlength(text)
    left = LINE.left + font.getlength(text[:begin]) * across
    right = LINE.left + font.getlength(text[: begin + len(word)]) * across
    letter = font.getlength("o") * across
    assert (box.left, box.right) == (pytest.approx(left, abs=letter), pytest.approx(right, abs=letter))
    assert (box.top, box.bottom) == (LINE.top, LINE.bottom)


def test_a_chinese_character_is_as_wide_as_two_letters() -> None:
    box = place_of(SeenLine("数据库 pool", LINE), 0, 3)
    assert (box.left, box.right) == (LINE.left, pytest.approx(0.328, abs=0.01))


def test_a_word_in_a_vertical_line_has_the_lines_box() -> None:
    upright = Box(0.1, 0.2, 0.12, 0.6)
    assert place_of(SeenLine("Invoice of March", upright), 0, 7) == upright


def test_combining_marks_have_no_width() -> None:
    assert place_of(SeenLine("\u0301\u0301", LINE), 0, 1) == LINE
