"""Any Markdown of a model becomes blocks, without a loss or a failure."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.reading.export import docling, effort, hypertext, markup
from pipeline.reading.export.grid import MAX_PLACES, grid
from pipeline.reading.export.markdown import blocks, plain_text


def brief(markdown: str) -> list[tuple[str, str]]:
    return [(block["type"], block["text"]) for block in blocks(markdown)]


def cells(block: dict[str, Any]) -> list[list[str]]:
    return [[cell["text"] for cell in row] for row in block["rows"]]


def test_headings_have_their_levels_and_text_has_no_marks_of_emphasis() -> None:
    parsed = blocks("# A *b*\n\n### C `d`\n\nText with **bold**,\na [link](http://x) and <sup>2</sup>.")
    assert [(block["type"], block.get("level"), block["text"]) for block in parsed] == [
        ("heading", 1, "A b"),
        ("heading", 3, "C d"),
        ("paragraph", None, "Text with bold, a link and 2."),
    ]


def test_lists_have_markers_and_depths_and_an_item_keeps_its_further_paragraphs() -> None:
    parsed = blocks("3. one\n   - two\n\n     more\n   - three\n4. four\n\nafter")
    assert [(block["text"], block.get("marker"), block.get("depth")) for block in parsed] == [
        ("one", "3.", 0),
        ("two more", "-", 1),
        ("three", "-", 1),
        ("four", "4.", 0),
        ("after", None, None),
    ]


def test_code_in_a_list_item_does_not_swallow_the_paragraph_behind_it() -> None:
    assert brief("- a\n\n  ```\n  x = 1\n  ```\n\n  b\n") == [("list_item", "a"), ("code", "x = 1"), ("paragraph", "b")]


def test_pipe_table_keeps_its_cells_and_its_head() -> None:
    (table,) = blocks("| a | b |\n| --- | --- |\n| 1<br>2 | x \\| y |\n")
    assert (cells(table), table["header"]) == ([["a", "b"], ["1 2", "x | y"]], 1)


def test_html_table_keeps_spans_and_survives_blank_lines() -> None:
    parsed = blocks(
        "before\n\n<table><thead>\n<tr><th colspan='2'>A &amp; B</th></tr>\n</thead>\n\n"
        '<tr><td rowspan="2">x<br/>y</td><td>1</td></tr>\n\n<tr><td>2</td></tr></table>\n\nafter'
    )
    assert [block["type"] for block in parsed] == ["paragraph", "table", "paragraph"]
    assert cells(parsed[1]) == [["A & B"], ["x y", "1"], ["2"]]
    assert (parsed[1]["header"], parsed[1]["rows"][0][0]["columns"], parsed[1]["rows"][1][0]["rows"]) == (1, 2, 2)


def test_table_in_a_fence_is_code() -> None:
    assert brief("```\n<table>\n\n<tr>\n</table>\n```") == [("code", "<table>\n\n<tr>\n</table>")]


def test_table_that_never_ends_is_read_to_the_end_of_its_paragraph() -> None:
    parsed = blocks("<table><tr><td>a\n\ntext")
    assert (cells(parsed[0]), brief("<table><tr><td>a\n\ntext")[1]) == ([["a"]], ("paragraph", "text"))


def test_html_outside_tables_is_text_without_comments_and_scripts() -> None:
    assert brief("<div>one <b>two</b></div><script>evil()</script><!-- no -->\n\n<!-- Page 1 -->\n\nthree") == [
        ("paragraph", "one two"),
        ("paragraph", "three"),
    ]


def test_pictures_on_their_own_are_blocks_with_their_links() -> None:
    (picture,) = blocks("![a chart](pictures/page-0001-1.png)")
    assert (picture["type"], picture["link"], picture["text"]) == ("picture", "pictures/page-0001-1.png", "a chart")
    assert brief("see ![a chart](x.png) there") == [("paragraph", "see a chart there")]


def test_spans_that_reach_out_of_the_table_end_with_it() -> None:
    cells = grid(
        [
            [{"text": "a", "rows": 9, "columns": 2}, {"text": "b", "rows": 1, "columns": 1}],
            [{"text": "c", "rows": 1, "columns": 1}],
        ],
        1,
    )
    assert (cells.rows, cells.columns) == (2, 3)
    assert [[cell.text for cell in row] for row in cells.places()] == [["a", "a", "b"], ["a", "a", "c"]]


def test_cell_that_would_cover_another_keeps_to_its_own_place() -> None:
    rows = [
        [{"text": "a", "rows": 1, "columns": 1}, {"text": "b", "rows": 2, "columns": 1}],
        [{"text": "c", "rows": 1, "columns": 3}],
    ]
    assert [[cell.text for cell in row] for row in grid(rows, 0).places()] == [["a", "b"], ["c", "b"]]


def test_grid_of_a_table_that_claims_to_be_huge_is_bounded() -> None:
    rows = [[{"text": "x", "rows": 1000, "columns": 1000} for _ in range(50)] for _ in range(500)]
    cells = grid(rows, 0)
    assert cells.rows * cells.columns <= MAX_PLACES


@given(st.text(alphabet=st.sampled_from("#->|`*_[]()!<table/rhd>\n 1.a"), max_size=200))
def test_any_text_becomes_a_document_in_every_format(markdown: str) -> None:
    page = {
        "page": 1,
        "page_source": 1,
        "width": None,
        "height": None,
        "blocks": [{"type": "markdown", "text": markdown, "bbox": None}],
    }
    assert "".join(markup.html("a", docling.Parts([page]))).endswith("</html>\n")
    assert "".join(markup.doctags(docling.Parts([page]))).endswith("</doctag>")
    assert "".join(markup.text(docling.Parts([page]))).endswith("\n")


MARKS = ["<!--", "<a ", '<a href="', "</", "<![CDATA[", "<script>", "<", "<table><tr><td ", "<x '"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("mark", MARKS)
def test_marks_that_never_end_are_text(mark: str) -> None:
    # In quadratic time, each would take from one minute to twenty.
    hypertext.blocks(mark * (400_000 // len(mark)))


def test_an_odd_declaration_is_left_out() -> None:
    assert brief("<div>one</div>\n<![table [x]> two") == [("paragraph", "one"), ("paragraph", "two")]


def test_a_text_past_its_time_limit_becomes_paragraphs_of_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "_LIMITS", replace(effort._LIMITS, timeout_s=0.3, total_s=0.3))
    text = "# A\n\n" + "![" * 190_000
    assert [(block["type"], block["text"][:4]) for block in blocks(text)] == [
        ("paragraph", "# A"),
        ("paragraph", "![!["),
    ]
    assert plain_text(text).split() == ["A"]


def test_a_large_table_is_still_a_table() -> None:
    text = "| *a* | b |\n|---|---|\n" + "| 1 | 2 |\n" * 300
    assert [len(block["rows"]) for block in blocks(text)] == [301]
    assert plain_text(text).split() == ["a", "b", *["1", "2"] * 300]
