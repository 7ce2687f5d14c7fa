"""Rules in the picture of a page."""

import pytest
from PIL import Image, ImageDraw

from pipeline.reading.layout.model import Line, Table, plain
from pipeline.reading.layout.page import PageContent
from pipeline.reading.ocr import orientation, pixel_rules


def text(words, left, top):
    return Line(words, left, top, left + 12 * len(words), top + 24, 18.0)


def table(lean=0.0):
    """Draw a table of two columns and three rows. Return the picture, and its lines as recognition places them."""
    picture = Image.new("RGB", (600, 400), "white")
    pen = ImageDraw.Draw(picture)
    for y in (100, 150, 200, 250):
        pen.line((100, y, 500, y), fill="black", width=2)
    for x in (100, 300, 500):
        pen.line((x, 100, x, 250), fill="black", width=2)
    rows = [["Name", "Born"], ["Ada", "1815"], ["Alan", "1912"]]
    lines = [text(cell, 120 + 200 * n, 113 + 50 * m) for m, row in enumerate(rows) for n, cell in enumerate(row)]
    return picture.rotate(-lean, fillcolor="white"), lines


@pytest.mark.parametrize("lean", [0.0, 1.5, -3.0])
def test_a_leaning_table_in_a_picture_is_read_by_its_rules(lean):
    picture, lines = table(lean)
    rules = pixel_rules.find(picture, lines, lean)
    converted = orientation.blocks(PageContent(600, 400, tuple(lines), tuple(rules)), None)
    [only] = [block for block in converted if isinstance(block, Table)]
    assert [[plain(cell.runs) for cell in row] for row in only.rows] == [
        ["Name", "Born"],
        ["Ada", "1815"],
        ["Alan", "1912"],
    ]


def test_rules_are_where_they_are_drawn():
    picture, lines = table()
    level = [rule for rule in pixel_rules.find(picture, lines, 0.0) if rule.top == rule.bottom]
    assert sorted(round(rule.top, -1) for rule in level) == [100, 150, 200, 250]
    assert all(abs(rule.left - 100) < 4 and abs(rule.right - 500) < 4 for rule in level)


def test_a_broken_rule_is_one():
    picture, lines = table()
    ImageDraw.Draw(picture).line((297, 150, 303, 150), fill="white", width=4)
    level = [rule for rule in pixel_rules.find(picture, lines, 0.0) if abs(rule.top - 150) < 4]
    assert len(level) == 1


def test_a_rule_that_leans_otherwise_than_the_text_is_one():
    picture = Image.new("RGB", (1200, 400), "white")
    ImageDraw.Draw(picture).line((100, 100, 1100, 115), fill="black", width=3)
    [rule] = pixel_rules.find(picture, [text("words", 100, 200)], 0.0)
    assert (rule.left, rule.right, rule.top) == (pytest.approx(100, abs=4), pytest.approx(1100, abs=4), rule.bottom)


def test_letters_and_thick_bars_are_no_rules():
    picture = Image.new("RGB", (600, 400), "white")
    pen = ImageDraw.Draw(picture)
    pen.rectangle((100, 100, 500, 120), fill="black")  # a bar as high as text
    pen.line((110, 212, 190, 212), fill="black", width=3)  # a dash within a line of text
    pen.line((300, 200, 300, 240), fill="black", width=3)  # an upright stroke of a letter
    assert pixel_rules.find(picture, [text("dash dash", 100, 200), text("l", 295, 206)], 0.0) == []


def test_a_picture_without_text_has_no_rules():
    assert pixel_rules.find(table()[0], [], 0.0) == []


def test_only_as_many_rules_as_are_kept_are_compared_with_the_text(monkeypatch):
    compared = []
    without_strokes = pixel_rules._without_strokes
    monkeypatch.setattr(pixel_rules, "_MAX_RULES", 3)
    monkeypatch.setattr(
        pixel_rules, "_without_strokes", lambda rules, lines: compared.extend(rules) or without_strokes(rules, lines)
    )
    picture, lines = table()
    level = [rule for rule in pixel_rules.find(picture, lines, 0.0) if rule.top == rule.bottom]
    assert len(compared) == len(level) == 3  # the longest
