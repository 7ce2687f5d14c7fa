"""Make a DoclingDocument, the format of the Docling project, from converted pages; Docling itself is not needed.

Lists alone form a tree: a nested list hangs on the item before it. `body` has the blocks of all pages in reading order.
A heading of level 1 is a title; a heading of level n is a section header of level n - 1, as Docling counts. Furniture
is in the layer `furniture`, as page headers and footers.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pipeline.reading.export import markdown
from pipeline.reading.export.grid import Grid, Placed, grid

SCHEMA_VERSION = "1.5.0"
"""The oldest version with all fields used here: readers refuse versions newer than their own."""

NOMINAL_PAGE = (595.0, 842.0)
"""The assumed size of an unmeasured page. Its blocks have no boxes either; each gets the box of the whole page."""

Json = dict[str, Any]
PictureData = Callable[[str], str | None]
"""Link of a picture's file → `data:` URI; None if the file is missing or the caller wants no pictures."""

_LABELS = {"paragraph": "text", "quote": "text", "footnote": "footnote", "code": "code", "list_item": "list_item"}
_NUMBERED = re.compile(r"[0-9]+[.)]?|[a-zA-Z][.)]")
_PICTURE_DPI = 150
_MAX_PLACES = 500_000
"""Grid places for all tables of a document: 1,000 characters may span 100,000 places. Further tables become text."""


def document(
    pages: Iterable[Mapping[str, Any]],
    *,
    filename: str,
    mimetype: str,
    digest: int,
    picture: PictureData = lambda _: None,
) -> Json:
    """Return the pages, each in the shape of `rules.result.layout_json`, as a DoclingDocument: a dict, ready for JSON.
    Its page numbers are those in the source file.

    `digest`: a number below 2^64 that identifies the content; `picture`: returns the `data:` URI for a picture's link,
    None to leave the picture out.
    """
    tree = _Tree(picture)
    for page in pages:
        tree.add_page(page)
    return {
        "schema_name": "DoclingDocument",
        "version": SCHEMA_VERSION,
        "name": filename.rpartition(".")[0] or filename,
        "origin": {"mimetype": mimetype, "binary_hash": digest, "filename": filename},
        "furniture": _group("#/furniture", None, "unspecified", "furniture", "_root_"),
        "body": tree.body,
        "groups": tree.items["groups"],
        "texts": tree.items["texts"],
        "pictures": tree.items["pictures"],
        "tables": tree.items["tables"],
        "key_value_items": [],
        "form_items": [],
        "pages": tree.pages,
    }


def page_blocks(page: Mapping[str, Any]) -> list[Json]:
    """Return the page's blocks as dicts: parsed from Markdown where only that is known; for a failed page, one
    paragraph with its error."""
    if "error" in page:
        reason = " ".join((page["error"] or "not converted").split())
        return [{"type": "paragraph", "text": f"[Page {page['page']} is missing: {reason}]", "bbox": None}]
    result: list[Json] = []
    for block in page["blocks"]:
        result += markdown.blocks(block["text"]) if block["type"] == "markdown" else [block]
    return result


class _Tree:
    def __init__(self, picture: PictureData) -> None:
        self._picture = picture
        self.body = _group("#/body", None, "unspecified", "body", "_root_")
        self.items: dict[str, list[Json]] = {"groups": [], "texts": [], "pictures": [], "tables": []}
        self.pages: dict[str, Json] = {}
        self._places = _MAX_PLACES
        self._lists: list[tuple[int, Json]] = []
        """The open lists, outermost first: (depth, group)."""

    def add_page(self, page: Mapping[str, Any]) -> None:
        number = int(page["page_source"])
        width, height = page["width"] or NOMINAL_PAGE[0], page["height"] or NOMINAL_PAGE[1]
        self.pages[str(number)] = {"size": {"width": float(width), "height": float(height)}, "page_no": number}
        for block in page_blocks(page):
            left, top, right, bottom = block["bbox"] or (0.0, 0.0, width, height)
            box = {"l": float(left), "t": float(top), "r": float(right), "b": float(bottom), "coord_origin": "TOPLEFT"}
            self._add_block(block, [{"page_no": number, "bbox": box, "charspan": [0, len(block["text"])]}])

    def _add_block(self, block: Json, prov: list[Json]) -> None:
        kind, text = block["type"], block["text"]
        parent = self._list_of(block) if kind == "list_item" else self.body
        if kind not in {"list_item", "furniture"}:
            self._lists = []
        words = {"orig": text, "text": text}
        match kind:
            case "heading" if block["level"] == 1:
                self._add("texts", parent, "title", prov, **words)
            case "heading":
                self._add("texts", parent, "section_header", prov, **words, level=block["level"] - 1)
            case "list_item":
                numbered = _NUMBERED.fullmatch(block["marker"]) is not None
                self._add("texts", parent, "list_item", prov, **words, enumerated=numbered, marker=block["marker"])
            case "table" if (cells := grid(block["rows"], block["header"])).size <= self._places:
                self._places -= cells.size
                self._add("tables", parent, "table", prov, **_FLOATING, data=_table(cells))
            case "picture":
                uri = self._picture(block["link"])
                image = {"image": _image(uri, prov[0]["bbox"])} if uri else {}
                self._add("pictures", parent, "picture", prov, **_FLOATING, **image)
            case "furniture":
                box, height = prov[0]["bbox"], self.pages[str(prov[0]["page_no"])]["size"]["height"]
                label = "page_header" if box["t"] + box["b"] < height else "page_footer"
                self._add("texts", parent, label, prov, **words, content_layer="furniture")
            case "formula":  # Docling's text of a formula is LaTeX, which we do not have.
                orig = " ".join(filter(None, (text.replace("\n", " "), block.get("number"))))
                self._add("texts", parent, "formula", prov, orig=orig, text="")
            case "code":
                self._add("texts", parent, "code", prov, **words, **_FLOATING, code_language="unknown")
            case _:
                self._add("texts", parent, _LABELS.get(kind, "text"), prov, **words)

    def _list_of(self, item: Json) -> Json:
        """Return the group for a list item: an open list of its depth, or a new one below the last item of the
        shallower list."""
        depth = item["depth"]
        while self._lists and self._lists[-1][0] > depth:
            self._lists.pop()
        if not self._lists or self._lists[-1][0] < depth:
            outer = self._lists[-1][1] if self._lists else None
            parent = self.items["texts"][_place(outer["children"][-1])] if outer else self.body
            group = _group(f"#/groups/{len(self.items['groups'])}", parent, "list", "body", "list")
            self.items["groups"].append(group)
            self._lists.append((depth, group))
        return self._lists[-1][1]

    def _add(self, kind: str, parent: Json, label: str, prov: list[Json], **more: Any) -> None:
        ref = f"#/{kind}/{len(self.items[kind])}"
        item = {
            "self_ref": ref,
            "parent": {"$ref": parent["self_ref"]},
            "children": [],
            "content_layer": "body",
            "label": label,
            "prov": prov,
            **more,
        }
        parent["children"].append({"$ref": ref})
        self.items[kind].append(item)


_FLOATING: Json = {"captions": [], "references": [], "footnotes": []}


def _group(ref: str, parent: Json | None, label: str, layer: str, name: str) -> Json:
    group: Json = {"self_ref": ref, "children": [], "content_layer": layer, "name": name, "label": label}
    if parent is not None:
        group["parent"] = {"$ref": parent["self_ref"]}
        parent["children"].append({"$ref": ref})
    return group


def _place(ref: Mapping[str, str]) -> int:
    return int(ref["$ref"].rpartition("/")[2])


def _table(cells: Grid) -> Json:
    return {
        "table_cells": [_cell(cell) for cell in cells.cells],
        "num_rows": cells.rows,
        "num_cols": cells.columns,
        "grid": [[_cell(cell) for cell in row] for row in cells.places()],
    }


def _cell(cell: Placed) -> Json:
    return {
        "row_span": cell.rows,
        "col_span": cell.columns,
        "start_row_offset_idx": cell.row,
        "end_row_offset_idx": cell.row + cell.rows,
        "start_col_offset_idx": cell.column,
        "end_col_offset_idx": cell.column + cell.columns,
        "text": cell.text,
        "column_header": cell.header,
        "row_header": False,
        "row_section": False,
    }


def _image(uri: str, box: Mapping[str, Any]) -> Json:
    """Return the entry of a saved picture, which shows its box at 150 dots per inch."""
    scale = _PICTURE_DPI / 72
    size = {"width": round((box["r"] - box["l"]) * scale), "height": round((box["b"] - box["t"]) * scale)}
    return {"mimetype": "image/png", "dpi": _PICTURE_DPI, "size": size, "uri": uri}
