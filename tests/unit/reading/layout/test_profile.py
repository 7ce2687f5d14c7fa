import json

import pytest

from pipeline.reading.layout.compounds import Vocabulary, Words
from pipeline.reading.layout.model import Heading, Line, Style, plain
from pipeline.reading.layout.page import DocumentProfile, convert, document_profile, page_facts, render
from tests.support.layout import BOLD, column, line, page, prose


def book(pages, header="The Book of Tests"):
    """Return pages with a running head, text under headings of two levels, and a number at the foot."""
    return [
        page(
            line(header, 50, 30, size=9),
            line(f"Chapter {n}", 50, 90, size=18, style=BOLD),
            *prose(f"page{n}", 20, top=130),
            line(f"Section of {n}", 50, 390, size=12, style=BOLD),
            *prose(f"more{n}", 20, top=410),
            line(str(n + 1), 290, 770),
        )
        for n in range(pages)
    ]


def known(pages):
    return document_profile(page_facts(content) for content in pages)


def test_headings_have_the_same_level_on_every_page():
    pages = book(4)
    profile = known(pages)
    for content in pages:
        levels = {plain(b.runs).split()[0]: b.level for b in convert(content, profile) if isinstance(b, Heading)}
        assert levels == {"Chapter": 1, "Section": 2}


def test_a_page_with_small_headings_alone_does_not_promote_them():
    pages = book(4)
    lone = page(line("Section alone", 50, 90, size=12, style=BOLD), *prose("text", 20, top=110))
    assert [b.level for b in convert(lone, known(pages)) if isinstance(b, Heading)] == [2]
    assert [b.level for b in convert(lone) if isinstance(b, Heading)] == [1]


def test_numbers_deepen_headings_of_one_style():
    pages = [
        page(
            line("2 Method", 50, 90, style=BOLD),
            *prose("a", 9, top=110),
            line("2.1 Data", 50, 230, style=BOLD),
            *prose("b", 9, top=250),
        )
    ]
    assert [b.level for b in convert(pages[0], known(pages)) if isinstance(b, Heading)] == [1, 2]


def test_text_repeated_at_the_edges_of_neighbouring_pages_is_left_out():
    pages = book(5)
    for content in pages:
        text = render(convert(content, known(pages)))
        assert "The Book of Tests" not in text
        assert not text.rstrip().splitlines()[-1].strip().isdigit()
        assert "Chapter" in text


def test_a_setting_keeps_it():
    pages = book(5)
    assert "The Book of Tests" in render(convert(pages[0], known(pages), keep_furniture=True))


def test_numbers_in_a_repeated_line_do_not_matter():
    pages = [page(*prose(f"p{n}", 20), line(f"Report 2024 | Sheet {n} of 9", 200, 760)) for n in range(4)]
    assert "Sheet" not in render(convert(pages[1], known(pages)))


def test_text_repeated_in_the_middle_of_pages_stays():
    pages = [page(*prose(f"p{n}", 20), line("Repeated remark.", 50, 400)) for n in range(5)]
    assert "Repeated remark." in render(convert(pages[2], known(pages)))


def test_text_repeated_below_a_pages_own_line_stays():
    names = ("Rivers", "Mountains", "Seas", "Winds")
    pages = [
        page(line(name, 50, 20), line(f"Question {n}", 50, 40), *prose(f"p{n}", 20, top=130))
        for n, name in enumerate(names)
    ]
    for content in pages:
        assert "Question" in render(convert(content, known(pages)))


def test_a_page_of_repeated_lines_alone_keeps_them():
    pages = [page(line(f"Slide {n}", 50, 20)) for n in range(1, 5)]
    assert [render(convert(content, known(pages))) for content in pages] == [f"Slide {n}" for n in range(1, 5)]


def test_text_shared_by_distant_pages_stays():
    pages = [
        page(line("Summary" if n in {0, 10, 20} else f"Other {chr(97 + n)}", 50, 40, size=9), *prose(f"p{n}", 20))
        for n in range(24)
    ]
    assert "Summary" in render(convert(pages[10], known(pages)))


def test_a_number_alone_at_the_foot_is_left_out_without_a_profile():
    text = render(convert(page(*prose("text", 20), line("- 97 -", 290, 770))))
    assert "97" not in text


def test_a_number_that_belongs_to_the_text_stays():
    assert "1984" in render(convert(page(*prose("text", 55), line("1984", 50, 760))))
    assert "42" in render(convert(page(line("42", 50, 400), *prose("text", 5))))


def test_a_watermark_is_left_out():
    mark = Line("DRAFT", 100, 200, 500, 600, 90, (), -1)
    assert "DRAFT" not in render(convert(page(mark, *prose("text", 20))))
    assert "DRAFT" in render(convert(page(mark, *prose("text", 20)), keep_furniture=True))


def test_a_profile_stays_small_for_ten_thousand_pages():
    def facts():
        for n in range(10_000):
            yield page_facts(
                page(
                    line(f"Part {chr(97 + n // 20 % 26)}{chr(97 + n // 520 % 26)}", 50, 30),
                    *prose(f"x{n}", 3),
                    line(str(n), 290, 770),
                )
            )

    saved = json.dumps(document_profile(facts()).to_dict())
    assert len(saved) < 20_000
    assert DocumentProfile.from_dict(json.loads(saved)).pages == 10_000


def test_a_stored_profile_may_hold_more_than_is_known():
    assert DocumentProfile.from_dict({"pages": 3, "of_the_future": 1}).pages == 3


@pytest.mark.parametrize("pages", [0, 1])
def test_hardly_any_pages_give_a_profile_too(pages):
    assert known(book(pages)).pages == pages


def test_long_bold_text_is_no_heading():
    lines = [line("Bold words that end as a sentence does.", 50, 80, style=BOLD), *prose("text", 20)]
    assert not any(isinstance(block, Heading) for block in convert(page(*lines)))


def test_captions_are_no_headings():
    lines = [line("Table 1: Results of all runs", 50, 80, style=BOLD), *prose("text", 20)]
    assert not any(isinstance(block, Heading) for block in convert(page(*lines)))


def headings(*lines):
    return [(plain(block.runs), block.level) for block in convert(page(*lines)) if isinstance(block, Heading)]


def test_a_title_over_two_centred_lines_is_one_heading_above_the_sections():
    title = [line("A Title That Is Too Long for", 100, 40, 16, BOLD), line("One Line", 180, 60, 16, BOLD)]
    texts = headings(*title, line("1 Introduction", 50, 110, 12, BOLD), *prose("text", 20, top=130))
    assert texts == [("A Title That Is Too Long for One Line", 1), ("1 Introduction", 2)]


def test_numbered_headings_below_each_other_are_two():
    lines = [line("2 Method", 50, 40, 14, BOLD), line("2.1 Data", 50, 59, 14, BOLD)]
    assert [text for text, _ in headings(*lines, *prose("text", 20))] == ["2 Method", "2.1 Data"]


def test_a_bold_heading_keeps_its_rank_with_a_label_at_the_end_of_its_row():
    row = [line("The Disciples", 50, 80, style=BOLD), line("Creatures", 355, 80, style=BOLD)]
    lines = [*prose("before", 4, top=20), *row, *prose("text", 20)]
    assert headings(*lines) == [("The Disciples", 1)]
    assert "**Creatures**" in render(convert(page(*lines)))


def test_bold_cells_above_others_are_no_heading():
    cells = [line(text, left, top, style=BOLD) for top in (80, 92) for text, left in (("Name", 50), ("Sum", 385))]
    assert headings(*cells, *prose("text", 20, top=120)) == []


def lines_page(*texts):
    return page(*(line(text, 50, 100 + 12 * n) for n, text in enumerate(texts)))


def test_a_hyphen_at_a_lines_end_follows_the_documents_other_pages():
    broken = lines_page("A simple dual-", "encoder in a frame-", "work of ours")
    others = [lines_page("The dual-encoder in this framework and its frame of work")]
    shown = render(convert(broken, known([broken, *others])))
    assert shown == "A simple dual-encoder in a framework of ours"


def test_a_document_that_hyphenates_no_words_keeps_every_hyphen():
    firsts = ("axe-", "gold-", "well-", "grim-")
    pages = [lines_page(f"An {first}", "trimmed thing that is", f"{first}trimmed") for first in firsts]
    pages.append(lines_page("a never-", "ending story"))
    assert render(convert(pages[-1], known(pages))) == "a never-ending story"


def test_a_profile_of_long_ago_knows_no_compounds():
    saved = known(book(3)).to_dict()
    del saved["written"]
    assert DocumentProfile.from_dict(saved).written == frozenset()


def test_the_kept_compounds_do_not_depend_on_the_order_of_sets():
    """Each process orders sets by its own seed."""
    names = [f"alpha-{chr(97 + number // 26) * 3}{chr(97 + number % 26) * 3}" for number in range(620)]

    def kept(of_a_page):
        vocabulary = Vocabulary()
        for begin in range(0, len(names), 31):
            vocabulary.add(Words(compounds=of_a_page(names[begin : begin + 31])))
        return vocabulary.written()

    assert kept(list) == kept(lambda page: page[::-1])
    assert len(kept(list)) == 600


def test_compounds_of_a_document_are_bounded():
    letters = "abcdefghijklmnopqrstuvwxyz"
    pages = [lines_page(*(f"{a}{b}word-{a}{c}more" for b in letters for c in "xyz")) for a in letters]
    assert len(json.dumps(known(pages).to_dict())) < 16_000


def levels_of(pages):
    profile = known(pages)
    return [(plain(b.runs), b.level) for p in pages for b in convert(p, profile) if isinstance(b, Heading)]


SANS = Style(font="Sans")
SERIF = Style(font="Serif")


def sections(style, size=10.0, titles=("1.1 Data", "1.2 Results", "2 Talk", "2.1 More")):
    """Return pages with a heading between two stretches of text."""
    return [
        page(
            *column([f"some text {n} that goes on and on and" for n in range(10)], 50, 90, style=SERIF),
            line(title, 50, 230, size=size, style=style),
            *column([f"more text {n} that goes on and on and" for n in range(10)], 50, 260, style=SERIF),
        )
        for title in titles
    ]


def test_numbers_decide_the_level_and_no_level_is_left_out():
    pages = [
        page(
            *([line("A Title", 50, 40, size=24, style=BOLD)] if n == 1 else []),
            line(f"{n} Chapter", 50, 90, size=18, style=BOLD),
            *prose("a", 9, top=130),
            line(f"{n}.1 Part", 50, 260, size=14, style=BOLD),
            *prose("b", 9, top=290),
            line(f"{n}.1.1 Piece", 50, 420, size=12, style=BOLD),
            *prose("c", 9, top=450),
        )
        for n in range(1, 5)
    ]
    contents = [
        page(
            *(line(f"{n} Chapter", 50, 80 + 40 * n, size=12, style=BOLD) for n in range(1, 9)),
            *(line(str(n), 500, 80 + 40 * n, size=12) for n in range(1, 9)),
        )
    ]
    profile = known(contents + pages)
    levels = [(plain(b.runs).split()[-1], b.level) for b in convert(pages[0], profile) if isinstance(b, Heading)]
    assert levels == [("Title", 1), ("Chapter", 2), ("Part", 3), ("Piece", 4)]


def test_numbered_lines_in_another_font_are_headings_though_they_are_as_large_as_the_text():
    levels = levels_of(sections(SANS))
    assert [text for text, _ in levels] == ["1.1 Data", "1.2 Results", "2 Talk", "2.1 More"]
    assert levels[2][1] == levels[0][1] - 1


def test_lines_in_capitals_that_stand_alone_are_headings():
    names = ("INTRODUCTION", "RELATED WORK", "METHOD", "RESULTS")
    assert [text for text, _ in levels_of(sections(SERIF, titles=names))] == list(names)


@pytest.mark.parametrize("title", ["Then it goes on.", "x = 17, y = 4", "a word"])
def test_other_lines_in_another_font_are_not_headings(title):
    assert levels_of(sections(SANS, titles=(title,) * 4)) == []


def test_lines_in_italics_that_have_no_number_are_not_headings():
    assert levels_of(sections(Style(italic=True, font="Serif"), titles=("A remark", "A note", "One more", "End"))) == []


def test_a_bold_line_of_contents_with_its_page_is_not_a_heading():
    entry = [line("2 Method", 50, 80, style=BOLD), line("17", 388, 80, style=BOLD)]
    assert headings(*prose("before", 4, top=20), *entry, *prose("text", 20)) == []
    entry = [line("Method", 50, 80, 16, BOLD), line("xvii", 368, 80, 16, BOLD)]
    assert headings(*entry, *prose("text", 20)) == []


def test_a_few_dots_before_a_page_make_a_line_of_contents_and_an_ellipsis_does_not():
    assert headings(line("Appendix A Licence . . 76", 50, 80, 16, BOLD), *prose("text", 20)) == []
    assert len(headings(line("And then . . . what", 50, 80, 16, BOLD), *prose("text", 20))) == 1


def test_a_name_below_a_title_is_not_a_heading_where_headings_are_bold():
    front = page(line("A Guide", 180, 60, 18), line("Some Body", 180, 90, 12), *prose("text", 20, top=150))
    texts = {plain(b.runs) for b in convert(front, known([front, *book(4)])) if isinstance(b, Heading)}
    assert texts == {"A Guide"}


def test_a_numbered_heading_may_have_code_in_it():
    title = line("2.1 Use of run() here", 50, 90, style=BOLD)
    spans = tuple(span._replace(style=Style(mono=True)) if "(" in span.text else span for span in title.spans)
    more = [line("2 Method", 50, 60, style=BOLD), line("2.2 Ends", 50, 390, style=BOLD)]
    assert len(headings(*more, title._replace(spans=spans), *prose("text", 20, top=110), *prose("b", 9, top=420))) == 3
