"""Blocks as dictionaries that can be written as JSON."""

from collections.abc import Sequence
from typing import Any

from pipeline.reading.layout.inline import plain_text
from pipeline.reading.layout.model import Block, Code, Heading, ListItem, Picture, Table


def as_dicts(blocks: Sequence[Block], page: int) -> list[dict[str, Any]]:
    """One dictionary a block, in reading order: `page`, `type`, `text`, `bbox` (left, top, right, bottom in points, one
    decimal), and what its type has besides: `level`, `marker` and `depth`, or `rows` and `header`."""
    return [_as_dict(block, page) for block in blocks]


def _as_dict(block: Block, page: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "page": page,
        "type": _TYPES.get(type(block).__name__, type(block).__name__.lower()),
        "text": _text(block),
        "bbox": [round(value, 1) for value in block.box],
    }
    if isinstance(block, Heading):
        found["level"] = block.level
    elif isinstance(block, Picture):
        found["link"] = block.link
    elif isinstance(block, ListItem):
        found |= {"marker": block.marker, "depth": block.depth}
    elif isinstance(block, Table):
        found |= {
            "header": block.header,
            "rows": [
                [{"text": plain_text(cell.runs), "rows": cell.rows, "columns": cell.columns} for cell in row]
                for row in block.rows
            ],
        }
    return found


_TYPES = {"ListItem": "list_item"}


def _text(block: Block) -> str:
    if isinstance(block, Code):
        return block.text
    if isinstance(block, Table):
        return "\n".join("\t".join(plain_text(cell.runs) for cell in row) for row in block.rows)
    return plain_text(getattr(block, "runs", ()))
