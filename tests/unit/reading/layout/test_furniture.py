from dataclasses import replace

import pytest

from pipeline.reading.layout import bands, furniture
from pipeline.reading.layout.model import Region, Rule, Style
from pipeline.reading.layout.page import convert, document_profile, page_facts, render
from pipeline.reading.layout.rows import Row
from tests.support.layout import BOLD, ITALIC, MONO, column, grid, line, page, prose


def known(pages):
    return document_profile(page_facts(content) for content in pages)


def chapters(head, pages=6, **changes):
    """Return pages with different running heads. `head` returns the lines of one head."""
    return [page(*head(n), *prose(f"page{n}", 20, **({"top": 100} | changes))) for n in range(pages)]


def texts(pages):
    profile = known(pages)
    return [render(convert(content, profile)) for content in pages]


@pytest.mark.parametrize("style", [Style(), BOLD, ITALIC])
def test_a_running_head_with_the_pages_number_is_left_out_though_its_words_differ(style):
    names = ["Fire", "Water", "Earth", "Wind", "Wood", "Iron"]
    pages = chapters(lambda n: [line(names[n], 50, 76, style=style), line(str(40 + n), 380, 76, style=style)])
    for n, text in enumerate(texts(pages)):
        assert names[n] not in text
        assert str(40 + n) not in text
        assert f"page{n} line number 0" in text


def test_roman_page_numbers_count_too():
    numbers = ["vii", "viii", "ix", "x", "xi", "xii"]
    pages = chapters(lambda n: [line(f"{numbers[n]} Preface to part {'abcdef'[n]}", 50, 130, style=BOLD)], top=160)
    assert all("Preface" not in text for text in texts(pages))


def test_a_running_head_in_capitals_needs_no_number():
    names = ["FIRE", "WATER", "EARTH", "WIND"]
    pages = chapters(lambda n: [line(f"THE {names[n // 2]}", 180, 60)], pages=8)
    assert not any("THE " in text for text in texts(pages))


@pytest.mark.parametrize(
    ("size", "style", "names"),
    [
        (11, Style(), ["APPLE PIE", "PUMPKIN SOUP", "FRIED RICE", "ONION TART", "LENTIL STEW"]),
        (11, BOLD, ["APPLE PIE", "PUMPKIN SOUP", "FRIED RICE", "ONION TART", "LENTIL STEW"]),
        (10, ITALIC, ["R> plot(Z)", "Of the kinds of wine", "R> Z[1:3, 2:3]", "Of bread", "A further title"]),
    ],
)
def test_a_title_of_its_own_at_the_top_of_each_page_stays(size, style, names):
    pages = chapters(lambda n: [line(names[n], 60, 60, size, style)], pages=5, top=85)
    profile = known(pages)
    for content, name in zip(pages, names, strict=True):
        assert name in {item.text for item in furniture.split(content, profile)[0]}


def test_numbers_that_follow_each_other_by_chance_make_no_running_heads():
    ends = [3, 4, 90, 17, 55, 56, 8, 71, 33, 20, 64, 12]
    words = "abcdefghijkl"
    pages = chapters(lambda n: [line(f"{words[n]} new thing came up in {ends[n]}", 50, 60)], pages=12, top=85)
    assert all(f"{words[n]} new thing" in text for n, text in enumerate(texts(pages)))


def test_the_first_line_of_text_stays_even_at_the_same_height_on_all_pages():
    pages = chapters(lambda n: [], top=60)
    assert all(f"page{n} line number 0" in text for n, text in enumerate(texts(pages)))


def test_titles_of_slides_stay_where_they_are_all_at_one_height():
    pages = [
        page(
            line(f"{name.upper()} {n}", 60, 40, size=16, style=BOLD),
            *prose(name, 6, size=12, top=120),
            width=800,
            height=450,
        )
        for n, name in enumerate(["first", "second", "third", "fourth"], 1)
    ]
    for n, text in enumerate(texts(pages), 1):
        assert f" {n}\n" in text.split("\n\n")[0] + "\n"


@pytest.mark.parametrize(
    "note",
    [
        "J. Tests, Vol. 37, No. 4, Article 111. Publication date: August 2018",
        "https://doi.org/10.1000/182",
        "© 2020 The Authors. Licensed under CC BY 4.0",
        "Downloaded from an archive on 3 May 2021",
        "Revision 3.1, 12 May 2020",
        "Page 3 of 17",
        "– 3 –",
    ],
)
def test_a_note_at_the_foot_of_a_lone_page_is_left_out(note):
    text = render(convert(page(*prose("text", 30, top=90), line(note, 60, 730, size=8))))
    assert note not in text
    assert "text line number 29" in text


def test_the_last_entry_of_the_references_stays():
    entry = "[12] A. Writer. On tests. Vol. 3, 2020. doi: 10.1000/182"
    text = render(convert(page(*prose("text", 30, top=90), line(entry, 50, 730, size=10))))
    assert "On tests" in text


@pytest.mark.parametrize(
    "last",
    [
        "This was changed again in version 2.1.",
        "sold under the name of Grimm and printed in Leipzig.",
        "as said in Art. 5 of the law of 1998.",
        "see also https://doi.org/10.1000/182 for details.",
        "https://doi.org/10.1000/182.",
        "given in vol. 3 of the same work.",
    ],
)
def test_the_last_line_of_a_paragraph_at_the_top_of_a_page_stays(last):
    pages = [page(*prose("one", 50, top=60)), page(line(last, 50, 60), *prose("two", 40, top=84))]
    assert last in " ".join(item.text for item in furniture.split(pages[1], known([*pages, *pages[:1] * 2]))[0])


@pytest.mark.parametrize(
    "note", ["2 See Art. 5 of the law of 1998.", "* All of it is licensed under the GPL.", "3See vol. 2 of 1998."]
)
def test_footnotes_of_any_content_stay(note):
    pages = [page(*prose("text", 48, top=60), line(note, 60, 740, size=8)), page(*prose("more", 50, top=60))]
    assert note in [item.text for item in furniture.split(pages[0], known([*pages, *pages[1:] * 2]))[0]]


def test_an_entry_in_the_small_type_of_its_list_stays():
    text = page(*prose("text", 50, top=60))
    entries = [line("Tests, Vol. 3, 2020", 50, 60, size=8), *column(["A. Writer. On tests."] * 10, 50, top=74, size=8)]
    body = furniture.split(page(*entries), known([text, page(*entries), text, text]))[0]
    assert "Tests, Vol. 3, 2020" in {item.text for item in body}


def test_a_letters_address_and_date_stay():
    lines = [line("12 Long Street", 350, 60), line("London, 3 May 2020", 350, 72), *prose("Dear", 20, top=140)]
    text = render(convert(page(*lines)))
    assert "12 Long Street" in text
    assert "3 May 2020" in text


def test_line_numbers_of_a_draft_are_left_out():
    text = column([f"some text number {'abcdefghijkl'[n]} that is printed here" for n in range(12)], 80)
    numbers = [line(str(n + 31), 50, 102 + 12 * n, size=6) for n in range(12)]
    assert "35" not in render(convert(page(*numbers, *text)))


def test_numbers_of_table_rows_and_notes_are_not_line_numbers():
    text = page(*prose("text", 50, top=60, size=11))
    table = page(
        *(
            cell
            for n in range(1, 31)
            for cell in (
                line(str(n), 60, 60 + 14 * n, 9),
                line(f"Name {n}x", 120, 60 + 14 * n, 9),
                line("some value that is somewhat longer", 300, 60 + 14 * n, 9),
            )
        )
    )
    notes = page(
        *(
            part
            for n in range(1, 31)
            for part in (
                line(str(n), 50, 100 + 14 * n, 6),
                line(f"See the other book about {'abcde'[n % 5]} by him", 60, 100 + 14 * n),
            )
        )
    )
    profile = known([text, text, text])
    for content in (table, notes):
        assert furniture.split(content, profile)[1] == []


def test_a_header_that_only_the_layout_model_sees_is_left_out_and_a_title_is_not():
    head, title = line("A head of its own", 60, 70, size=9), line("A Title", 60, 70, style=BOLD)
    regions = (Region("header", (50, 60, 400, 90), 0.9),)
    for first, stays in ((head, False), (title, True)):
        content = page(first, *prose("text", 30, top=110))
        assert (first.text in render(convert(content))) or not stays
        seen = type(content)(content.width, content.height, content.lines, regions=regions)
        assert (first.text in render(convert(seen))) == stays


def test_the_model_alone_cannot_make_a_header_of_a_line_in_the_texts_type():
    region = Region("header", (50, 50, 450, 90), 0.9)
    book = chapters(lambda n: [line(str(n + 1), 220, 760)], top=60)
    for text, profile in (("When it is zero, we define", known(book)), ("and so it is.", known([page()]))):
        content = page(line(text, 60, 60), *prose("text", 40, top=110))
        seen = type(content)(content.width, content.height, content.lines, regions=(region,))
        assert text in {item.text for item in furniture.split(seen, profile)[0]}


def test_only_a_page_with_something_apart_at_its_edge_is_unsure():
    plain = page(*prose("text", 50, top=60))
    headed = page(line("A head of its own", 60, 60), *prose("text", 40, top=110))
    assert not furniture.is_unsure(plain, known([plain]))
    assert furniture.is_unsure(headed, known([headed]))
    book = chapters(lambda n: [line(f"Chapter {'abcdef'[n]}", 50, 70), line(str(n + 1), 380, 70)])
    assert not furniture.is_unsure(book[0], known(book))


@pytest.mark.parametrize(("word", "number"), [("(xiv)", 14), ("17", 17), ("Xİİ", 12), ("İ", 1), ("word", 0)])
def test_numbers_of_pages_are_read_in_any_case(word, number):
    assert set(bands.numbers(Row([line(word, 50, 60)]))) == {number} - {0}


def slides(titles):
    return [
        page(line(title, 60, 20, size=16), *prose(f"slide{n}", 6, size=12, top=120), width=800, height=450)
        for n, title in enumerate(titles)
    ]


def test_the_title_of_slides_that_are_shown_in_steps_stays():
    titles = [f"Loops ({n}/3)" for n in (1, 2, 3)] + ["Words", "Values", "Names", "Files"]
    for title, text in zip(titles, texts(slides(titles)), strict=True):
        assert f"# {title}" in text


def test_the_repeated_head_of_most_slides_is_left_out():
    assert not any("Our company" in text for text in texts(slides(["Our company"] * 5 + ["An end"])))


@pytest.mark.parametrize("top", [60, 690])
def test_all_lines_of_a_publishers_note_go_if_one_of_them_has_its_words(top):
    note = column(["Journal of Tests and Trials 12", "Hamburg, January 2020", "ISSN 1234-5678"], 60, top, 8, pitch=10)
    text = render(convert(page(*prose("text", 40, top=120), *note)))
    assert "text line number 39" in text
    assert not any(row.text in text for row in note)


def test_short_footnotes_stay_if_one_of_them_names_a_doi():
    notes = column(["1 A. Writer, On tests, 2020,", "doi: 10.1000/182, and others"], 60, 690, 8, pitch=10)
    text = render(convert(page(*prose("text", 40, top=120), *notes)))
    assert "10.1000/182" in text


def test_a_page_number_inside_of_wide_margins_is_left_out():
    numbered = page(*prose("text", 30, top=190), line("417", 225, 640))
    assert "417" not in render(convert(numbered))
    assert "417" in render(convert(page(*prose("text", 30, top=190), line("417", 225, 552))))


def test_the_layout_model_needs_more_than_its_label_for_a_line_in_the_texts_type():
    region, rule = Region("header", (50, 50, 450, 90), 0.9), Rule(50, 82, 450, 82)
    for text, rules, stays in (("mypackage – A manual", (rule,), False), ("mypackage – A manual", (), True)):
        content = page(line(text, 60, 70), *prose("text", 40, top=110), rules=rules)
        seen = replace(content, regions=(region,))
        assert (text in render(convert(seen))) == stays


def test_a_sections_title_beside_a_running_head_that_pages_share_is_left_out():
    names = ["2.1. Fire", "2.2. Water", "2.3. Earth", "2.4. Wind", "2.5. Wood", "2.6. Iron"]
    pages = chapters(lambda n: [line("Chapter of all things", 50, 76), line(names[n], 320, 76)])
    assert not any(name in text for name, text in zip(names, texts(pages), strict=True))


def test_a_heading_beside_a_label_that_pages_share_stays():
    names = ["Hindsight", "Foresight", "Insight", "Oversight", "Eyesight", "Limelight"]
    pages = chapters(lambda n: [line(names[n], 50, 76, style=BOLD), line("Unlockable", 320, 76)])
    pages = [
        replace(content, lines=(*content.lines, line(f"{names[n]}s", 50, 400, style=BOLD)))
        for n, content in enumerate(pages)
    ]
    assert all(name in text for name, text in zip(names, texts(pages), strict=True))


def test_numbers_beside_the_lines_of_a_listing_are_not_part_of_its_code():
    """Small numbers are lines of their own or part of the lines of code; a table's numbers are further apart."""
    code = ["begin", "    x = 1;", "    y = x;", "end"]
    lines = [
        line(text.strip(), 80 + 24 * text.startswith(" "), 100 + 12 * n, style=MONO) for n, text in enumerate(code)
    ]
    numbers = [line(str(n), 53 - 3 * len(str(n)), 104 + 12 * (n - 9), size=6) for n in range(9, 13)]
    joined = line("12 end", 47, 136, size=6)
    joined = joined._replace(spans=(joined.spans[0], *lines[3].spans), size=10, top=136, bottom=146, right=100)
    for listing in ([*lines, *numbers], [*lines[:3], *numbers[:3], joined]):
        content = page(*listing, *prose("text", 8, top=200))
        assert "```\nbegin\n    x = 1;\n    y = x;\nend\n```" in render(convert(content)).replace("     ", "    ")
        _, away = furniture.split(content, document_profile([page_facts(content)]))
        assert [number.text for number in away] == ["9", "10", "11", "12"]
    for pitch, between in ((18, []), (12, ["is"])):
        rows = [
            cell
            for n in range(4)
            for cell in (
                line(str(n), 50, 300 + pitch * n),
                *(line(text, 80, 300 + pitch * n) for text in between),
                line(f"cmd{n}", 120, 300 + pitch * n, style=MONO),
            )
        ]
        assert furniture.split(page(*rows), document_profile([page_facts(page(*rows))]))[1] == []


def test_the_head_and_the_last_row_of_a_table_on_each_page_stay_and_a_head_in_a_frame_does_not():
    """The head is in two lines, the upper one apart; a number stands alone in the last row, where page numbers do."""
    xs, tops = (50, 170, 290, 410), range(90, 750, 30)
    heads = [line(text, x + 5, top) for top in (50, 66) for text, x in zip(("Votes", "Active"), xs[1:], strict=False)]
    pages = [
        page(
            *heads,
            *(line(f"place{n}x{top}", 55, top + 5) for top in tops[:-1]),
            line(str(155 + 7 * n), 175, tops[-1] + 5),
            rules=grid(xs, (45, *tops, 750)),
        )
        for n in range(5)
    ]
    for n, text in enumerate(texts(pages)):
        assert text.count("Votes") == 2
        assert f"| {155 + 7 * n} |" in text
    framed = [replace(page, rules=tuple(grid((20, 25, 575, 580), (20, 780)))) for page in chapters(lambda _: heads)]
    assert not any("Votes" in text for text in texts(framed))


def test_the_large_title_that_all_pages_share_stays_on_the_first():
    pages = chapters(lambda _: [line("OFFICIAL RESULTS", 150, 50, size=14, style=BOLD)])
    first, *others = texts([replace(pages[0], is_first=True), *pages[1:]])
    assert first.startswith("# OFFICIAL RESULTS\n")
    assert not any("OFFICIAL" in text for text in others)


def test_the_shared_head_of_a_table_without_rules_stays_and_a_running_head_of_many_parts_does_not():
    heads = [line(text, 50 + 120 * n, 60) for n, text in enumerate(("Place", "Precincts", "Active", "Total"))]
    pages = [
        page(*heads, *(line(f"{n}{top}{x}", x, top) for top in range(90, 740, 14) for x in range(50, 500, 120)))
        for n in range(5)
    ]
    assert all("Precincts" in text for text in texts(pages))
    assert not any("Precincts" in text for text in texts(chapters(lambda _: heads)))
