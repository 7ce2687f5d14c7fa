"""Write a DoclingDocument as HTML, DocTags or plain text. Only DocTags have its furniture; HTML escapes all texts."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from typing import Any

Json = Mapping[str, Any]

_LOCATIONS = 500
"""The parts into which DocTags divide a page's width and height."""

_STYLE = "table{border-collapse:collapse}th,td{border:1px solid;padding:.2em .5em}body{max-width:50em;margin:auto}"


def html(document: Json) -> str:
    """Return a complete HTML page without scripts, links or external resources; pictures are embedded."""
    title = escape(document["name"])
    body = "\n".join(_walk(document, document["body"], _html, _html_list))
    head = f'<meta charset="utf-8">\n<title>{title}</title>\n<style>{_STYLE}</style>'
    return f"<!DOCTYPE html>\n<html>\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n"


def doctags(document: Json) -> str:
    """Return DocTags with locations, page breaks, and tables in OTSL."""
    parts: list[str] = []
    page = 0
    for ref in document["body"]["children"]:
        item = resolve(document, ref)
        number = _page(document, item)
        if page and number != page:
            parts.append("<page_break>")
        page = number
        if item["content_layer"] == "furniture":
            parts.append(_doctag(document, item))
        parts += _walk(document, {"children": [ref]}, lambda leaf: _doctag(document, leaf), _doctag_list)
    return "\n".join(["<doctag>" + (parts[0] if parts else ""), *parts[1:], "</doctag>"])


def text(document: Json) -> str:
    """Return the plain text in reading order, with blank lines between blocks; a row of a table is a line with tabs
    between its cells."""

    def plain(item: Json) -> str:
        if item["label"] == "table":
            return "\n".join("\t".join(_texts_once(row, number)) for number, row in enumerate(item["data"]["grid"]))
        if item["label"] == "formula":
            return str(item["orig"])
        marker = f"{item['marker']} " if item["label"] == "list_item" else ""
        return f"{marker}{item.get('text', '')}"

    parts = _walk(document, document["body"], plain, lambda _, items: "\n".join(items))
    return "\n\n".join(part for part in parts if part) + "\n"


def resolve(document: Json, ref: Mapping[str, str]) -> Json:
    """Return the item that a `$ref` points to."""
    _, kind, place = ref["$ref"].split("/")
    item: Json = document[kind][int(place)]
    return item


def _walk(
    document: Json, node: Json, leaf: Callable[[Json], str], group: Callable[[Json, list[str]], str]
) -> Iterator[str]:
    """Yield each child as text. `group` joins the items of a list; the lists below an item follow its own text."""
    for ref in node["children"]:
        item = resolve(document, ref)
        if item["content_layer"] == "furniture":
            continue
        if item["label"] == "list":
            first = resolve(document, item["children"][0])
            yield group(first, list(_walk(document, item, leaf, group)))
        elif item["children"]:
            yield "\n".join([leaf(item), *_walk(document, item, leaf, group)])
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


def _doctag(document: Json, item: Json) -> str:
    where = _location(document, item)
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


def _location(document: Json, item: Json) -> str:
    prov = item["prov"][0]
    box, size = prov["bbox"], document["pages"][str(prov["page_no"])]["size"]
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


def _page(document: Json, item: Json) -> int:
    while "prov" not in item:
        item = resolve(document, item["children"][0])
    return int(item["prov"][0]["page_no"])


def _texts_once(row: Iterable[Json], number: int) -> list[str]:
    """Return a row's texts; a cell that spans several places gives its text only at the first."""
    return [
        cell["text"] if (cell["start_row_offset_idx"], cell["start_col_offset_idx"]) == (number, column) else ""
        for column, cell in enumerate(row)
    ]
