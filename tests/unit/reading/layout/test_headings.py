"""Which lines are headings. tests/unit/reading/layout/test_profile.py has the levels of a document."""

from dataclasses import replace

import pytest

from pipeline.reading.layout.model import PLAIN, Line, Region
from pipeline.reading.layout.page import convert, render
from tests.support.layout import BOLD, ITALIC, column, line, page, prose


def headings(*lines):
    text = render(convert(page(*lines), keep_furniture=True))
    return [part for part in text.split("\n\n") if part.startswith("#")]


def above_text(text, size=10.0, style=BOLD):
    return headings(*prose("first", 12, top=60), line(text, 50, 230, size, style), *prose("second", 20, top=260))


@pytest.mark.parametrize("text", ["Note", "WARNING!", "Important:", "Hinweis", "注意"])
def test_the_word_over_a_notice_is_not_a_heading(text):
    assert above_text(text, size=12) == []
    assert above_text(f"{text} of the authors", size=12) != []


@pytest.mark.parametrize("text", ["Figure 2-7: All parts", "Table A.1", "Tab. IV", "Listing 3. A loop", "Fig. 12"])
def test_captions_with_any_number_are_not_headings(text):
    assert above_text(text) == []


@pytest.mark.parametrize("text", ["Table of contents", "Figures and numbers", "Chart a course"])
def test_words_that_begin_like_captions_are_headings(text):
    assert above_text(text) == [f"# {text}"]


@pytest.mark.parametrize(
    "text", ["someone@example.org", "<https://example.org/about>", "A. Writer a.writer@example.org"]
)
def test_addresses_are_not_headings_however_large(text):
    assert above_text(text, size=14) == []


@pytest.mark.parametrize(
    "text", ["26th September 2006", "Printed April 16, 2004", "1 de agosto de 2017", "Released 2020/01/13"]
)
def test_plain_dates_are_not_headings(text):
    assert above_text(text, size=12, style=PLAIN) == []
    assert above_text(text, size=12) != []
    assert above_text(f"Marketing in {text}", size=12, style=PLAIN) != []


def test_centred_names_below_a_title_are_not_headings():
    title = line("The Science of Tests", 130, 60, size=18, right=320)
    names = [
        line("Anna Writer", 185, 90, size=12, right=265),
        line("University of Tests", 165, 106, size=12, right=285),
    ]
    assert headings(title, *names, *prose("text", 30, top=150)) == ["# The Science of Tests"]


def test_a_bold_term_above_its_indented_definition_is_not_a_heading():
    text = [*prose("first", 4, top=60), line("verbose", 50, 120, style=BOLD)]
    assert headings(*text, *prose("second", 3, left=75, top=134), *prose("third", 5, top=190)) == []
    assert headings(*text, *prose("second", 3, top=134), *prose("third", 5, top=190)) == ["# verbose"]
    quotation = prose("second", 3, left=75, top=134, right=375)
    assert headings(*text, *quotation, *prose("third", 5, top=190)) == ["# verbose"]


def test_bold_items_one_below_the_other_are_a_list():
    items = column(["1. Open the lid", "2. Remove the fuse", "3. Close the lid"], 50, top=120, style=BOLD, pitch=16)
    assert headings(*prose("first", 4, top=60), *items, *prose("second", 20, top=190)) == []


@pytest.mark.parametrize(
    "text", ["3.2 Setup", "1.4.2. How to begin", "§ 12 Scope", "§ 5.", "Article 7", "ARTICLE IV – Duties", "Annex B"]
)
def test_a_numbered_line_in_the_texts_type_that_stands_alone_is_a_heading(text):
    assert above_text(text, style=PLAIN) == [f"# {text}"]


@pytest.mark.parametrize("text", ["3.2 metres high", "Article 7 says so", "Section 3 of the law", "2.5 of them stay."])
def test_a_sentence_with_a_number_is_not_a_heading(text):
    assert above_text(text, style=PLAIN) == []


def test_numbered_lines_without_text_between_them_are_not_headings():
    lines = column(["1.1 Scope", "1.2 Words", "1.3 Rules"], 50, top=130, pitch=24)
    assert headings(*prose("first", 4, top=60), *lines) == []


@pytest.mark.parametrize("labels", [["Chapter 9"], ["CHAPTER", "NINE"], ["Kapitel IX."]])
def test_a_chapters_label_and_its_title_are_one_heading(labels):
    lines = column([*labels, "The Art of Tests"], 50, top=60, size=18, style=BOLD, pitch=40)
    assert headings(*lines, *prose("text", 30, top=200)) == [f"# {' '.join(labels)} The Art of Tests"]
    alone = column(labels, 50, top=60, size=18, style=BOLD, pitch=40)
    assert headings(*alone, *prose("text", 30, top=200)) == [f"# {' '.join(labels)}"]


def test_a_large_bold_title_may_end_with_a_full_stop():
    texts = ["The art of tests.", "Tests help. So do you.", "of tests,"]
    found = [headings(line(text, 50, 60, 18, BOLD), *prose("text", 30, top=200)) for text in texts]
    assert found == [["# The art of tests."], [], []]


def recognised(text, top):
    return Line(text, 50, top, 50 + 5 * len(text), top + 10, 10)


def test_a_recognised_line_in_the_size_of_the_text_is_a_heading_if_the_layout_model_sees_a_title():
    text = [recognised(f"Line number {n} of a text which goes on and", 130 + 12 * n) for n in range(12)]
    title = recognised("The first night at sea", 100)
    content = page(title, *text)
    seen = [Region("title", (45, 95, 300, 115), score) for score in (0.9, 0.4)]
    assert render(convert(replace(content, regions=(seen[0],)))).startswith("## The first night at sea\n\nLine")
    assert "#" not in render(convert(replace(content, regions=(seen[1],))))


@pytest.mark.parametrize(("right", "size", "found"), [(90, 10, True), (200, 10, False), (90, 16, True)])
def test_the_number_of_a_heading_may_be_a_tabulator_away_from_its_title(right, size, found):
    style = BOLD if size == 10 else PLAIN
    number = line("2.1", 50, 230, size, style, right=50 + 1.5 * size)
    title = line("Packages and archives", right + 1.5 * size - 15, 230, size, style)
    lines = [*prose("first", 12, top=60), number, title, *prose("second", 20, top=260)]
    assert (headings(*lines) == ["# 2.1 Packages and archives"]) is found


def test_lines_in_italics_that_always_stand_alone_are_headings():
    titles = ["Data structure", "Test statistics", "Practical use"]
    lines = [
        each
        for number, title in enumerate(titles)
        for each in (
            line(title, 50, 60 + 200 * number, style=ITALIC),
            *prose(f"text{number}", 10, top=84 + 200 * number),
        )
    ]
    assert headings(*lines) == [f"# {title}" for title in titles]
    stressed = line("Stressed", 50, 660, style=ITALIC)
    assert headings(*lines, stressed, line("words in a row", 92, 660)) == []


@pytest.mark.parametrize(
    ("size", "weight", "shown"),
    [(10, 1.6, "## Results"), (12, 1.0, "# Results"), (10, 1.0, "Results"), (12, 0.0, "Results")],
)
def test_a_recognised_line_heavier_or_larger_than_the_text_below_it_is_a_heading(size, weight, shown):
    text = [
        recognised(f"Line number {n} of a text which goes on and", 130 + 12 * n)._replace(weight=1.0) for n in range(12)
    ]
    title = recognised("Results", 100)._replace(size=size, weight=weight)
    assert render(convert(page(title, *text))).startswith(f"{shown}\n\nLine")
