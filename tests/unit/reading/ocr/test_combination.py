"""The combination of two readings of a picture keeps the better one of each part, and loses nothing."""

import pytest
from PIL import Image, ImageDraw

from pipeline.reading.layout.page import Line
from pipeline.reading.ocr import combination, inks
from pipeline.reading.ocr.combination import combined


def _line(text: str, left: float, right: float, top: float = 0, sure: float = 0.99) -> Line:
    return Line(text, left, top, right, top + 20, 15.0, sure=(sure,) * len(text.split()))


def test_a_line_that_was_read_in_pieces_is_replaced_by_the_whole_one() -> None:
    pieces = [_line("the finances of th", 0, 180), _line("ast year", 200, 300), _line("Next line", 0, 100, top=40)]
    whole = [_line("the finances of the past year", 0, 300), _line("Next line", 0, 100, top=40)]

    assert combined(pieces, whole) == [whole[0], pieces[2]]


def test_the_surer_reading_of_a_line_is_kept() -> None:
    sure, unsure = _line("a clear line", 0, 120), _line("a cleer lime", 0, 120, sure=0.6)

    assert combined([sure], [unsure]) == combined([unsure], [sure]) == [sure]
    assert combined([sure], [sure._replace(text="A clear line")]) == [sure]  # not better


def test_lines_of_only_one_reading_are_kept() -> None:
    red, black = _line("RECEIVED", 0, 100), _line("below it", 0, 100, top=100)

    assert combined([red], [black]) == [red, black]
    assert combined([red], []) == combined([], [red]) == [red]


def test_a_stamp_is_taken_out_of_a_picture_and_black_text_stays() -> None:
    picture = Image.new("RGB", (400, 300), "white")
    draw = ImageDraw.Draw(picture)
    draw.rectangle((100, 100, 200, 140), fill=(200, 20, 30))
    draw.rectangle((120, 110, 180, 112), fill=(25, 5, 5))  # black behind red

    assert inks.has_colour(picture)
    black = inks.black_only(picture)
    assert black.getpixel((105, 105)) == (255, 255, 255)
    assert max(black.getpixel((150, 111)) or (255,)) < 40  # type: ignore[arg-type]


def test_black_text_and_photographs_are_not_taken_for_stamped_pages() -> None:
    black = Image.new("RGB", (400, 300), (205, 195, 170))
    ImageDraw.Draw(black).rectangle((50, 50, 300, 60), fill=(30, 25, 20))

    assert not inks.has_colour(black)
    assert not inks.has_colour(Image.new("RGB", (400, 300), (30, 160, 60)))


def test_only_lines_at_one_height_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    is_same = combination._is_same
    monkeypatch.setattr(combination, "_is_same", lambda *pair: compared.append(pair) or is_same(*pair))
    first = [_line(f"line {n}", 0, 100, top=25 * n) for n in range(300)]
    second = [_line(f"Line {n}", 0, 100, top=25 * n + 3, sure=0.5) for n in reversed(range(300))]

    assert combined(first, second) == first
    assert len(compared) == 300
