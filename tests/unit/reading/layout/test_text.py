from pipeline.reading.layout.inline import to_markdown
from pipeline.reading.layout.model import (
    PLAIN,
    Code,
    Footnote,
    Line,
    ListItem,
    Paragraph,
    Quote,
    Run,
    Span,
    Style,
    plain,
)
from pipeline.reading.layout.page import as_dicts, convert, render
from tests.support.layout import BOLD, ITALIC, MONO, column, line, page, prose


def markdown(*lines, **more):
    return render(convert(page(*lines, **more), keep_furniture=True))


def test_bold_and_italic_words_are_marked():
    runs = (Run("a "), Run("bold", BOLD), Run(" and "), Run("leaning,", ITALIC), Run(" word"))
    assert to_markdown(runs) == "a **bold** and *leaning*, word"


def test_raised_lowered_and_code_runs_are_marked():
    runs = (Run("x"), Run("2", Style(shift=1)), Run(" H"), Run("2", Style(shift=-1)), Run("O "), Run("f(x)", MONO))
    assert to_markdown(runs) == "x<sup>2</sup> H<sub>2</sub>O `f(x)`"


def test_links_are_kept_unless_their_text_is_the_address():
    url = "https://example.org/a_(b)"
    assert to_markdown((Run("see "), Run("this", Style(link=url)))) == "see [this](https://example.org/a_%28b%29)"
    assert to_markdown((Run("https://example.org", Style(link="https://example.org/")),)) == "https://example.org"


def test_characters_of_markdown_are_escaped_and_others_are_not():
    assert to_markdown((Run("*a* _b_ `c` <d> snake_case 2 * 3 C:\\x [1] a & b"),)) == (
        "\\*a\\* \\_b\\_ \\`c\\` \\<d> snake_case 2 * 3 C:\\x [1] a & b"
    )


def test_text_that_looks_like_a_heading_or_item_at_a_lines_start_stays_text():
    assert markdown(line("# no heading", 50, 100)) == "\\# no heading"
    assert markdown(line("1986) was", 50, 100)) == "1986\\) was"
    assert markdown(line("> no quote", 50, 100)) == "\\> no quote"


def test_bullets_and_nested_items_become_a_list():
    lines = [line("• first", 50, 100), line("– inner", 70, 112), line("– other", 70, 124), line("• second", 50, 136)]
    assert markdown(*lines) == "- first\n    - inner\n    - other\n- second"


def test_an_item_goes_on_over_lines_and_keeps_its_number():
    lines = [
        line("1. The first thing goes on", 50, 100, right=250),
        line("in a second line", 62, 112),
        line("2. Next", 50, 124),
    ]
    assert markdown(*lines) == "1. The first thing goes on in a second line\n2. Next"


def test_a_number_in_brackets_within_a_paragraph_starts_no_item():
    lines = [
        *prose("some", 3),
        line("(2) that the text had in it, goes on here and", 50, 136, right=400),
        *prose("more", 2, top=148),
    ]
    assert not any(isinstance(block, ListItem) for block in convert(page(*lines)))


def test_text_set_further_in_on_both_sides_is_a_quote():
    lines = [*prose("before", 4), *prose("quoted", 3, 80, 160, 370), *prose("after", 4, top=210)]
    assert [type(block) for block in convert(page(*lines))] == [Paragraph, Quote, Paragraph]


def test_code_keeps_lines_and_indents():
    lines = [*prose("before", 4), *column(["def f(x):", "return x"], 60, 160, style=MONO)]
    lines[-1] = line("return x", 60 + 4 * 6, 172, style=MONO)
    [code] = [block for block in convert(page(*lines)) if isinstance(block, Code)]
    assert code.text == "def f(x):\n    return x"
    assert "```\ndef f(x):\n    return x\n```" in markdown(*lines)


def test_footnotes_come_after_the_text_of_all_columns():
    left = [*prose("left", 30, 50, right=280), _note("1", "the note of the left column", 50, 480)]
    right = prose("right", 30, 320, right=550)
    blocks = convert(page(*left, *right))
    assert isinstance(blocks[-1], Footnote)
    assert render(blocks).endswith("<sup>1</sup>the note of the left column")


def _note(mark, text, left, top):
    body = line(text, left + 4, top, size=8)
    spans = (Span(mark, left, left + 3, Style(shift=1)), body.spans[0]._replace(spaced=False), *body.spans[1:])
    return body._replace(text=mark + text, left=left, spans=spans)


def test_a_frame_is_read_as_a_whole_beside_running_text():
    text = prose("text", 20, 50, right=300)
    box = [line(f"boxed line {n}", 330, 130 + 14 * n) for n in range(4)]
    shown = markdown(
        *[piece for pair in zip(text[2:6], box, strict=True) for piece in pair],
        *text[:2],
        *text[6:],
        fills=[(320, 120, 560, 200)],
    )
    places = [shown.index(f"boxed line {n}") for n in range(4)]
    assert "text line" not in shown[places[0] : places[3]]


def test_turned_text_is_read_along_its_own_direction():
    def turned(text, left, bottom, size=10.0):
        height = 5.0 * len(text)
        spans = tuple(Span(word, left, left + size, PLAIN) for word in text.split())
        return Line(text, left, bottom - height, left + size, bottom, size, spans, 270)

    lines = [turned(f"turned line {n} of a page that lies on its side", 100 + 12 * n, 700) for n in range(3)]
    assert markdown(*lines).count("\n") == 0
    [block] = convert(page(*lines))
    assert block.box[0] == 100
    assert block.box[3] == 700


def test_a_stamp_in_the_margin_comes_last_and_is_no_heading():
    stamp = Line("arXiv:1 [cs] 2020", 10, 200, 30, 500, 20, (Span("arXiv:1 [cs] 2020", 10, 30),), 270)
    assert markdown(stamp, *prose("text", 30)).endswith("\n\narXiv:1 [cs] 2020")


def test_right_to_left_columns_are_read_from_the_right():
    def hebrew(left):
        return [
            Line(f"שורה {'אב'[left > 200]} של טקסט ארוך", left, 100 + 12 * n, left + 200, 110 + 12 * n, 10)
            for n in range(8)
        ]

    shown = markdown(*hebrew(50), *hebrew(320))
    assert shown.index("ב") < shown.index("שורה א")


def test_chinese_lines_are_joined_without_spaces():
    lines = [Line("这是第一行的文字，很长", 50, 100, 160, 110, 10), Line("这是第二行的文字。", 50, 112, 150, 122, 10)]
    assert markdown(*lines) == "这是第一行的文字，很长这是第二行的文字。"


def test_blocks_have_page_type_text_and_box():
    blocks = as_dicts(convert(page(line("• item", 50, 100))), 7)
    assert blocks == [
        {"page": 7, "type": "list_item", "text": "item", "bbox": [50, 100, 80, 110], "marker": "-", "depth": 0}
    ]


def test_words_in_several_pieces_are_hyphenated_as_one():
    first = Line(
        "state-of-the-", 50, 100, 115, 110, 10, (Span("state-", 50, 80), Span("of-the-", 80, 115, ITALIC, spaced=False))
    )
    blocks = convert(page(first, line("art", 50, 112)))
    assert isinstance(blocks[0], Paragraph)
    assert plain(blocks[0].runs) == "state-of-the-art"


def test_a_hyphen_at_a_lines_end_stays_where_the_page_has_the_compound():
    lines = [*column(["an open-domain task and its", "use in open-", "domain search and in ques-", "tions"], 50)]
    assert "use in open-domain search and in questions" in markdown(*lines)


def test_words_that_stand_alone_elsewhere_keep_the_hyphen_between_them():
    habit = ["A rule-based, well-known, time-tested way to build a dual", "tower whose encoder is small, as some dual-"]
    lines = [*column([*habit, "encoder networks are, in some depart-", "ments of some departments"], 50)]
    assert "some dual-encoder networks are, in some departments of" in markdown(*lines)


def test_english_compounds_keep_their_hyphen_and_words_of_one_piece_do_not():
    lines = [
        *column(["the size of a high-", "dimensional space and a chat-", "optimized one with high-", "lights"], 50)
    ]
    assert markdown(*lines) == "the size of a high-dimensional space and a chat-optimized one with highlights"


def test_an_address_that_a_line_breaks_has_no_space():
    lines = column(["The files of all are at https://www.example.", "org/files/ and stay there."], 50)
    assert markdown(*lines).endswith("https://www.example.org/files/ and stay there.")
    assert markdown(*column(["All are at https://example.org/", "and stay there."], 50)).endswith(
        "example.org/ and stay there."
    )


def test_hyphens_are_dropped_where_a_page_writes_no_compounds():
    lines = [*column(["A net of work is the best net-", "work of all"], 50)]
    assert "the best network of all" in markdown(*lines)


def test_capitals_inside_of_a_word_follow_the_rest_of_the_page():
    lines = [*column(["ReAct is a method, and so is Re-", "Act, the way of one called Jean-", "Paul"], 50)]
    assert markdown(*lines) == "ReAct is a method, and so is ReAct, the way of one called Jean-Paul"


def test_rows_of_contents_side_by_side_are_columns_however_few():
    lines = [
        *column(["First ........ 1", "Second ........ 2"], 50),
        *column(["Third ........ 3", "Fourth ........ 4"], 300),
    ]
    shown = markdown(*lines)
    assert [word for word in shown.split() if word.isalpha()] == ["First", "Second", "Third", "Fourth"]


def test_a_stamp_beside_running_text_is_left_out():
    stamp = Line("arXiv:1 [cs] 2020", 10, 200, 30, 500, 20, (Span("arXiv:1 [cs] 2020", 10, 30),), 270)
    assert "arXiv" not in render(convert(page(stamp, *prose("text", 30))))
    assert "arXiv" in render(convert(page(stamp, line("A page with little else", 50, 100))))


def test_turned_text_between_columns_stays():
    label = Line("Share of all", 300, 200, 310, 300, 10, (Span("Share of all", 300, 310),), 270)
    assert "Share of all" in render(convert(page(label, *prose("text", 30, right=290))))


def recognised(texts, left, top):
    return [Line(text, left, top + 14 * n, left + 5 * len(text), top + 14 * n + 10, 10) for n, text in enumerate(texts)]


def test_lines_set_in_after_a_colon_are_items_where_recognition_saw_no_bullets():
    items = ["Introductions", "Review of the whole agenda"]
    lines = [*recognised(["Agenda:"], 50, 100), *recognised(items, 110, 114), *recognised(["Attendees:"], 50, 160)]
    assert markdown(*lines) == "Agenda:\n\n- Introductions\n- Review of the whole agenda\n\nAttendees:"


def test_lines_below_a_colon_at_the_same_place_are_no_items():
    assert "- " not in markdown(*recognised(["Address:", "Main Street 1", "Springfield"], 50, 100))


def test_one_letter_and_a_hyphen_at_a_lines_end_are_a_compound():
    assert markdown(*column(["The question becomes a d-", "dimensional vector"], 50)) == (
        "The question becomes a d-dimensional vector"
    )
