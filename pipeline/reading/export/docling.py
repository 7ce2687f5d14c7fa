"""Make a DoclingDocument, the format of the Docling project, from converted pages; Docling itself is not needed.

Lists alone form a tree: a nested list hangs on the item before it. `body` has the blocks of all pages in reading order.
A heading of level 1 is a title; a heading of level n is a section header of level n - 1, as Docling counts. Furniture
is in the layer `furniture`, as page headers and footers.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import Any, Self

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
_BODY = "#/body"
_KINDS = ("groups", "texts", "pictures", "tables")
_NO_ITEMS: Json = {"key_value_items": [], "form_items": []}
_MOST_ITEMS = 5_000
"""Items of a list with the lists in it; the next item begins another list."""
_MEMORY_CHARACTERS = 250_000
_MAX_PLACES = 500_000
"""Grid places for all tables of a document: 1,000 characters may span 100,000 places. Further tables become text."""


@dataclass(frozen=True)
class Part:
    """A child of the body with all items below it. `refs`: the `$ref`s of the child and of the furniture between its
    items; `items`: all items by `$ref`, in the order of the document."""

    refs: tuple[str, ...]
    items: dict[str, Json]


class Parts:
    """The parts of a document in reading order, to be iterated once. Memory holds one page and one part."""

    def __init__(self, pages: Iterable[Mapping[str, Any]], picture: PictureData = lambda _: None) -> None:
        """`pages`: each in the shape of `rules.result.layout_page`; `picture`: returns the `data:` URI for a picture's
        link, None to leave the picture out."""
        self._pages = pages
        self._picture = picture
        self.pages: dict[str, Json] = {}
        """The sizes of the pages that were read, by their number in the source file."""

    def __iter__(self) -> Iterator[Part]:
        tree = _Tree(self._picture, self.pages)
        for page in self._pages:
            tree.add_page(page)
            yield from tree.ended()
        tree.end_part()
        yield from tree.ended()


class Kept:
    """Parts that can be read several times: a file holds them until the end of the `with` block."""

    def __init__(self, parts: Parts) -> None:
        # SIM115: the `with` block closes it.
        self._file = SpooledTemporaryFile(_MEMORY_CHARACTERS, "w+", encoding="utf-8")  # noqa: SIM115
        try:
            for part in parts:
                self._file.write(_dumped({"refs": part.refs, "items": part.items}) + "\n")
        except BaseException:
            self._file.close()
            raise
        self.pages = parts.pages

    def __iter__(self) -> Iterator[Part]:
        self._file.seek(0)
        for line in self._file:
            facts = json.loads(line)
            yield Part(tuple(facts["refs"]), facts["items"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def document(parts: Parts, *, filename: str, mimetype: str, digest: int) -> Json:
    """Return the parts as a DoclingDocument: a dict, ready for JSON. Its page numbers are those in the source file.

    `digest`: a number below 2^64 that identifies the content.
    """
    body, items = _body(), {kind: list[Json]() for kind in _KINDS}
    for part in parts:
        body["children"] += ({"$ref": ref} for ref in part.refs)
        for ref, item in part.items.items():
            items[_kind(ref)].append(item)
    return _head(filename, mimetype, digest) | {"body": body, **items, **_NO_ITEMS, "pages": parts.pages}


def pieces(parts: Parts | Kept, *, filename: str, mimetype: str, digest: int) -> Iterator[str]:
    """Yield the JSON of `document`, an item on each line. Disks hold what memory does not."""
    with ExitStack() as opened:
        files = {
            kind: opened.enter_context(SpooledTemporaryFile(_MEMORY_CHARACTERS, "w+", encoding="utf-8"))
            for kind in ("body", *_KINDS)
        }
        begun = set[str]()

        def write(kind: str, item: Json) -> None:
            files[kind].write((",\n" if kind in begun else "\n") + _dumped(item))
            begun.add(kind)

        for part in parts:
            for ref in part.refs:
                write("body", {"$ref": ref})
            for ref, item in part.items.items():
                write(_kind(ref), item)
        yield _dumped(_head(filename, mimetype, digest))[:-1]
        before, after = _dumped(_body()).split("[]")
        yield f',\n"body": {before}['
        for kind, file in files.items():
            yield "" if kind == "body" else f',\n"{kind}": ['
            file.seek(0)
            while piece := file.read(_MEMORY_CHARACTERS):
                yield piece
            yield f"]{after}" if kind == "body" else "]"
        yield f",\n{_dumped(_NO_ITEMS | {'pages': parts.pages})[1:]}\n"


def origin(filename: str, mimetype: str, digest: int) -> Json:
    """Return a document's `origin`."""
    return {"mimetype": mimetype, "binary_hash": digest, "filename": filename}


def name_of(filename: str) -> str:
    """Return the name of a document: that of its file without the suffix."""
    return filename.rpartition(".")[0] or filename


def _dumped(item: Mapping[str, Any]) -> str:
    return json.dumps(item, ensure_ascii=False)


def _head(filename: str, mimetype: str, digest: int) -> Json:
    return {
        "schema_name": "DoclingDocument",
        "version": SCHEMA_VERSION,
        "name": name_of(filename),
        "origin": origin(filename, mimetype, digest),
        "furniture": _group("#/furniture", "", "unspecified", "furniture", "_root_"),
    }


def _body() -> Json:
    return _group(_BODY, "", "unspecified", "body", "_root_")


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
    def __init__(self, picture: PictureData, pages: dict[str, Json]) -> None:
        self._picture = picture
        self.pages = pages
        self._counts: Counter[str] = Counter()
        self._ended: list[Part] = []
        self._refs: list[str] = []
        self._items: dict[str, Json] = {}
        """Of the current part."""
        self._places = _MAX_PLACES
        self._lists: list[tuple[int, Json]] = []
        """The open lists, outermost first: (depth, group)."""

    def ended(self) -> list[Part]:
        """Return the parts that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def end_part(self) -> None:
        if self._items:
            self._ended.append(Part(tuple(self._refs), self._items))
            self._refs, self._items = [], {}

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
        if kind not in {"list_item", "furniture"} or len(self._items) > _MOST_ITEMS:
            self._lists = []
        parent = self._list_of(block)["self_ref"] if kind == "list_item" else _BODY
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
            parent = outer["children"][-1]["$ref"] if outer else _BODY
            group = _group(self._ref("groups"), parent, "list", "body", "list")
            self._hang(group, parent)
            self._lists.append((depth, group))
        return self._lists[-1][1]

    def _add(self, kind: str, parent: str, label: str, prov: list[Json], **more: Any) -> None:
        item = {
            "self_ref": self._ref(kind),
            "parent": {"$ref": parent},
            "children": [],
            "content_layer": "body",
            "label": label,
            "prov": prov,
            **more,
        }
        self._hang(item, parent)

    def _ref(self, kind: str) -> str:
        self._counts[kind] += 1
        return f"#/{kind}/{self._counts[kind] - 1}"

    def _hang(self, item: Json, parent: str) -> None:
        """Put an item below its parent; a child of the body begins a part."""
        if parent != _BODY:
            self._items[parent]["children"].append({"$ref": item["self_ref"]})
        else:
            if not self._lists:  # furniture leaves a list open
                self.end_part()
            self._refs.append(item["self_ref"])
        self._items[item["self_ref"]] = item


_FLOATING: Json = {"captions": [], "references": [], "footnotes": []}


def _group(ref: str, parent: str, label: str, layer: str, name: str) -> Json:
    above = {"parent": {"$ref": parent}} if parent else {}
    return {"self_ref": ref, **above, "children": [], "content_layer": layer, "name": name, "label": label}


def _kind(ref: str) -> str:
    return ref.split("/")[1]


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
