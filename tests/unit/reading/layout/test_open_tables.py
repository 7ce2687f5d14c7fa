"""Tables between horizontal rules: narrow columns, heads of several rows, groups of rows, cells of several lines."""

from pipeline.reading.layout.model import Line, Rule, Table, plain
from pipeline.reading.layout.page import convert, render
from tests.support.layout import MONO, line, page, prose


def tables(content):
    return [block for block in convert(content, keep_furniture=True) if isinstance(block, Table)]


def texts(table):
    return [[plain(cell.runs) for cell in row] for row in table.rows]


def spans(row):
    return [(plain(cell.runs), cell.columns) for cell in row if cell.runs]


def level(*ys, left=90, right=420):
    return [Rule(left, y, right, y) for y in ys]


def at(xs, row, top, **more):
    return [line(text, x, top, **more) for text, x in zip(row, xs, strict=True) if text]


def centred(text, middle, top):
    return line(text, middle - 2.5 * len(text), top)


def test_close_columns_are_separated_between_rules():
    rows = [["Label", "N", "Mean"], ["alpha", "12", "0.31"], ["gamma", "15", "0.48"], ["omega", "27", "0.55"]]
    pieces = [piece for n, row in enumerate(rows) for piece in at([100, 131, 147], row, 104 + 14 * n)]
    assert texts(tables(page(*pieces, rules=level(100, 117, 160)))[0]) == rows


def test_spaces_in_program_text_are_no_borders():
    rows = [["a", "f(m, type = 'A')"], ["b", "f(m, type = 'B')"], ["c", "f(m, type = 'C')"], ["d", "f(m, type = 'D')"]]
    pieces = [
        piece
        for n, (name, call) in enumerate(rows)
        for piece in (line(name, 100, 104 + 14 * n), line(call, 160, 104 + 14 * n, style=MONO, right=256))
    ]
    head = [line("Name", 100, 90), line("Call", 160, 90)]
    found_rows = texts(tables(page(*head, *pieces, rules=level(88, 102, 162)))[0])
    assert found_rows == [["Name", "Call"], *rows]


def years():
    """Return a head with two periods, each over two columns."""
    head = [centred("First half", 225, 104), centred("Second half", 345, 104)]
    heads = [centred(text, x, 120) for text, x in zip(["2021", "2022"] * 2, (200, 250, 320, 370), strict=True)]
    body = [
        piece
        for n in range(4)
        for piece in [line(f"item {n}", 100, 140 + 14 * n), *at([190, 240, 310, 360], ["1.25"] * 4, 140 + 14 * n)]
    ]
    return [*head, *heads, *body]


def test_a_rule_below_a_head_shows_the_columns_that_it_spans():
    rules = [*level(100, 136, 200), *level(117, left=188, right=262), *level(117, left=308, right=382)]
    [table] = tables(page(*years(), rules=rules))
    assert table.header == 2
    assert spans(table.rows[0]) == [("First half", 2), ("Second half", 2)]
    assert spans(table.rows[1]) == [(text, 1) for text in ("2021", "2022") * 2]


def test_a_head_in_the_middle_above_several_columns_spans_them_without_a_rule():
    [table] = tables(page(*years(), rules=level(100, 136, 200)))
    assert spans(table.rows[0]) == [("First half", 2), ("Second half", 2)]


def test_the_title_of_a_group_of_rows_is_its_first_cell():
    pieces = at([100, 200, 300], ["Car", "Miles", "Power"], 104)
    for n, text in enumerate(["Cars with four cylinders only", "Cars with six cylinders or more"]):
        pieces += [line(text, 100, 124 + 42 * n)]
        for row in (1, 2):
            pieces += at([110, 200, 300], [f"car {n}{row}", "21.0", "110"], 124 + 42 * n + 14 * row)
    [table] = tables(page(*pieces, rules=level(100, 120, 206)))
    assert texts(table)[1] == ["Cars with four cylinders only", "", ""]
    assert "colspan" not in render([table])


def test_cells_of_several_lines_are_whole_in_every_column():
    pieces = [
        *at([100, 200, 300], ["Name", "Kind", "Meaning"], 104),
        *at([100, 200, 300], ["the covariance of", "matrix", "what is known of all"], 124),
        *at([100, 200, 300], ["parameters and all", "", "that has been said on"], 136),
        *at([100, 200, 300], ["factors", "", "the matter"], 148),
        *at([100, 200, 300], ["Offset", "vector", "of the page"], 160),
    ]
    [table] = tables(page(*pieces, rules=level(100, 119, 175)))
    assert texts(table)[1:] == [
        [
            "the covariance of parameters and all factors",
            "matrix",
            "what is known of all that has been said on the matter",
        ],
        ["Offset", "vector", "of the page"],
    ]


def test_two_tables_of_one_width_are_two_and_the_text_between_them_stays_text():
    def table(top):
        rows = [["Name", "First", "Second"], ["a", "1", "2"], ["b", "3", "4"], ["c", "5", "6"]]
        return [piece for n, row in enumerate(rows) for piece in at([100, 200, 320], row, top + 14 * n)]

    between = prose("between", 4, 90, 190, right=418)
    content = page(*table(104), *between, *table(264), rules=[*level(100, 117, 160), *level(260, 277, 320)])
    blocks = convert(content, keep_furniture=True)
    assert [isinstance(block, Table) for block in blocks] == [True, False, True]


def test_a_heading_and_text_between_header_and_footer_rules_are_no_table():
    pieces = [line("Heading", 90, 110), *prose("text", 30, 90, 130, right=418)]
    assert tables(page(*pieces, rules=level(60, 100, 700))) == []


def test_recognised_lines_without_words_are_placed_too():
    rows = [["Label", "Number"], ["alpha", "12"], ["gamma", "15"], ["omega", "27"]]
    pieces = [
        Line(text, x, 104 + 14 * n, x + 5 * len(text), 114 + 14 * n, 10)
        for n, row in enumerate(rows)
        for text, x in zip(row, (100, 132), strict=True)
    ]
    assert texts(tables(page(*pieces, rules=level(100, 117, 160)))[0]) == rows


def statement(sign=""):
    """Return a statement of income without rules: periods over columns, columns of signs, a name of two lines."""
    pieces = [centred(text, x, top) for top, text in ((100, "Months Ended"), (112, "June 30")) for x in (225, 345)]
    pieces += [centred(text, x, 126) for text, x in zip(["2021", "2022"] * 2, (200, 250, 320, 370), strict=True)]
    names = ["Revenue", "Expenses:", "Research", "Net income that is due to", "holders of shares", "Total"]
    for n, name in enumerate(names):
        top = 140 + 13 * n
        pieces.append(line(name, 40, top))
        if n not in (1, 3):
            pieces += at([190, 240, 310, 360], ["1,25"] * 4, top)
        if n in (0, 5) and sign:
            pieces += at([180, 230, 300, 350], [sign] * 4, top)
    return pieces


def test_periods_over_years_are_heads_of_two_levels_without_any_rule():
    [table] = tables(page(*statement()))
    assert table.header == 2
    assert spans(table.rows[0]) == [("Months Ended June 30", 2), ("Months Ended June 30", 2)]
    assert spans(table.rows[1]) == [(text, 1) for text in ("2021", "2022") * 2]


def test_a_name_of_two_lines_has_the_values_of_its_last_line_and_a_group_has_none():
    [table] = tables(page(*statement()))
    names = [row[0] for row in texts(table)[2:]]
    assert names == ["Revenue", "Expenses:", "Research", "Net income that is due to holders of shares", "Total"]


def test_signs_in_columns_of_their_own_stand_with_their_amounts():
    [table] = tables(page(*statement("$")))
    assert texts(table)[2] == ["Revenue", *["$ 1,25"] * 4]


def test_one_period_over_all_years_is_in_the_head():
    pieces = [piece for piece in statement() if piece.text not in {"Months Ended", "June 30"}]
    [table] = tables(page(centred("Year ended June 30", 285, 112), *pieces))
    assert spans(table.rows[0]) == [("Year ended June 30", 4)]


def box(top, bottom, left=90, right=420):
    sides = [Rule(x, top, x, bottom) for x in (left, right)]
    return [*level(top, bottom, left=left, right=right), *sides]


def test_a_heading_between_two_boxes_is_in_neither_of_their_tables():
    facts = at([100, 300], ["Name: Ada Long", "Town: X"], 110)
    heading = line("Values", 92, 150, size=12)
    rows = [["Label", "N", "Mean"], ["alpha", "12", "0.31"], ["gamma", "15", "0.48"], ["omega", "27", "0.55"]]
    cells = [piece for n, row in enumerate(rows) for piece in at([100, 200, 300], row, 176 + 14 * n)]
    drawn = [*box(96, 134), *level(164, right=130), *box(170, 236), *level(187)]
    content = page(*facts, heading, *cells, rules=drawn)
    assert [texts(table) for table in tables(content)] == [rows]
    assert "# Values\n" in render(convert(content, keep_furniture=True))
