"""Blocks as a DoclingDocument. `make clients` shows that Docling's own models accept it."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from pipeline.reading.export import docling, markup

BOX = [51.0, 62.2, 365.1, 82.2]


def block(kind: str, text: str = "", **more: Any) -> dict[str, Any]:
    return {"type": kind, "text": text, "bbox": BOX} | more


def page(number: int, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"page": 1, "page_source": number, "width": 595.0, "height": 842.0, "blocks": list(blocks)}


FACTS: dict[str, Any] = {"filename": "report.pdf", "mimetype": "application/pdf", "digest": 2**64 - 1}


def document(*pages: dict[str, Any], picture: docling.PictureData = lambda _: None) -> dict[str, Any]:
    exported = docling.document(docling.Parts(pages, picture), **FACTS)
    with docling.Kept(docling.Parts(pages, picture)) as parts:
        assert json.loads("".join(docling.pieces(parts, **FACTS))) == exported
    return exported


def html(*pages: dict[str, Any]) -> str:
    return "".join(markup.html("report", docling.Parts(pages)))


def text(*pages: dict[str, Any]) -> str:
    return "".join(markup.text(docling.Parts(pages)))


def doctags(*pages: dict[str, Any]) -> str:
    return "".join(markup.doctags(docling.Parts(pages)))


def item(text: str, marker: str = "-", depth: int = 0) -> dict[str, Any]:
    return block("list_item", text, marker=marker, depth=depth)


CELLS = [
    [{"text": "Name", "rows": 1, "columns": 2}],
    [{"text": "a", "rows": 1, "columns": 1}, {"text": "b", "rows": 1, "columns": 1}],
]
TABLE = block("table", "Name\na\tb", header=1, rows=CELLS)


def test_every_reference_leads_to_an_item_whose_parent_refers_back() -> None:
    exported = document(
        page(1, block("heading", "T", level=1), item("a"), item("b", depth=1), TABLE), page(2, item("c"))
    )
    seen = set()

    def visit(node: Mapping[str, Any]) -> None:
        for ref in node["children"]:
            _, kind, place = ref["$ref"].split("/")
            child = exported[kind][int(place)]
            assert child["self_ref"] == ref["$ref"]
            assert child["parent"] == {"$ref": node["self_ref"]}
            seen.add(ref["$ref"])
            visit(child)

    visit(exported["body"])
    assert seen == {
        element["self_ref"] for kind in ("groups", "texts", "tables", "pictures") for element in exported[kind]
    }


def test_boxes_count_from_the_top_left_and_pages_as_in_the_source() -> None:
    exported = document(page(7, block("paragraph", "words")))
    (prov,) = exported["texts"][0]["prov"]
    assert prov["bbox"] == {"l": 51.0, "t": 62.2, "r": 365.1, "b": 82.2, "coord_origin": "TOPLEFT"}
    assert (prov["page_no"], prov["charspan"]) == (7, [0, 5])
    assert exported["pages"] == {"7": {"size": {"width": 595.0, "height": 842.0}, "page_no": 7}}
    assert exported["origin"] == {"mimetype": "application/pdf", "binary_hash": 2**64 - 1, "filename": "report.pdf"}


def test_furniture_is_in_its_own_layer_and_of_the_texts_only_in_doctags() -> None:
    head, foot = block("furniture", "Head"), block("furniture", "17", bbox=[51.0, 800.0, 60.0, 810.0])
    pages = page(1, head, item("a"), foot), page(2, head, item("b"), foot)
    exported = document(*pages)
    assert [(each["label"], each["content_layer"]) for each in exported["texts"]][:3] == [
        ("page_header", "furniture"),
        ("list_item", "body"),
        ("page_footer", "furniture"),
    ]
    assert len(exported["groups"]) == 1, "furniture must not end a list"
    for shown in (text(*pages), html(*pages)):
        assert "Head" not in shown
        assert "17" not in shown
    tags = doctags(*pages)
    assert re.search(r"<page_header>(<loc_\d+>){4}Head</page_header>", tags)
    assert re.search(r"<page_footer>(<loc_\d+>){4}17</page_footer>\n<page_break>", tags)


def test_headings_of_the_first_level_are_titles_and_others_count_from_one() -> None:
    exported = document(page(1, block("heading", "A", level=1), block("heading", "B", level=3)))
    assert [(text["label"], text.get("level")) for text in exported["texts"]] == [
        ("title", None),
        ("section_header", 2),
    ]


def test_nested_list_hangs_on_the_item_before_it() -> None:
    exported = document(
        page(1, item("a", "1."), item("b", depth=1), item("c", "2."), block("paragraph", "p"), item("d"))
    )
    assert [group["parent"]["$ref"] for group in exported["groups"]] == ["#/body", "#/texts/0", "#/body"]
    assert [text["parent"]["$ref"] for text in exported["texts"]] == [
        "#/groups/0",
        "#/groups/1",
        "#/groups/0",
        "#/body",
        "#/groups/2",
    ]
    assert [text.get("enumerated") for text in exported["texts"]] == [True, False, True, None, False]


def test_table_has_cells_spans_and_the_whole_grid() -> None:
    data = document(page(1, TABLE))["tables"][0]["data"]
    assert (data["num_rows"], data["num_cols"], len(data["table_cells"])) == (2, 2, 3)
    head = data["table_cells"][0]
    assert (head["col_span"], head["end_col_offset_idx"], head["column_header"]) == (2, 2, True)
    assert [[cell["text"] for cell in row] for row in data["grid"]] == [["Name", "Name"], ["a", "b"]]


def test_page_without_a_layout_is_read_from_its_markdown() -> None:
    markdown = {"type": "markdown", "text": "## Head\n\nwords", "bbox": None}
    exported = document({"page": 1, "page_source": 1, "width": None, "height": None, "blocks": [markdown]})
    assert [(text["label"], text["text"]) for text in exported["texts"]] == [
        ("section_header", "Head"),
        ("text", "words"),
    ]
    assert (
        exported["texts"][0]["prov"][0]["bbox"]["r"]
        == exported["pages"]["1"]["size"]["width"]
        == docling.NOMINAL_PAGE[0]
    )


def test_a_picture_is_embedded_on_request() -> None:
    picture = block("picture", link="pictures/page-0001-1.png")
    assert "image" not in document(page(1, picture))["pictures"][0]
    (embedded,) = document(page(1, picture), picture=lambda link: f"data:image/png;base64,{link[-1]}")["pictures"]
    assert embedded["image"] == {
        "mimetype": "image/png",
        "dpi": 150,
        "size": {"width": 654, "height": 42},
        "uri": "data:image/png;base64,g",
    }


def test_a_formula_that_nobody_has_read_keeps_its_words_and_has_no_latex() -> None:
    formula = page(1, block("formula", "E =\nmc", number="(3)", link=""))
    (item,) = document(formula)["texts"]
    assert (item["label"], item["orig"], item["text"]) == ("formula", "E = mc (3)", "")
    assert "<p>[formula] E = mc (3)</p>" in html(formula)
    assert "<formula><loc_43>" in doctags(formula)
    assert text(formula) == "E = mc (3)\n"


def test_html_escapes_texts_and_keeps_structure() -> None:
    shown = html(
        page(
            1,
            block("heading", "A & B", level=2),
            item("one <x>"),
            item("two", depth=1),
            TABLE,
            block("code", "</code>"),
            block("picture", link=""),
        )
    )
    assert "<h2>A &amp; B</h2>" in shown
    assert "<ul>\n<li>one &lt;x&gt;\n<ul>\n<li>two\n</ul>\n</ul>" in shown
    assert '<tr><th colspan="2">Name</th></tr>\n<tr><td>a</td><td>b</td></tr>' in shown
    assert "<pre><code>&lt;/code&gt;</code></pre>" in shown


def test_doctags_say_places_pages_and_tables() -> None:
    pages = page(1, block("heading", "A", level=2), TABLE), page(2, item("one", "1."), block("code", "x"))
    where = "<loc_43><loc_37><loc_307><loc_49>"
    assert doctags(*pages).split("\n") == [
        f"<doctag><section_header_level_1>{where}A</section_header_level_1>",
        f"<otsl>{where}<ched>Name<lcel><nl><fcel>a<fcel>b<nl></otsl>",
        "<page_break>",
        "<ordered_list>",
        f"<list_item>{where}one</list_item>",
        "</ordered_list>",
        f"<code>{where}<_unknown_>x</code>",
        "</doctag>",
    ]


def test_plain_text_has_lists_and_rows_on_lines_of_their_own() -> None:
    assert (
        text(page(1, block("paragraph", "p"), item("one"), item("two", depth=1), TABLE))
        == "p\n\n- one\n- two\n\nName\t\na\tb\n"
    )


def test_document_without_text_is_empty_in_every_format() -> None:
    assert (document(page(1))["texts"], doctags(page(1)), text(page(1))) == ([], "<doctag>\n</doctag>", "\n")


def test_page_that_failed_says_so_where_its_text_would_be() -> None:
    failed = {"page": 2, "page_source": 5, "width": None, "height": None, "blocks": [], "error": "the model\nis down"}
    exported = document(page(4, block("paragraph", "p")), failed)
    assert [text["text"] for text in exported["texts"]] == ["p", "[Page 2 is missing: the model is down]"]
    assert list(exported["pages"]) == ["4", "5"]


def test_spans_of_small_tables_do_not_add_up_to_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docling, "_MAX_PLACES", 5_000)
    wide = "<table><tr><td colspan=100>a</td></tr>" + "<tr><td>b</td></tr>" * 9 + "</table>\n\n"
    exported = document(page(1, block("markdown", wide * 12)))
    assert sum(len(row) for table in exported["tables"] for row in table["data"]["grid"]) == 5_000
    assert len(exported["texts"]) == 7, "tables beyond the limit must become text"
