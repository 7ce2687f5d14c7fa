"""The reading order of lines with right-to-left letters, from the places of their glyphs."""

from collections.abc import Sequence

import pytest

from pipeline.reading.layout.model import PLAIN, Box, Rule, Span
from pipeline.reading.layout.page import Line, PageContent, convert, render
from pipeline.reading.pdf import bidi
from pipeline.reading.pdf.words import Word

_SIZE = 10.0


def _seen(display: str) -> tuple[str, list[bidi.Piece]]:
    """Return a possible text of PDFium, and its pieces, for glyphs in this order from left to right."""
    places: dict[int, float] = {index: 5.0 * index for index in range(len(display))}
    pieces = []
    for part in bidi.parts(display, 0, len(display)):
        text = display[part.start : part.end]
        text = text[::-1] if part.kind == "right" else text
        word = Word(text, places[part.start], 0, places[part.end - 1] + 5, 10, _SIZE, PLAIN, 0, spaced=True)
        pieces.append(bidi.Piece(word, part.kind, part.start, part.end))
    return display, pieces


def _read(display: str, *, leftwards: bool = True) -> str:
    text, pieces = _seen(display)
    words = bidi.read_order(pieces, text, leftwards=leftwards)
    return "".join(f" {word.text}" if word.spaced else word.text for word in words).strip()


@pytest.mark.parametrize(
    ("display", "reading"),
    [
        ("םולש םלוע", "עולם שלום"),
        ("org.example רתא", "אתר org.example"),
        (".beta-2.txt ץבוקה", "הקובץ beta-2.txt."),
        ("12/03/1998 ךיראתב", "בתאריך 12/03/1998"),
        ("2023-10-07 ךיראתב", "בתאריך 2023-10-07"),
        ("07-10-2023 خيراتب", "بتاريخ 2023-10-07"),
        ("20 10 םירפסמ", "מספרים 10 20"),
        ("1,250.75 לש", "של 1,250.75"),
        ("%50 ةبسنب", "بنسبة 50%"),
        ("ץבק (machine learning) הדימל", "למידה (machine learning) קבץ"),
        ("f(x) היצקנופ", "פונקציה f(x)"),
        ("++C תפש", "שפת C++"),
        ("C++ תפש", "שפת C++"),
        ("iPhone 12 Pro רישכמ", "מכשיר iPhone 12 Pro"),
        ("תרתוכ .١", "١. כותרת"),
        (".([4] םג ואר)", "(ראו גם [4])."),
        ("«صن»", "«نص»"),
        ("» صن «", "« نص »"),
        ("طقف 1,200$ رعسلا", "السعر $1,200 فقط"),
        ("طقف $1,200 رعسلا", "السعر 1,200$ فقط"),
        ("דבלב $1,200 ריחמ", "מחיר $1,200 בלבד"),
        ("ناموت ۱٬۲۰۰ تمیق", "قیمت ۱٬۲۰۰ تومان"),
        ("لاس رد ٪۳٫۵ خرن", "نرخ ۳٫۵٪ در سال"),
        ("حاتم v2.0-beta رادصإ", "إصدار v2.0-beta متاح"),
        ("םויה 25°C", "25°C היום"),
        ("ןאכ #5 רפסמ", "מספר #5 כאן"),
        ("ןאכמ km 5 קחרמ", "מרחק 5 km מכאן"),
        ("הדסונ (IBM (Big Blue תרבח", "חברת IBM (Big Blue) נוסדה"),
        ("הדסונ IBM (Big Blue) תרבח", "חברת IBM (Big Blue) נוסדה"),
    ],
)
def test_numbers_and_latin_words_keep_their_order_in_lines_read_leftwards(display: str, reading: str) -> None:
    assert _read(display) == reading


def test_words_read_leftwards_in_an_english_line_are_turned_among_themselves() -> None:
    assert _read("The word םולש םלוע means (יה) hello.", leftwards=False) == "The word עולם שלום means (הי) hello."


def test_mirrored_brackets_open_and_close_as_their_places_say() -> None:
    assert _read(")ןושאר קלח( ךמסמ") == _read("(ןושאר קלח) ךמסמ") == "מסמך (חלק ראשון)"


def test_a_list_number_alone_is_read_leftwards_on_a_page_of_such_text() -> None:
    assert bidi.concerns(".١", leftwards=True)
    assert not bidi.concerns("3.1", leftwards=False)
    assert not bidi.concerns("xelatex myfile", leftwards=True)
    assert _read(".١") == "١."


def test_letters_that_are_apart_but_one_word_get_a_mark_in_persian_only() -> None:
    def joined(first: str, second: str, more: str) -> str:
        text = f"{first} {second}{more}"
        boxes = [(50.0, 80.0, first, 0), (20.0, 50.0, second, len(first) + 1)]
        pieces = [
            bidi.Piece(Word(word, left, 0, right, 10, _SIZE, PLAIN, 0, spaced=True), "right", at, at + len(word))
            for left, right, word, at in reversed(boxes)
        ]
        return "".join(word.text for word in bidi.read_order(pieces, text, leftwards=True))

    assert joined("می", "شود", " گل") == "می\u200cشود"
    assert joined("کار", "ها", "") == "کارها"
    assert joined("ثانو", "ية", "") == "ثانوية"


def test_presentation_forms_stretched_words_and_controls_become_plain_letters() -> None:
    assert bidi.normalised("\ufefb\ufee3\ufee6") == "لامن"
    assert bidi.normalised("سـلـام") == "سلام"
    assert bidi.normalised("١٤٤٥ هـ") == "١٤٤٥ هـ"
    assert bidi.normalised("\ufb2a\u200f") == "ש\u05c1"


def test_letters_are_put_in_the_order_of_their_places_and_marks_after_their_letters() -> None:
    text = "ברשא\u05c1\u05b4ית"  # as PDFium returns it for a font whose glyphs combine a letter with its marks
    lefts = {0: 70, 1: 60, 2: 45, 3: 50, 4: 41, 5: 43, 6: 30, 7: 20}
    rights = {0: 80, 1: 70, 2: 47, 3: 60, 4: 43, 5: 45, 6: 40, 7: 30}

    def box(index: int) -> Box:
        return (lefts[index], 0.0, rights[index], 10.0)

    piece = bidi.Piece(Word(text, 20, 0, 80, 10, _SIZE, PLAIN, 0, spaced=True), "right", 0, len(text))
    (ordered,) = bidi.spelled(text, [piece], box)

    assert ordered.word.text == "בראש\u05c1\u05b4ית"


def _line(text: str, left: float, top: float, right: float, words: Sequence[Span] = ()) -> Line:
    return Line(text, left, top, right, top + 12, 10.0, tuple(words) or (Span(text, left, right),))


def test_paragraphs_of_a_page_read_leftwards_begin_on_the_right() -> None:
    lines = [
        _line("השורה הראשונה של הפסקה מתחילה מעט פנימה מן השוליים", 60, 100, 480),
        _line("והשורה השנייה מגיעה עד לשוליים של הדף כולו ואז", 60, 114, 500),
        _line("נגמרת", 460, 128, 500),
        _line("הפסקה השנייה מתחילה גם היא מעט פנימה מן השוליים", 60, 142, 480),
        _line("ומסתיימת בשורה הזאת שמגיעה עד השוליים של הדף", 60, 156, 500),
    ]
    blocks = convert(PageContent(560, 800, tuple(lines)))

    assert [render([block])[:10] for block in blocks] == ["השורה הראש", "הפסקה השני"]
    assert blocks[0].box == (60, 100, 500, 140)


def test_the_right_column_of_a_page_read_leftwards_comes_first() -> None:
    def column(name: str, left: float) -> list[Line]:
        return [_line(f"{name} שורה מספר {n} של העמודה הזאת", left, 100 + 14 * n, left + 200) for n in range(9)]

    text = render(convert(PageContent(500, 700, (*column("שמאל", 40), *column("ימין", 270)))))

    assert text.index("ימין שורה מספר 8") < text.index("שמאל שורה מספר 0")


def test_the_rightmost_column_of_a_table_comes_first_and_its_latin_cells_keep_their_order() -> None:
    rows = [("שם", "כמות"), ("USB Cable", "3"), ("HDMI Cable", "12"), ("תפוחים", "7")]
    lines, rules = [_line("רשימת המוצרים שנמכרו בשנה שעברה", 100, 60, 400)], []
    for n, (name, count) in enumerate(rows):
        top = 100 + 20 * n
        words = name.split()
        lines.append(
            _line(name, 300, top, 380, [Span(word, 300 + 40 * i, 335 + 40 * i) for i, word in enumerate(words)])
        )
        lines.append(_line(count, 220, top, 240))
    rules += [Rule(200, 96 + 20 * n, 400, 96 + 20 * n) for n in range(5)]
    rules += [Rule(x, 96, x, 176) for x in (200, 280, 400)]

    text = render(convert(PageContent(500, 700, tuple(lines), tuple(rules))))

    assert "| שם | כמות |" in text
    assert "| USB Cable | 3 |" in text


def test_an_english_paragraph_on_a_page_read_leftwards_is_laid_out_by_its_own_margins() -> None:
    hebrew = [_line(f"שורה בעברית מספר {n} על פני כל הדף הזה עד הסוף ממש", 60, 60 + 14 * n, 500) for n in range(9)]
    english = [
        _line("The first line of an English paragraph that fills the whole width", 60, 220, 500),
        _line("of the page, which is followed by a second one and then by a last", 60, 234, 498),
        _line("short one.", 60, 248, 110),
    ]
    text = render(convert(PageContent(560, 800, (*hebrew, *english))))

    assert "whole width of the page, which is followed by a second one and then by a last short one." in text
