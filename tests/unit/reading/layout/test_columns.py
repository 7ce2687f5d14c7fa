"""Columns with different gutters in each part of a page, or with gutters as narrow as a wide space between words."""

from pipeline.reading.layout import gutters
from pipeline.reading.layout.columns import is_unsure, reading_order
from pipeline.reading.layout.model import Region, Rule
from pipeline.reading.layout.page import convert, render, to_markdown
from tests.support.layout import column, line, page, prose


def side(name, count, left, right, top=100.0):
    return column([f"{name}{n} of the text goes on and" for n in range(count)], left, top, right=right)


def mixed(*columns):
    """Return the lines of columns row by row, a possible order in a source."""
    return sorted((item for lines in columns for item in lines), key=lambda item: (item.top, item.left))


def order(text, *names):
    return [text.index(name) for name in names]


def test_three_columns_above_four_are_read_each_for_itself():
    three = [side(name, 9, left, left + 165) for name, left in (("a", 40), ("b", 217), ("c", 394))]
    four = [side(name, 9, x, x + 120, top=260) for name, x in (("d", 40), ("e", 173), ("f", 306), ("g", 439))]
    title = line("Another piece of news with a title across all of its columns", 40, 230, 12)
    text = to_markdown([*mixed(*three), title, *mixed(*four)])
    names = [f"{name}{n} " for name in "abcdefg" for n in (0, 8)]
    texts = order(text, *names[:6], "Another", *names[6:])
    assert texts == sorted(texts)


def test_two_columns_below_a_long_text_across_the_page():
    across = prose("across", 30, 50, top=60, right=550)
    left, right = side("left", 8, 50, 292, top=440), side("right", 8, 308, 550, top=440)
    text = to_markdown([*across, *mixed(left, right)])
    texts = order(text, "across line number 29", "left0", "left7", "right0")
    assert texts == sorted(texts)


def test_a_wide_margin_with_two_notes_does_not_hide_the_gutter():
    left, right = side("left", 20, 180, 360), side("right", 20, 374, 554)
    notes = [line("a note", 40, 124, size=8), line("another", 40, 240, size=8)]
    text = to_markdown([*mixed(left, right), *notes])
    texts = order(text, "left0", "left19", "right0", "right19")
    assert texts == sorted(texts)


def test_a_gutter_of_three_quarters_of_a_text_size_is_one():
    left, right = side("left", 10, 50, 296), side("right", 10, 303.5, 550)
    assert reading_order(mixed(left, right)) == [left, right]


def test_rows_of_a_table_between_lines_of_text_stay_rows():
    above, below = prose("above", 15, 50, 60, right=550), prose("below", 15, 50, 400, right=550)
    cells = mixed(*(column([f"{name} {n}" for n in range(8)], x, 260) for name, x in (("item", 50), ("price", 350))))
    assert reading_order([*above, *cells, *below]) == [[*above, *cells, *below]]


def test_possible_gutters_are_few_and_the_one_of_most_gaps_comes_first():
    columns = [side("left", 30, 50, 290), side("right", 30, 310, 550)]
    tabbed = [line("x", 60 + 70 * n, 500 + 12 * m) for n in range(7) for m in range(6)]
    centres = gutters.places([*mixed(*columns), *tabbed])
    assert 290 < centres[0] < 310
    assert len(centres) <= 8
    assert gutters.places([]) == []


def test_the_layout_model_decides_on_columns_where_lines_are_ambiguous():
    left = column(["Jane Doe", "Institute", "Some town", "a@b.org"], 60)
    right = column(["John Roe", "Company", "Other town", "c@d.com"], 350)
    lines = mixed(left, right)
    text = [Region("text", (55, 95, 150, 150), 0.8), Region("reference", (345, 95, 450, 150), 0.8)]
    assert is_unsure(lines)
    assert reading_order(lines) == [lines]
    assert reading_order(lines, text) == [left, right]
    assert reading_order(lines, [Region("table", (55, 95, 450, 150), 0.9)]) == [lines]


def test_neither_one_column_nor_two_of_running_text_are_in_doubt():
    assert not is_unsure(prose("one", 40))
    assert not is_unsure(mixed(side("left", 20, 50, 290), side("right", 20, 310, 550)))


def test_labels_that_reach_into_the_gutter_of_other_rows_stay_beside_their_commands():
    lengths = [18, 22, 20, 38, 48, 19, 24, 21, 17, 48, 23, 20]
    labels = column([f"label {n} ".ljust(length, "x") for n, length in enumerate(lengths)], 50)
    commands = [
        line("command(x)".ljust(16 if n > 40 else 22, "y"), 320 if n > 40 else 290, 100 + 12 * row)
        for row, n in enumerate(lengths)
    ]
    lines = mixed(labels, commands)
    assert reading_order(lines) == [lines]


def test_ragged_columns_with_a_line_that_reaches_into_their_gutter_are_columns_on_the_same_base_lines_too():
    left, right = side("left", 12, 50, 290), side("right", 12, 302, 540)
    left = [item._replace(right=300.0 if n == 3 else (250.0, 255.0, 285.0)[n % 3]) for n, item in enumerate(left)]
    assert reading_order(mixed(left, right)) == [left, right]


def test_an_index_with_short_entries_is_of_columns_on_the_same_base_lines_too():
    entries = [6, 2, 3, 7, 3, 2, 4, 2, 3, 4, 2, 3]
    left, right = (
        column([f"{name}{n} entry" + ", 123" * many for n, many in enumerate(entries)], x)
        for name, x in (("left", 50), ("right", 300))
    )
    assert reading_order(mixed(left, right)) == [left, right]


def test_impossible_text_sizes_cause_no_failure():
    for size in (0.0, -1.0, 1e-300, float("inf"), float("nan")):
        lines = [item._replace(size=size) for item in mixed(prose("a", 6), prose("b", 6, left=450, right=800))]
        assert [item for part in reading_order(lines) for item in part] == lines


def test_columns_between_two_rules_are_text_and_no_table():
    three = [side(name, 9, left, left + 165) for name, left in (("a", 40), ("b", 217), ("c", 394))]
    text = render(convert(page(*mixed(*three), rules=[Rule(40, 95, 559, 95), Rule(40, 215, 559, 215)])))
    texts = order(text, *(f"{name}{n} " for name in "abc" for n in (0, 8)))
    assert texts == sorted(texts)
    assert "|" not in text


def test_a_rule_across_all_columns_ends_them():
    above, below = [
        [side(f"{name}{place}", 6, *xs, top=top) for name, xs in (("l", (50, 292)), ("r", (308, 550)))]
        for place, top in (("a", 100), ("b", 190))
    ]
    lines = [*mixed(*above), *mixed(*below)]
    text = render(convert(page(*lines, rules=[Rule(48, 181, 552, 181)]), keep_furniture=True))
    texts = order(text, "la0", "la5", "ra0", "ra5", "lb0", "lb5", "rb0", "rb5")
    assert texts == sorted(texts)
