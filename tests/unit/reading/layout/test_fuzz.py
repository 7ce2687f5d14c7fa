"""Any page converts without an exception, without a lost word, and within a bounded time."""

import json
import time
from collections import Counter
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.reading.layout import furniture
from pipeline.reading.layout.doubt import wants_regions
from pipeline.reading.layout.model import Formula, Line, Region, RegionKind, Rule, Span, Style
from pipeline.reading.layout.page import (
    DocumentProfile,
    PageContent,
    as_dicts,
    cleaned,
    convert,
    document_profile,
    page_facts,
    profile_for,
    render,
)

ANY = st.floats(allow_nan=True, allow_infinity=True)
PLACE = st.floats(min_value=-20, max_value=620) | st.integers(min_value=0, max_value=60).map(lambda n: n * 10.0)
COORDINATE = st.one_of(PLACE, PLACE, PLACE, ANY)
SIZE = st.sampled_from([6.0, 8.0, 10.0, 10.0, 10.0, 12.0, 24.0]) | ANY
STYLE = st.builds(
    Style,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 0, 0, 1, -1]),
    st.just(""),
    st.sampled_from(["", "", "https://example.org/(a)"]),
)
ODD = ["1.", "•", "-", "(a)", "12,50", "a|b", "Table", "中文", "שלום", "fin.", "x-", "....", "*", "—"]
VISIBLE = st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp", "Cf"))
WORD = st.sampled_from(ODD) | st.text(VISIBLE, min_size=1, max_size=9).filter(lambda word: word.split() == [word])


@st.composite
def lines(draw):
    words = draw(st.lists(WORD, min_size=1, max_size=6))
    left, top, size = draw(COORDINATE), draw(COORDINATE), draw(SIZE)
    each = draw(st.sampled_from([5.0, 5.0, 0.0, 40.0]))
    spans, at = [], left
    for word in words:
        spans.append(Span(word, at, at + 5 * len(word), draw(STYLE)))
        at += 5 * len(word) + each
    right = draw(st.sampled_from([at, at, at, left, left - 30]))
    return Line(
        " ".join(words),
        left,
        top,
        right,
        top + size,
        size,
        tuple(spans) if draw(st.booleans()) else (),
        draw(st.sampled_from([0] * 9 + [90, 180, 270, -1])),
    )


@st.composite
def boxes(draw):
    xs, ys = sorted([draw(PLACE), draw(PLACE)]), sorted([draw(PLACE), draw(PLACE)])
    return (xs[0], ys[0], xs[1], ys[1])


@st.composite
def rules(draw):
    left, top, right, bottom = draw(boxes())
    return Rule(left, top, right, top) if draw(st.booleans()) else Rule(left, top, left, bottom)


REGIONS = st.builds(
    Region,
    st.sampled_from(get_args(RegionKind)),
    boxes() | st.tuples(COORDINATE, COORDINATE, COORDINATE, COORDINATE),
    st.floats(min_value=0.3, max_value=1) | ANY,
)

PAGES = st.builds(
    PageContent,
    st.sampled_from([600.0, 600.0, 1.0, 1e5]),
    st.sampled_from([600.0, 600.0, 1.0, 1e5]),
    st.lists(lines(), max_size=25).map(tuple),
    st.lists(rules(), max_size=15).map(tuple),
    st.lists(boxes(), max_size=6).map(tuple),
    st.lists(boxes(), max_size=2).map(tuple),
    st.lists(REGIONS, max_size=20).map(tuple),
    st.lists(boxes(), max_size=8).map(tuple),
    st.lists(boxes(), max_size=2).map(tuple),
)


def letters(text):
    return Counter(filter(str.isalnum, text))


def text_of(blocks):
    return " ".join(f"{block.get('marker', '')} {block['text']}" for block in as_dicts(blocks, 1))


def in_pictures(blocks):
    """Return the letters of formulas, of which the Markdown shows a picture."""
    return sum((letters(block.text) for block in blocks if isinstance(block, Formula)), Counter())


@pytest.mark.slow
@settings(max_examples=75, deadline=None)
@given(PAGES)
def test_no_word_is_lost_with_everything_kept(page):
    blocks = convert(page, keep_furniture=True)
    assert letters(text_of(blocks)) == sum((letters(line.text) for line in page.lines), Counter())
    assert letters(text_of(blocks)) - in_pictures(blocks) <= letters(render(blocks))
    json.dumps(as_dicts(blocks, 1))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(PAGES, min_size=1, max_size=4))
def test_blocks_hold_all_words_and_the_markdown_lacks_only_furniture_and_formulas(pages):
    known = document_profile(page_facts(page) for page in pages)
    for page in map(cleaned, pages):
        assert wants_regions(page, profile_for(page, known)) in {True, False}
        _, away = furniture.split(page, profile_for(page, known))
        expected = sum((letters(line.text) for line in page.lines), Counter())
        blocks = convert(page, known)
        assert letters(text_of(blocks)) == expected
        expected.subtract(sum((letters(line.text) for line in away), Counter()))
        assert letters(render(blocks)) >= expected - in_pictures(blocks)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.lists(PAGES, max_size=4))
def test_a_profile_survives_being_stored(pages):
    profile = document_profile(page_facts(page) for page in pages)
    assert DocumentProfile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(PLACE, PLACE), min_size=1, max_size=25), st.lists(REGIONS, max_size=20))
def test_regions_lose_no_word_of_plain_text(places, regions):
    lines = tuple(cell(f"word{n} of a line", x, y) for n, (x, y) in enumerate(places))
    blocks = convert(PageContent(600, 600, lines, regions=tuple(regions)), keep_furniture=True)
    assert letters(text_of(blocks)) == sum((letters(line.text) for line in lines), Counter())


def within(seconds, page):
    started = time.thread_time()
    known = document_profile([page_facts(page)])
    text = render(convert(page, known))
    assert time.thread_time() - started < seconds
    return text


def cell(text, left, top, size=10.0):
    return Line(text, left, top, left + 5 * len(text), top + size, size)


@pytest.mark.slow
def test_a_hundred_thousand_characters_end():
    prose = tuple(cell("word " * 20, 10 + (n % 4) * 600, 12.0 * (n // 4)) for n in range(1_000))
    assert within(20, PageContent(2500, 3000, prose)).count("word") == 20_000
    scattered = tuple(cell("ab", (n * 37) % 590, (n * 91) % 780) for n in range(50_000))
    assert within(20, PageContent(600, 800, scattered)).count("ab") == 50_000


@pytest.mark.slow
def test_a_thousand_regions_over_twenty_thousand_lines_end():
    words = tuple(cell("ab", (n * 37) % 590, (n * 91) % 780) for n in range(19_000))
    kinds = get_args(RegionKind)
    regions = tuple(
        Region(
            kinds[n % 10], (n % 30 * 20.0, n // 30 * 24.0, n % 30 * 20.0 + n % 7 * 30, n // 30 * 24.0 + 30), n / 1000
        )
        for n in range(1_000)
    )
    page = PageContent(600, 800, words, regions=regions)
    assert wants_regions(cleaned(page), profile_for(page, None)) in {True, False}
    assert within(20, page).count("ab") == 19_000


def test_ten_thousand_rules_end():
    texts = tuple(cell(f"cell{n}", 12 + 50 * (n % 10), 12.0 * (n // 10)) for n in range(600))
    crossing = tuple(Rule(0, n / 7, 600, n / 7) if n % 2 else Rule(n / 17, 0, n / 17, 800) for n in range(10_000))
    assert within(20, PageContent(600, 800, texts, crossing)).count("cell") == 600
    table = []
    for x, y in ((15 * n, 12 * row) for n in range(40) for row in range(60)):
        table += [Rule(x, y, x + 15, y), Rule(x, y, x, y + 12)]
    assert within(20, PageContent(600, 800, texts, tuple(table))).count("cell") == 600


def test_one_stack_of_lines_on_one_spot_ends():
    assert within(20, PageContent(600, 800, tuple(cell("on", 50, 50) for _ in range(5_000)))).count("on") == 5_000
