"""Labels with their values, and tables of invoices and statements."""

from pipeline.reading.layout.columns import reading_order
from pipeline.reading.layout.model import Rule, Table, plain
from pipeline.reading.layout.page import convert, render
from tests.support.layout import column, grid, line, page, prose


def markdown(content):
    return render(convert(content, keep_furniture=True))


def only_table(content):
    [table] = [block for block in convert(content, keep_furniture=True) if isinstance(block, Table)]
    return [[plain(cell.runs) for cell in row] for row in table.rows]


def lines_of(rows, xs, top=100, pitch=14, size=10.0):
    return [
        line(text, x, top + n * pitch, size)
        for n, row in enumerate(rows)
        for text, x in zip(row, xs, strict=False)
        if text
    ]


def test_a_row_of_labels_and_values_is_a_pair_a_line():
    rows = [["Report:", "R-17", "Date of Service:", "28 October"], ["Name: Ann Whitfield", "", "Ward: 4B"]]
    content = page(*lines_of(rows, [50, 150, 300, 420], pitch=40), *prose("text", 5, top=200))
    assert markdown(content).split("\n\n")[:4] == [
        "Report: R-17",
        "Date of Service: 28 October",
        "Name: Ann Whitfield",
        "Ward: 4B",
    ]


def test_values_beside_their_labels_are_not_a_column():
    labels = ["Name of patient:", "Date of Service:", "Blood and tissue:", "Primary Physician:", "Insurance company:"]
    values = [
        "Jonathan Michael Harrison",
        "15 March 1978 in Tacoma",
        "A Positive, no antibodies",
        "Dr. Elizabeth Warren",
    ]
    lines = [*column(labels, 50, pitch=18), *column([*values, "Blue Shield of the North"], 180, pitch=18)]
    assert len(reading_order(lines)) == 1


def test_the_coloured_head_of_a_table_without_rules_is_its_first_row():
    rows = [["Item", "Qty", "Price", "Amount"], *([f"Lamp {n}", str(n), "100.00", f"{n}00.00"] for n in range(2, 6))]
    table = lines_of(rows, [60, 200, 300, 400], pitch=18)
    content = page(*prose("above", 3, top=40), *table, fills=[(50, 95, 500, 115)])
    assert only_table(content) == rows


def test_rows_of_numbers_across_a_gutter_are_a_table():
    rows = [
        ["Item", "Name", "Qty", "Price", "Amount"],
        ["1", "Pendant lamp of brass", "6", "1,450.00", "8,700.00"],
        ["2", "Wall lamp", "12", "620.00", "7,440.00"],
        ["3", "Installation", "1", "3,500.00", "3,500.00"],
        ["", "", "", "Total", "19,640.00"],
    ]
    sender = column(["Nordlys Lighting", "5 Storgata", "0155 Oslo", "Norway", "No. 914 778 271"], 400, 40, pitch=11)
    receiver = column([f"Address {n} of the hotel" for n in range(10)], 50, 44, pitch=13)
    assert only_table(page(*sender, *receiver, *lines_of(rows, [50, 90, 300, 370, 450], top=220))) == rows


def test_a_small_label_above_its_value_shares_its_cell():
    xs, ys = [100, 250, 400], [100, 130, 160]
    labels = [["1 Wages", "2 Tax withheld"], ["3 Tips", "4 Plans"]]
    values = [["48,250.00", "6,912.40"], ["120.00", "350.75"]]
    small = lines_of(labels, [104, 254], top=102, pitch=30, size=7)
    content = page(*small, *lines_of(values, [106, 256], top=115, pitch=30), rules=grid(xs, ys))
    assert only_table(content) == [
        ["1 Wages 48,250.00", "2 Tax withheld 6,912.40"],
        ["3 Tips 120.00", "4 Plans 350.75"],
    ]


def test_two_titles_in_a_row_do_not_end_a_statement():
    rows = [
        ["", "Note", "2023", "2022"],
        ["Assets", "", "", ""],
        ["Non-current assets", "", "", ""],
        ["Property and plant", "11", "42,310", "39,877"],
        ["Intangible assets", "12", "8,450", "9,112"],
        ["", "", "50,760", "48,989"],
    ]
    assert only_table(page(*lines_of(rows, [50, 250, 320, 400]))) == rows


def test_pairs_above_a_table_are_not_its_head():
    pairs = [["Holder: L. Fernandes", "", "IBAN: PT50 0002 0123"], ["Period: March 2024", "", "Currency: EUR"]]
    rows = [
        ["Date", "Description", "Debit", "Balance"],
        ["01/03", "Opening balance", "", "2,114.09"],
        ["02/03", "Card payment Pingo Doce", "54.20", "2,059.89"],
        ["", "in Lisbon", "", ""],
        ["15/03", "Rent", "900.00", "2,928.12"],
    ]
    content = page(*lines_of(pairs, [50, 120, 320]), *lines_of(rows, [50, 120, 320, 420], top=145, pitch=18))
    assert only_table(content) == [
        *rows[:2],
        ["02/03", "Card payment Pingo Doce in Lisbon", "54.20", "2,059.89"],
        rows[4],
    ]
    assert "IBAN: PT50 0002 0123" in markdown(content).split("\n\n")


def test_labels_and_values_on_rules_are_a_table_of_pairs():
    lines = [*lines_of([["Surname", "Okonkwo", "First name", "Chidi"]], [50, 130, 300, 370], top=100)]
    lines += lines_of([["Street", "18 Acacia Avenue"], ["Occupation"]], [50, 130], top=126, pitch=26)
    rules = [Rule(120, 112, 280, 112), Rule(360, 112, 500, 112), Rule(120, 138, 500, 138), Rule(120, 164, 500, 164)]
    rows = [["Surname", "Okonkwo"], ["First name", "Chidi"], ["Street", "18 Acacia Avenue"], ["Occupation", ""]]
    assert only_table(page(*prose("above", 2, top=40), *lines, rules=rules)) == rows


def test_a_value_on_a_rule_among_other_text_follows_its_label():
    rows = [["Name", "Ada"], ["or any other name"], ["Town", "Leeds"], ["in capitals"], ["Date", "4 June"]]
    rules = [Rule(100, y, 300, y) for y in (112, 140, 168)]
    text = markdown(page(*lines_of(rows, [50, 110]), rules=rules))
    assert all(pair in text for pair in ("Name Ada", "Town Leeds", "Date 4 June"))


def test_rules_under_sums_are_no_blanks():
    rows = [["Sales", "1,204", "1,133"], ["Costs", "905", "868"], ["Margin", "299", "265"], ["Tax", "99", "65"]]
    lines = [
        line(text, x if place == 0 else x - 5 * len(text), 100 + 14 * n)
        for n, row in enumerate(rows)
        for place, (text, x) in enumerate(zip(row, [50, 120, 180], strict=True))
    ]
    rules = [Rule(x, y, x + 32, y) for y in (125, 139, 153) for x in (89, 149)]
    assert only_table(page(*lines, rules=rules)) == rows


def test_rules_of_sums_do_not_cut_a_statement_from_its_labels():
    rows = [
        ["", "Notes", "2024", "2023"],
        ["Revenue", "2", "1,842.5", "1,790.3"],
        ["Cost of sales", "", "(1,102.7)", "(1,085.1)"],
        ["Gross profit", "", "739.8", "705.2"],
        ["Administrative expenses", "4", "(310.9)", "(298.3)"],
        ["Operating profit", "", "428.9", "406.9"],
        ["Taxation", "7", "(50.6)", "(35.8)"],
        ["Profit", "", "378.3", "371.1"],
    ]
    rules = [Rule(300, y, 450, y) for y in (140, 168, 196)]
    assert only_table(page(*lines_of(rows, [50, 240, 310, 400]), rules=rules)) == rows


def test_numbers_recognised_as_one_line_are_cells():
    rows = [["Method", "MRPC", "CoLA", "SST"], *([name, "60.7", "74.5", "66.6"] for name in ("One", "Two", "Three"))]
    lines = []
    for n, (label, *numbers) in enumerate(rows):
        lines.append(line(label, 50, 100 + 14 * n)._replace(spans=()))
        text = " ".join(numbers)
        places = (0, 250, 375, 625, 750, 1000)
        lines.append(line(text, 150, 100 + 14 * n, right=230)._replace(spans=(), right=230.0, places=places))
    assert only_table(page(*lines)) == rows


def test_a_number_with_a_space_after_its_thousands_is_one_cell():
    rows = [["Town", "People", "Area"], *([name, "12 345", "66.6"] for name in ("Bergen", "Cork", "Faro", "Oslo"))]
    assert only_table(page(*lines_of(rows, [50, 150, 250]))) == rows
