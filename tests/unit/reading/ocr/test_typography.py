"""The size and the weight of recognised type."""

import pytest
from PIL import Image, ImageDraw, ImageFont

from pipeline.reading.layout.model import Line
from pipeline.reading.ocr import typography
from pipeline.reading.ocr.direction import RecognisedText


def test_lines_have_the_size_and_weight_of_their_type_whatever_the_height_of_their_boxes():
    picture = Image.new("L", (900, 900), "white")
    draw, lines, pieces = ImageDraw.Draw(picture), [], []
    for number in range(10):
        size, stroke = (45, 0) if number == 8 else (30, 1) if number == 9 else (30, 0)
        text, middle = "some words on a line of text", 60 + 80 * number
        font = ImageFont.load_default(size)
        draw.text((50, middle), text, font=font, fill=0, anchor="lm", stroke_width=stroke)
        right, high = 54 + font.getlength(text), 0.65 * size + 2 * (number % 3)
        pieces.append(
            RecognisedText(
                text, ((46, middle - high), (right, middle - high), (right, middle + high), (46, middle + high))
            )
        )
        lines.append(Line(text, 46, middle - high, right, middle + high, 1.5 * high))
    typed = typography.typed(lines, pieces, picture)
    body = typed[0].size
    assert [line.size / body for line in typed[:8]] == pytest.approx([1.0] * 8, rel=0.02)
    assert typed[8].size / body == pytest.approx(1.5, rel=0.05)
    assert [line.weight for line in typed[:9]] == pytest.approx([1.0] * 9, abs=0.2)
    assert typed[9].weight > 1.3


@pytest.mark.parametrize(
    ("ink", "box"),
    [
        ((0, 0, 0, 0), (10, 10, 110, 50)),  # a blank
        ((0, 13, 199, 19), (10, 10, 110, 50)),  # above the middle only
        ((0, 0, 199, 59), (10, 10, 110, 50)),  # all black
        ((20, 20, 90, 40), (10, 10, 110, 11)),  # a line of one pixel
        ((20, 20, 90, 40), (10, 10, 10, 10)),  # no place
        ((0, 0, 60, 30), (-90, -20, 60, 30)),  # beyond the edge
    ],
)
def test_lines_without_clear_letters_keep_their_size(ink, box):
    left, top, right, bottom = box
    picture = Image.new("L", (200, 60), "white")
    for x in range(ink[0], ink[2], 2):
        ImageDraw.Draw(picture).line((x, ink[1], x, ink[3]), fill=0)
    line = Line("words", left, top, right, bottom, 22.5)
    piece = RecognisedText("words", ((left, top), (right, top), (right, bottom), (left, bottom)))
    assert typography.typed([line], [piece], picture)[0].size == pytest.approx(22.5)
