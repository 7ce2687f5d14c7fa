"""Write the parts of a DoclingDocument as HTML, DocTags or plain text. Only DocTags have its furniture.

HTML escapes all texts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from typing import Any

from pipeline.reading.export.docling import Kept, Part, Parts

Json = Mapping[str, Any]

_LOCATIONS = 500
"""The parts into which DocTags divide a page's width and height."""

_STYLE = "table{border-collapse:collapse}th,td{border:1px solid;padding:.2em .5em}body{max-width:50em;margin:auto}"


def html(name: str, parts: Iterable[Part]) -> Iterator[str]:
    """Yield a complete HTML page without scripts, links or external resources; pictures are embedded."""
    head = f'<meta charset="utf-8">\n<title>{escape(name)}</title>\n<style>{_STYLE}</style>'
    yield f"<!DOCTYPE html>\n<html>\n<head>\n{head}\n</head>\n<body>\n"
    for part in parts:
        for element in _walk(part, part.refs, _html, _html_list):
            yield f"{element}\n"
    yield "</body>\n</html>\n"


def doctags(parts: Parts | Kept) -> Iterator[str]:
    """Yield DocTags with locations, page breaks, and tables in OTSL."""
    yield "<doctag>"
    page, between = 0, ""
    for part in parts:
        for ref in part.refs:
            item = part.items[ref]
            before, page = page, _page(part, item)
            tags = [_doctag(parts.pages, item)] if item["content_layer"] == "furniture" else []
            tags += _walk(part, [ref], lambda leaf: _doctag(parts.pages, leaf), _doctag_list)
            for tag in ["<page_break>"] * (0 < before != page) + tags:
                yield between + tag
                between = "\n"
    yield "\n</doctag>"


def text(parts: Iterable[Part]) -> Iterator[str]:
    """Yield the plain text in reading order, with blank lines between blocks; a row of a table is a line with tabs
    between its cells."""
    between = ""
    for part in parts:
        if words := part_text(part):
            yield between + words
            between = "\n\n"
    yield "\n"


def part_text(part: Part) -> str:
    """Return the text of a part alone."""
    blocks = _walk(part, part.refs, _plain, lambda _, items: "\n".join(items))
    return "\n\n".join(block for block in blocks if block)


def _plain(item: Json) -> str:
    if item["label"] == "table":
        return "\n".join("\t".join(_texts_once(row, number)) for number, row in enumerate(item["data"]["grid"]))
    if item["label"] == "formula":
        return str(item["orig"])
    marker = f"{item['marker']} " if item["label"] == "list_item" else ""
    return f"{marker}{item.get('text', '')}"


def below(item: Json) -> list[str]:
    """Return the `$ref`s of the children of an item."""
    return [ref["$ref"] for ref in item["children"]]


def _walk(
    part: Part, refs: Iterable[str], leaf: Callable[[Json], str], group: Callable[[Json, list[str]], str]
) -> Iterator[str]:
    """Yield each item as text. `group` joins the items of a list; the lists below an item follow its own text."""
    for ref in refs:
        item = part.items[ref]
        if item["content_layer"] == "furniture":
            continue
        if item["label"] == "list":
            children = below(item)
            yield group(part.items[children[0]], list(_walk(part, children, leaf, group)))
        elif item["children"]:
            yield "\n".join([leaf(item), *_walk(part, below(item), leaf, group)])
        else:
            yield leaf(item)


def _html(item: Json) -> str:
    match item["label"]:
        case "title" | "section_header":
            level = min(item.get("level", 0) + 1, 6)
            return f"<h{level}>{escape(item['text'])}</h{level}>"
        case "list_item":
            return f"<li>{escape(item['text'])}"  # HTML allows no end tag here, so lists below stay inside
        case "code":
            return f"<pre><code>{escape(item['text'])}</code></pre>"
        case "table":
            return _html_table(item["data"])
        case "picture":
            uri = item.get("image", {}).get("uri", "")
            return f'<figure><img alt="" src="{escape(uri)}"></figure>' if uri else "<!-- image -->"
    formula = f"[formula] {item['orig']}" if item["label"] == "formula" else item["text"]
    return f"<p>{escape(formula)}</p>"


def _html_list(first: Json, items: list[str]) -> str:
    tag = "ol" if first["enumerated"] else "ul"
    return "\n".join([f"<{tag}>", *items, f"</{tag}>"])


def _html_table(data: Json) -> str:
    rows: list[list[str]] = [[] for _ in range(data["num_rows"])]
    for cell in data["table_cells"]:
        tag = "th" if cell["column_header"] else "td"
        spans = "".join(
            f' {name}="{cell[key]}"'
            for name, key in (("rowspan", "row_span"), ("colspan", "col_span"))
            if cell[key] > 1
        )
        rows[cell["start_row_offset_idx"]].append(f"<{tag}{spans}>{escape(cell['text'])}</{tag}>")
    return "\n".join(["<table>", *(f"<tr>{''.join(row)}</tr>" for row in rows), "</table>"])


def _doctag(pages: Json, item: Json) -> str:
    where = _location(pages, item)
    match item["label"]:
        case "section_header":
            tag = f"section_header_level_{item['level']}"
            return f"<{tag}>{where}{item['text']}</{tag}>"
        case "table":
            return f"<otsl>{where}{_otsl(item['data'])}</otsl>"
        case "picture":
            return f"<picture>{where}</picture>"
        case "code":
            return f"<code>{where}<_unknown_>{item['text']}</code>"
        case "formula":
            return f"<formula>{where}{item['text']}</formula>"
    return f"<{item['label']}>{where}{item['text']}</{item['label']}>"


def _doctag_list(first: Json, items: list[str]) -> str:
    tag = "ordered_list" if first["enumerated"] else "unordered_list"
    return "\n".join([f"<{tag}>", *items, f"</{tag}>"])


def _location(pages: Json, item: Json) -> str:
    prov = item["prov"][0]
    box, size = prov["bbox"], pages[str(prov["page_no"])]["size"]
    sides = (box["l"] / size["width"], box["t"] / size["height"], box["r"] / size["width"], box["b"] / size["height"])
    return "".join(f"<loc_{max(0, min(_LOCATIONS - 1, round(side * _LOCATIONS)))}>" for side in sides)


def _otsl(data: Json) -> str:
    parts = []
    for row, cells in enumerate(data["grid"]):
        for column, cell in enumerate(cells):
            right, below = cell["start_col_offset_idx"] < column, cell["start_row_offset_idx"] < row
            if right or below:
                parts.append("<xcel>" if right and below else "<lcel>" if right else "<ucel>")
            elif not cell["text"]:
                parts.append("<ecel>")
            else:
                parts.append(("<ched>" if cell["column_header"] else "<fcel>") + cell["text"])
        parts.append("<nl>")
    return "".join(parts)


def _page(part: Part, item: Json) -> int:
    while "prov" not in item:
        item = part.items[item["children"][0]["$ref"]]
    return int(item["prov"][0]["page_no"])


def _texts_once(row: Iterable[Json], number: int) -> list[str]:
    """Return a row's texts; a cell that spans several places gives its text only at the first."""
    return [
        cell["text"] if (cell["start_row_offset_idx"], cell["start_col_offset_idx"]) == (number, column) else ""
        for column, cell in enumerate(row)
    ]
