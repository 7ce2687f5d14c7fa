import pytest

from pipeline.reading.layout.markdown import table as table_markdown
from pipeline.reading.layout.model import Cell, Line, Rule, Run, Table, plain
from pipeline.reading.layout.page import convert, render
from tests.support.layout import BOLD, grid, line, page, prose


def markdown(content):
    return render(convert(content, keep_furniture=True))


def texts(table):
    return [[plain(cell.runs) for cell in row] for row in table.rows]


def only_table(content):
    [table] = [block for block in convert(content, keep_furniture=True) if isinstance(block, Table)]
    return table


def cells(rows, xs, top=104, pitch=20):
    return [
        line(text, x + 4, top + n * pitch)
        for n, row in enumerate(rows)
        for text, x in zip(row, xs, strict=False)
        if text
    ]


def test_a_ruled_table_is_read_cell_by_cell():
    rows = [["Name", "Born"], ["Ada", "1815"], ["Alan", "1912"]]
    content = page(*cells(rows, [100, 200]), rules=grid([100, 200, 300], [100, 120, 140, 160]))
    assert markdown(content).splitlines() == ["| Name | Born |", "| --- | --- |", "| Ada | 1815 |", "| Alan | 1912 |"]
    assert only_table(content).box == (100, 100, 300, 160)


def test_cells_without_a_rule_between_them_are_merged():
    rules = [
        *grid([100, 200, 300], [120, 140, 160]),
        Rule(100, 100, 300, 100),
        Rule(100, 100, 100, 120),
        Rule(300, 100, 300, 120),
    ]
    content = page(
        line("Years of birth and death", 140, 104),
        *cells([["1815", "1852"], ["1912", "1954"]], [100, 200], 124),
        rules=rules,
    )
    assert '<th colspan="2">Years of birth and death</th>' in markdown(content)


def test_a_cell_over_two_rows_spans_them():
    rules = [
        *grid([200, 300], [100, 120, 140]),
        Rule(100, 100, 200, 100),
        Rule(100, 140, 200, 140),
        Rule(100, 100, 100, 140),
    ]
    content = page(line("Both", 104, 114), *cells([["one"], ["two"]], [200]), rules=rules)
    assert '<th rowspan="2">Both</th>' in markdown(content)


def test_lines_in_a_cell_are_joined():
    lines = [
        line("a cell that", 104, 104),
        line("goes on", 104, 116),
        line("b", 204, 104),
        line("c", 104, 134),
        line("d", 204, 134),
    ]
    content = page(*lines, rules=grid([100, 200, 300], [100, 130, 150]))
    assert texts(only_table(content)) == [["a cell that goes on", "b"], ["c", "d"]]


def test_rows_that_no_rule_parts_are_rows():
    rows = [["Run", "Chunks", "Mean"], ["Base 128", "64", "8.7"], ["Base 256", "32", "4.6"], ["Base 512", "16", "2.5"]]
    content = page(*cells(rows, [100, 200, 300], pitch=14), rules=grid([100, 200, 300, 400], [100, 117, 160]))
    assert texts(only_table(content)) == rows


def test_a_line_that_runs_over_a_rule_is_cut_at_it():
    whole = line("left right", 160, 104)
    content = page(whole, line("a", 104, 124), line("b", 204, 124), rules=grid([100, 182, 300], [100, 120, 140]))
    assert texts(only_table(content))[0] == ["left", "right"]


def test_recognised_lines_are_cut_at_rules_too():
    whole = Line("left right", 160, 104, 210, 114, 10)
    content = page(whole, line("a", 104, 124), line("b", 204, 124), rules=grid([100, 182, 300], [100, 120, 140]))
    assert texts(only_table(content))[0] == ["left", "right"]


def test_a_frame_around_text_is_no_table():
    content = page(*prose("framed", 5, 110, 110), rules=grid([100, 410], [100, 180]))
    assert not any(isinstance(block, Table) for block in convert(content))


def test_horizontal_rules_alone_make_a_table_of_columns():
    rows = [["Model", "Accuracy", "Time"], ["small", "12.6 %", "7 s"], ["large", "26.0 %", "22 s"]]
    rules = [Rule(90, y, 420, y) for y in (100, 118, 162)]
    assert texts(only_table(page(*cells(rows, [100, 200, 320]), rules=rules))) == rows


def test_rows_with_gaps_keep_their_places_between_stripes():
    rows = [["Code", "Place", "Count"], ["S-1", "", "450"], ["", "B-7", "-23"], ["S-2", "C-1", ""]]
    stripes = [(90, 100 + 20 * n, 420, 120 + 20 * n) for n in range(4)]
    assert texts(only_table(page(*cells(rows, [100, 200, 320]), fills=stripes))) == rows


def test_numbers_in_columns_are_a_table_without_any_rule():
    rows = [
        ["Fund", "2023", "2024"],
        ["Stocks", "(4.5)", "+12.0 %"],
        ["Bonds", "3.1", "−0.4 %"],
        ["Cash", "0.2", "1.9 %"],
    ]
    text = markdown(page(*cells(rows, [100, 250, 350], pitch=13)))
    assert "| Stocks | (4.5) | +12.0 % |" in text
    assert "| Bonds | 3.1 | −0.4 % |" in text


def test_a_cell_of_two_lines_is_one_cell_without_rules():
    rows = [
        ["Item", "Description", "Price"],
        ["A1", "a long description of", "10.00"],
        ["", "the first item", ""],
        ["B2", "short", "20.00"],
        ["C3", "short too", "30.00"],
    ]
    table_rows = texts(only_table(page(*cells(rows, [100, 160, 320], pitch=12))))
    assert table_rows[1] == ["A1", "a long description of the first item", "10.00"]
    assert len(table_rows) == 4


def test_a_head_that_fills_its_columns_belongs_to_the_table():
    below = cells(
        [["128", "64,058", "800.73"], ["256", "32,051", "400.64"], ["512", "16,046", "200.58"]],
        [100, 180, 300],
        104,
        15,
    )
    head = [
        Line("Processing", 100, 88, 172, 98, 10),
        Line("total chunks", 170, 88, 252, 98, 10),
        Line("mean per document", 249, 88, 380, 98, 10),
    ]
    assert texts(only_table(page(*head, *below)))[0] == ["Processing", "total chunks", "mean per document"]


def test_two_columns_of_text_are_no_table():
    lines = [*prose("left", 12, 50, right=280), *prose("right", 12, 320, right=550)]
    assert not any(isinstance(block, Table) for block in convert(page(*lines)))


def test_a_numbered_list_is_no_table():
    lines = [
        piece
        for n in range(5)
        for piece in (line(f"{n + 1}.", 60, 100 + 14 * n), line(f"thing number {n}", 100, 100 + 14 * n))
    ]
    assert markdown(page(*lines)).splitlines()[0] == "1. thing number 0"


def test_lines_of_contents_are_no_table():
    lines = [line(f"Chapter {n} ............ {n}", 60, 100 + 14 * n) for n in range(6)]
    assert markdown(page(*lines)).split("\n\n")[1] == "Chapter 1 ............ 1"


def test_a_full_width_table_above_two_columns_is_whole():
    rows = [["Name", "Size", "Price", "Stock"], *([f"item{n}", f"{n} cm", f"{n}.00", str(n)] for n in range(5))]
    content = page(
        *cells(rows, [50, 180, 320, 460], 60, 14),
        *prose("left", 20, 50, 160, 280),
        *prose("right", 20, 320, 160, 550),
        rules=grid([46, 176, 316, 456, 560], [58 + 14 * n for n in range(7)]),
    )
    text = markdown(content)
    assert "| item4 | 4 cm | 4.00 | 4 |" in text
    assert text.index("item4") < text.index("left line number 19") < text.index("right line number 0")


@pytest.mark.parametrize("text", ["a|b", "a*b*", "<i>", "`x`"])
def test_cells_cannot_break_the_table(text):
    table = Table((0, 0, 1, 1), ((Cell((Run("head"),)), Cell()), (Cell((Run(text),)), Cell())))
    assert len(table_markdown(table).splitlines()) == 3
    assert table_markdown(table).splitlines()[2].replace("\\|", "").count("|") == 3


def test_html_tables_escape_their_text():
    table = Table((0, 0, 1, 1), ((Cell((Run("a<b & c"),), columns=2),), (Cell(), Cell())))
    assert '<th colspan="2">a&lt;b &amp; c</th>' in table_markdown(table)


def test_bold_heads_of_two_rows_are_both_heads():
    rows = [["Group", "First", "Second"], ["kind", "part", "part"]]
    head = [
        line(t, x, 100 + 30 * n, style=BOLD)
        for n, row in enumerate(rows)
        for t, x in zip(row, [100, 200, 300], strict=True)
    ]
    body = cells([["a", "1.0", "2.0"], ["b", "1.5", "2.5"], ["c", "3.5", "4.5"]], [96, 196, 296], 160, 30)
    assert only_table(page(*head, *body)).header == 2


def test_larger_headings_part_the_tables_of_a_reference_card():
    lines = []
    for section, top in (("Files", 100), ("Windows", 180)):
        lines.append(line(section, 50, top, size=14))
        for row in range(4):
            lines += [
                line(f"do {section.lower()} thing {row}", 50, top + 18 + 12 * row),
                line(f"C-x {row}", 200, top + 18 + 12 * row),
            ]
    text = markdown(page(*lines))
    assert [part.splitlines()[0] for part in text.split("\n\n")] == [
        "# Files",
        "| do files thing 0 | C-x 0 |",
        "# Windows",
        "| do windows thing 0 | C-x 0 |",
    ]


def test_the_prompts_of_typed_lines_are_no_column():
    typed = ["fit <- model(formula,", "data = measured, subset = 1:10,", "start = NULL)"]
    lines = [
        part for n, text in enumerate(typed) for part in cells([[">" if n == 0 else "+", text]], [50, 80], 100 + 12 * n)
    ]
    assert "|" not in markdown(page(*lines))


def test_a_wrapped_line_of_the_last_cell_belongs_to_its_table():
    rows = [
        ("never", "does not show the state of the machine"),
        ("always", "shows it after every step"),
        ("last", "shows the state of the machine only at"),
    ]
    lines = [part for n, row in enumerate(rows) for part in cells([row], [50, 120], 100 + 15 * n)]
    lines.append(line("the end", 124, 142))
    assert markdown(page(*lines)).splitlines()[-1] == "| last | shows the state of the machine only at the end |"
