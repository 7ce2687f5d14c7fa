"""Write blocks as Markdown, and as data for JSON."""

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from pipeline.reading.layout import certainty, inline
from pipeline.reading.layout.model import (
    Block,
    Cell,
    Code,
    Footnote,
    Formula,
    Heading,
    ListItem,
    Paragraph,
    Picture,
    Quote,
    Run,
    Table,
)

_INDENT = "    "


def render(blocks: Sequence[Block]) -> str:
    """Return the blocks as Markdown without a final newline, without blank lines between the items of a list, and
    without furniture."""
    parts: list[str] = []
    before: Block | None = None
    for block in blocks:
        text = _block(block)
        if not text:
            continue
        in_list = isinstance(block, ListItem) and isinstance(before, ListItem)
        parts += ["\n" if in_list else "\n\n", text] if parts else [text]
        before = block
    return "".join(parts)


def _block(block: Block) -> str:
    match block:
        case Heading(runs=runs, level=level):
            text = inline.to_markdown(runs, emphasis=False)
            return f"{'#' * level} {text}" if text else ""
        case Code(text=text):
            fence = "`" * max(3, 1 + max((len(ticks) for ticks in re.findall(r"`+", text)), default=0))
            return f"{fence}\n{text}\n{fence}"
        case Table():
            return table(block)
        case Picture():
            return _picture(block)
        case Paragraph(runs=runs) | Footnote(runs=runs) | Quote(runs=runs) | ListItem(runs=runs):
            lead = "> " if isinstance(block, Quote) else ""
            if isinstance(block, ListItem):
                lead = f"{_INDENT * block.depth}{block.marker} "
            text = inline.to_markdown(runs)
            return lead + (f"[uncertain] {text}" if certainty.is_guessed(block) else inline.at_line_start(text))
    return ""


def _picture(block: Picture) -> str:
    if isinstance(block, Formula):
        shown = f"![formula]({block.link})" if block.link else "[formula]"
        return " ".join(filter(None, (shown, inline.literal(block.words), block.number)))
    words = [inline.at_line_start(inline.to_markdown((Run(line),))) for line in block.text.split("\n") if line]
    return "\n".join([f"![]({block.link})"] * bool(block.link) + words)


def table(block: Table) -> str:
    """Return a pipe table if possible; HTML if cells are merged or the head has several rows."""
    if block.header == 1 and all(cell.rows == cell.columns == 1 for row in block.rows for cell in row):
        width = max(len(row) for row in block.rows)
        texts = [
            [inline.to_markdown(cell.runs, emphasis=False).replace("|", "\\|") for cell in row] for row in block.rows
        ]
        pipes = ["| " + " | ".join(row + [""] * (width - len(row))) + " |" for row in texts]
        return "\n".join([pipes[0], "| " + " | ".join(["---"] * width) + " |", *pipes[1:]])
    lines = ["<table>"]
    for number, row in enumerate(block.rows):
        tag = "th" if number < block.header else "td"
        lines.append("<tr>" + "".join(_html_cell(cell, tag) for cell in row) + "</tr>")
    return "\n".join([*lines, "</table>"])


def _html_cell(cell: Cell, tag: str) -> str:
    spans = "".join(
        f' {name}="{count}"' for name, count in (("rowspan", cell.rows), ("colspan", cell.columns)) if count > 1
    )
    return f"<{tag}{spans}>{escape(inline.plain_text(cell.runs), quote=False)}</{tag}>"


def as_dicts(blocks: Sequence[Block], page: int) -> list[dict[str, Any]]:
    """Return a dictionary per block, in reading order: `page`, `type`, `text`, `bbox` (left, top, right, bottom, to one
    decimal), and the fields of its type: `level`, `marker` and `depth`, `link`, `number`, or `rows` and `header`.
    Recognised blocks have `confidence`, 0 to 1, and any `uncertain` words: `text`, `offset` in the block's text,
    `confidence`."""
    return [_as_dict(block, page) for block in blocks]


def _as_dict(block: Block, page: int) -> dict[str, Any]:
    kind = "list_item" if isinstance(block, ListItem) else type(block).__name__.lower()
    more: dict[str, Any] = {}
    match block:
        case Heading(level=level):
            more = {"level": level}
        case Formula(link=link, number=number):
            more = {"link": link, "number": number}
        case Picture(link=link):
            more = {"link": link}
        case ListItem(marker=marker, depth=depth):
            more = {"marker": marker, "depth": depth}
        case Table(rows=rows, header=header):
            cells = [
                [{"text": inline.plain_text(cell.runs), "rows": cell.rows, "columns": cell.columns} for cell in row]
                for row in rows
            ]
            more = {"header": header, "rows": cells}
    match block:
        case Code(text=text) | Picture(text=text):
            pass
        case Table(rows=rows):
            text = "\n".join("\t".join(inline.plain_text(cell.runs) for cell in row) for row in rows)
        case _:
            text = inline.plain_text(getattr(block, "runs", ()))
    more |= certainty.facts(block, text)
    return {"page": page, "type": kind, "text": text, "bbox": [round(value, 1) for value in block.box], **more}
