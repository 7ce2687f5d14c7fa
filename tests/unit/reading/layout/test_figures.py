"""Words in and around drawings stay with the figure: one block, not a heading, a table, or text beside it."""

from dataclasses import replace

from pipeline.reading.layout import figures
from pipeline.reading.layout.assembly import with_pictures
from pipeline.reading.layout.model import Line, Picture, Region, Rule
from pipeline.reading.layout.page import as_dicts, convert, render
from pipeline.reading.layout.sections import sections
from tests.support.layout import BOLD, line, page, prose

BOXES = [(60, 120, 140, 160), (200, 120, 280, 160), (60, 220, 140, 260), (200, 220, 280, 260)]
ARROWS = ((140, 138, 200, 142), (96, 160, 104, 220), (140, 160, 200, 220))
DIAGRAM = [
    line("Read the", 70, 128),
    line("document", 70, 139),
    line("Find lines", 210, 135),
    line("Find rules", 70, 235),
    line("Tables", 210, 235),
]
LABELS = "Read the document Find lines\nFind rules Tables"


def diagram(*others, regions=()):
    return replace(page(*DIAGRAM, *others, fills=BOXES), shapes=ARROWS, regions=tuple(regions))


def figure(content):
    return next(block for block in convert(content) if isinstance(block, Picture))


def test_words_of_a_diagram_are_one_block_before_its_caption_and_beside_no_text():
    caption = line("Figure 1: How it is done", 60, 275)
    left = [*prose("above", 4, 50, 60, right=290), caption, *prose("left", 20, 50, 300, right=290)]
    right = prose("right", 38, 310, 60, right=550)
    content = diagram(*left, *right)
    text = render(convert(content))
    assert f"\n\n{LABELS}\n\nFigure 1: How it is done" in text
    assert text.index("above line number 3") < text.index("Read the") < text.index("left line number 0")
    assert text.index("left line number 19") < text.index("right line number 0")


def test_axis_labels_and_vertical_text_belong_to_a_plot():
    ticks = [line(str(10 * n), 60 + 50 * n, 264, size=8) for n in range(5)]
    side = Line("Speed", 40, 150, 50, 200, 10, (), 270)
    content = diagram(*ticks, side, line("Time in s", 140, 276, size=8), *prose("below", 12, 50, 340))
    plot = next(block for block in convert(content, keep_furniture=True) if isinstance(block, Picture))
    assert plot.text.splitlines()[-3:] == ["0 10 20 30 40", "Time in s", "Speed"]


def test_a_caption_or_a_heading_right_below_a_figure_is_not_its_label():
    caption, heading = line("Fig. 2. Steps", 60, 264), line("Results", 60, 277, style=BOLD)
    assert figure(diagram(caption, heading, *prose("below", 12, 50, 300))).text == LABELS


def test_a_box_with_running_text_and_icons_is_not_a_figure():
    text = prose("text", 12, 70, 130, right=400)
    icons = tuple((40 + 90 * n, 120 + 40 * n, 60 + 90 * n, 140 + 40 * n) for n in range(4))
    content = replace(page(*text, fills=[(30, 110, 420, 290)]), shapes=icons)
    assert figures.find(content, content.lines, 10).figures == []


def test_a_ruled_table_with_signs_in_its_cells_is_not_a_figure():
    cells = [line(f"cell {n}{m}", 70 + 100 * n, 124 + 20 * m) for n in range(3) for m in range(5)]
    rules = [Rule(60, 120 + 20 * n, 360, 120 + 20 * n) for n in range(6)]
    rules += [Rule(60 + 100 * n, 120, 60 + 100 * n, 220) for n in range(4)]
    signs = tuple((130 + 100 * n, 124 + 20 * m, 140 + 100 * n, 134 + 20 * m) for n in range(2) for m in range(5))
    content = replace(page(*cells, rules=rules), shapes=signs)
    assert figures.find(content, content.lines, 10).figures == []


def test_without_drawings_the_layout_model_decides_on_figures_unless_they_hold_text():
    seen = Region("figure", (55, 110, 290, 265), 0.9)
    scanned = [replaced._replace(spans=()) for replaced in DIAGRAM]
    split = figures.find(replace(page(*scanned), regions=(seen,)), scanned, 10)
    assert [figure.text for figure in split.figures] == [LABELS]
    text = prose("text", 12, 60, 115, right=285)
    assert figures.find(replace(page(*text), regions=(seen,)), text, 10).figures == []


def test_a_table_that_the_layout_model_takes_for_a_figure_stays_a_table():
    cells = [line(f"cell {n}{m}", 70 + 100 * n, 124 + 20 * m) for n in range(3) for m in range(5)]
    seen = Region("figure", (60, 115, 360, 240), 0.95)
    for words in (cells, [cell._replace(spans=()) for cell in cells]):
        assert figures.find(replace(page(*words), regions=(seen,)), words, 10).figures == []


def test_only_recognised_text_over_a_picture_is_a_label():
    known = [
        *prose("text", 20, 50, 300),
        line("A cover", 80, 130),
        line("of a book", 80, 150),
        line("in print", 80, 170),
    ]
    read = [label._replace(spans=()) for label in DIAGRAM]
    content = replace(page(*known), images=((50, 110, 290, 265),))
    assert figures.find(content, known, 10).figures == []
    assert [label.text for label in figures.find(content, [*known[:20], *read], 10).figures] == [LABELS]


def test_boxes_of_drawings_anywhere_lose_no_line():
    wild = ((float("nan"), 0, 1, 1), (9e9, 9e9, 9e10, 9e10), (50, 50, 10, 10), (-500, -500, 900, 20))
    content = replace(diagram(), shapes=(*ARROWS, *wild), images=wild)
    split = figures.find(content, content.lines, 10)
    assert len(split.lines) + 5 == len(content.lines) or len(split.lines) == len(content.lines)


def test_the_saved_picture_of_a_figure_becomes_its_link_and_markdown_splits_by_block():
    blocks = with_pictures(
        [*convert(diagram()), Picture((0, 500, 100, 600))], [Picture((58, 118, 282, 262), "a/1.png")]
    )
    assert render(blocks) == f"![](a/1.png)\n{LABELS}"
    data = as_dicts(blocks, 1)
    assert (data[0]["type"], data[0]["text"], data[0]["link"]) == ("picture", LABELS, "a/1.png")
    assert sections(render(blocks), data) == [f"![](a/1.png)\n{LABELS}", ""]
    assert sections(render(convert(diagram())), as_dicts(convert(diagram()), 1)) == [LABELS]
