from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pipeline.reading.layout.columns import reading_order
from pipeline.reading.layout.model import SOFT_HYPHEN, Line
from pipeline.reading.layout.page import PageContent, as_dicts, convert, render, to_markdown
from pipeline.reading.layout.rows import rows
from pipeline.reading.layout.text import join_lines
from tests.support import layout as styled

COORDINATE = st.floats(allow_nan=True, allow_infinity=True) | st.floats(min_value=-50, max_value=900)
SIZE = st.floats(min_value=-1, max_value=80) | st.floats()
PLACE = st.floats(min_value=0, max_value=700)
WORD = st.text(alphabet="abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=12)


WORDS = st.lists(WORD, min_size=1, max_size=8).map(" ".join)


@st.composite
def lines(draw, text=WORDS, coordinate=COORDINATE):
    left, top, right, bottom = (draw(coordinate) for _ in range(4))
    return Line(draw(text), left, top, right, bottom, draw(SIZE))


def line(text, left, top, right=None, size=10.0):
    return Line(text, left, top, left + 0.5 * size * len(text) if right is None else right, top + size, size)


def column(texts, left, top=100, right=None, pitch=12):
    return [line(text, left, top + index * pitch, right) for index, text in enumerate(texts)]


def found_text(lines):
    """Return all text of the blocks made from the lines, with list markers."""
    blocks = convert(PageContent(700, 700, tuple(lines)), keep_furniture=True)
    return " ".join(f"{block.get('marker', '')} {block['text']}" for block in as_dicts(blocks, 1))


@given(st.lists(lines(), max_size=30))
def test_no_word_is_lost_or_made_up_wherever_lines_are(drawn):
    words = Counter(word for item in drawn for word in item.text.split())
    assert Counter(found_text(drawn).split()) == words


@given(st.lists(lines(text=st.text(max_size=30), coordinate=PLACE), max_size=20))
def test_any_letters_and_digits_survive(drawn):
    def content(text):
        return Counter(filter(str.isalnum, text))

    assert content(found_text(drawn)) == sum((content(item.text) for item in drawn), Counter())


@given(st.lists(lines(text=st.text(max_size=30), coordinate=PLACE), max_size=20))
def test_markdown_has_every_letter_and_digit_too(drawn):
    markdown = Counter(filter(str.isalnum, to_markdown(drawn)))
    content = Counter(character for item in drawn for character in item.text if character.isalnum())
    assert content <= markdown


@given(st.lists(lines(coordinate=PLACE), max_size=40))
def test_reading_order_and_rows_keep_every_line(drawn):
    assert Counter(item for block in reading_order(drawn) for item in block) == Counter(drawn)
    assert Counter(cell for row in rows(drawn) for cell in row.cells) == Counter(drawn)


@given(st.lists(st.text(), max_size=10))
def test_joining_lines_never_fails(texts):
    assert "\n" not in join_lines(texts)


def test_two_columns_are_read_one_after_the_other_below_their_title():
    left = column([f"left column line number {n} is here" for n in range(8)], 50, right=280)
    right = column([f"right column line number {n} is here" for n in range(8)], 320, right=550)
    title = line("A title across both of the columns", 100, 70, 500, size=12)
    interleaved = [title, *(item for pair in zip(left, right, strict=True) for item in pair)]

    text = to_markdown(interleaved)

    assert text.index("A title") < text.index("left column line number 0")
    assert text.index("left column line number 7") < text.index("right column line number 0")


def test_three_columns_are_read_one_after_the_other():
    columns = [
        column([f"{name} column line {n} of it" for n in range(9)], left, right=left + 150)
        for name, left in (("first", 40), ("second", 220), ("third", 400))
    ]
    text = to_markdown([item for row in zip(*columns, strict=True) for item in row])
    starts = [text.index(f"{name} column line {n}") for name in ("first", "second", "third") for n in (0, 8)]
    assert starts == sorted(starts)


def test_cells_of_a_table_are_read_row_by_row():
    cells = [line(f"{word}{n}", left, 100 + 12 * n) for n in range(8) for word, left in (("item", 50), ("price", 350))]
    assert reading_order(cells) == [cells]
    assert to_markdown(cells).splitlines()[:3] == ["| item0 | price0 |", "| --- | --- |", "| item1 | price1 |"]


def test_text_beside_a_table_is_read_before_or_after_the_table():
    prose = column([f"running text of line {n} goes on" for n in range(12)], 50, right=300, pitch=17)
    table = [line(f"{word}{n}", left, 100 + 11 * n) for n in range(16) for word, left in (("a", 350), ("b", 450))]
    text = to_markdown(prose + table)
    assert text.index("running text of line 11") < text.index("| a0 | b0 |")


def test_text_up_a_margin_does_not_cut_through_the_lines_beside_it():
    body = column([f"the body has a line with number {n}" for n in range(20)], 60, right=400)
    stamp = Line("arXiv:2410.10779v1", 20, 150, 32, 330, 12)
    assert to_markdown([*body[:5], stamp, *body[5:]]).endswith("\n\narXiv:2410.10779v1")


def test_lines_of_a_paragraph_are_joined_and_paragraphs_are_apart():
    first = column(["This paragraph has two full lines which", "end in a short one."], 50)
    second = column(["Another follows after a gap and is as", "long as the first."], 50, top=150)
    assert to_markdown(first + second) == (
        "This paragraph has two full lines which end in a short one.\n\n"
        "Another follows after a gap and is as long as the first."
    )


def test_an_indented_line_starts_a_paragraph():
    lines = [line(f"flush line number {n} of the text goes on", 50, 100 + 12 * n, 400) for n in range(6)]
    lines[3] = line("Indented line starts a new one which goes", 70, 136, 400)
    assert to_markdown(lines).split("\n\n")[1].startswith("Indented")


def test_a_hanging_indent_starts_a_paragraph_where_it_ends():
    lines = []
    for entry in range(3):
        lines.append(line(f"Author {entry} and others wrote this long title", 50, 100 + 36 * entry, 400))
        lines += [line("which goes on over further lines of text", 62, 112 + 36 * entry + 12 * n, 400) for n in (0, 1)]
    assert [part[:8] for part in to_markdown(lines).split("\n\n")] == ["Author 0", "Author 1", "Author 2"]


def test_entries_of_two_lines_with_a_hanging_indent_are_apart():
    lines = []
    for entry in range(3):
        lines.append(line(f"Author {entry} wrote a title of The Great", 50, 100 + 24 * entry, 400))
        lines.append(line("Publisher, 1984.", 62, 112 + 24 * entry, 200))
    assert [part[:8] for part in to_markdown(lines).split("\n\n")] == ["Author 0", "Author 1", "Author 2"]


def test_a_list_between_paragraphs_does_not_cut_their_indented_first_lines():
    def paragraph(top):
        first = line("A paragraph of three lines has an indented", 65, top, 400)
        return [first, *column(["first line and goes on at the left for the", "rest of its text."], 50, top + 12, 400)]

    items = []
    for top in (140, 164):
        items += [line("— An item that is longer than one line goes", 60, top, 400)]
        items += [line("on beside its dash.", 72, top + 12, 200)]
    parts = to_markdown(paragraph(100) + items + paragraph(198)).split("\n\n")
    assert parts == [
        "A paragraph of three lines has an indented first line and goes on at the left for the rest of its text.",
        "\n".join(["- An item that is longer than one line goes on beside its dash."] * 2),
        "A paragraph of three lines has an indented first line and goes on at the left for the rest of its text.",
    ]


def test_a_program_that_runs_into_the_margin_does_not_make_the_text_look_short():
    lines = []
    for top in (100, 160):
        lines += [*styled.prose("body", 2, top=top), styled.line("South of it.", 50, top + 24)]
    text = "a line of a program that runs far into the margin beside the text of its page"
    program = styled.column([text] * 2, 50, 220, style=styled.MONO)
    assert render(convert(styled.page(*lines, *program))).split("\n\n")[0].endswith("and South of it.")


def test_direct_speech_that_begins_with_a_dash_is_no_item():
    lines = [line("— Come in, he said to the man who stood there", 65, 100, 400), line("at the door.", 50, 112, 200)]
    assert to_markdown(lines) == "— Come in, he said to the man who stood there at the door."


def test_a_definition_goes_on_below_its_first_line():
    lines = [line("-c", 50, 100), line("Read the commands from the first argument of the", 100, 100, 400)]
    lines += column(["program, which is not an option, and run them", "one by one."], 100, 112, right=400)
    assert to_markdown(lines) == (
        "-c Read the commands from the first argument of the program, which is not an option, and run them one by one."
    )


def test_code_is_code_where_the_text_is_in_the_same_type():
    """Signs of programs tell it from typed prose; most lines of a listing have one."""
    prose = [f"a typed letter has line {n} of its text here" for n in range(8)]
    code = ["if (a == b) {", "return;", "}", "else"]
    for texts, expected in ((code, "```\nif (a == b) {\nreturn;\n}\nelse\n```"), (prose, "")):
        lines = styled.column(texts, 50, 300, style=styled.MONO)
        typed = styled.column(prose, 50, 100, style=styled.MONO)
        rendered = render(convert(styled.page(*typed, styled.line("Then", 50, 250), *lines)))
        assert ("```" in rendered) == bool(expected)
        assert expected in rendered


def test_a_last_line_of_code_stays_in_its_sentence():
    lines = [*styled.prose("body", 3), styled.line("name", 50, 136, style=styled.MONO)]
    assert render(convert(styled.page(*lines))).endswith("which goes on and `name`")


def test_bullets_that_are_drawings_mark_items():
    lines = styled.column(["Observe the voltage", "Turn the cell round"], 60, size=10, pitch=20)
    bullets = [(50, top, 53.4, top + 3.4) for top in (103.5, 123.5)]
    assert render(convert(styled.page(*lines, fills=bullets))) == "- Observe the voltage\n- Turn the cell round"
    assert "- " not in render(convert(styled.page(*lines, fills=bullets[:1])))


def test_items_of_a_list_are_apart():
    assert to_markdown(column(["1. first thing to do", "2. second thing to do"], 50)) == (
        "1. first thing to do\n2. second thing to do"
    )


def test_a_larger_heading_is_apart_from_its_text():
    lines = [line("Heading", 50, 80, size=16), line("and its text", 50, 100)]
    assert to_markdown(lines) == "# Heading\n\nand its text"


def test_a_superscript_stays_in_its_line():
    lines = [line("practice", 50, 100, 90), line("2", 90, 97, 94, size=6), line(", indicating", 94, 100, 150)]
    assert to_markdown(lines) == "practice<sup>2</sup>, indicating"


def test_hyphenated_words_are_joined():
    assert join_lines(["a signifi-", "cant gain"]) == "a significant gain"
    assert join_lines([f"a signifi{SOFT_HYPHEN}", "cant gain"]) == "a significant gain"


def test_hyphens_that_belong_to_the_text_stay():
    assert join_lines(["state-of-the-", "art"]) == "state-of-the-art"
    assert join_lines([f"Lucene{SOFT_HYPHEN}", "BM25"]) == "Lucene-BM25"
    assert join_lines([f"9%{SOFT_HYPHEN}", "19%"]) == "9%-19%"
    assert join_lines(["this -", "that"]) == "this - that"
    assert join_lines([f"the last line ends{SOFT_HYPHEN}"]) == "the last line ends-"


def test_chinese_lines_are_joined_without_spaces_and_korean_ones_with():
    assert join_lines(["这是第一行，", "这是第二行。"]) == "这是第一行，这是第二行。"
    assert join_lines(["무이자할부", "다이어트"]) == "무이자할부 다이어트"
    assert join_lines(["中文", "then English"]) == "中文 then English"


def test_a_paragraph_goes_on_in_the_next_column():
    left = column(
        [f"left column line number {n} is here" for n in range(6)] + ["and the left column breaks off in"], 50
    )
    right = column(["the middle of a sentence."] + [f"Right column line {n} is here." for n in range(6)], 320)
    assert "breaks off in the middle of a sentence." in to_markdown(left + right)


def test_nothing_gives_nothing():
    assert to_markdown([]) == ""
    assert to_markdown([line("  ", 0, 0)]) == ""
