"""Vertical Chinese and Japanese: columns from right to left, and furigana beside them."""

import pytest

from pipeline.reading.layout import ruby
from pipeline.reading.layout.model import PLAIN, Furniture, Line, Span
from pipeline.reading.layout.page import convert, render
from tests.support.layout import page


def column(text, right, top=100.0, size=12.0):
    """Return a column of characters, as the text layer gives it."""
    bottom = top + size * len(text)
    return Line(text, right - size, top, right, bottom, size, (Span(text, right - size, right, PLAIN),), 90)


TEXTS = ["吾輩は猫である。", "名前はまだ無い。", "どこで生れたか", "とんと見当がつかぬ。"]
COLUMNS = [column(text, 500 - 20.0 * place) for place, text in enumerate(TEXTS)]


def test_columns_are_one_paragraph_from_right_to_left():
    assert render(convert(page(*reversed(COLUMNS)))) == "".join(TEXTS)


def test_the_upper_tier_comes_before_the_lower():
    upper = [column(f"上の段の第{place}行の文", 560 - 18.0 * place, 80) for place in range(12)]
    lower = [column(f"下の段の第{place}行の文", 560 - 18.0 * place, 400) for place in range(12)]
    text = render(convert(page(*lower, *upper)))
    places = [text.index(line.text) for line in [*upper, *lower]]
    assert places == sorted(places)


@pytest.mark.parametrize("angle", [0, 90])
def test_furigana_tear_no_sentence_and_stay_in_the_data(angle):
    if angle:
        texts, kana = COLUMNS, column("わがはい", 507, 100, 6)
    else:
        texts = [Line(text, 50, 100 + 20.0 * n, 150, 112 + 20.0 * n, 12) for n, text in enumerate(TEXTS)]
        kana = Line("わがはい", 50, 94, 74, 100, 6)
    blocks = convert(page(kana, *texts))
    assert render([block for block in blocks if not isinstance(block, Furniture)]) == "".join(TEXTS)
    assert [block.runs[0].text for block in blocks if isinstance(block, Furniture)] == ["わがはい"]


def test_kana_of_their_own_are_not_furigana():
    small = column("ちいさいもじ", 300, 100, 6)
    assert ruby.split([*COLUMNS, small]) == ([*COLUMNS, small], [])
    large = column("ねこ", 513, 100, 12)
    assert ruby.split([*COLUMNS, large]) == ([*COLUMNS, large], [])
