"""Which part of a page's Markdown is which of its blocks: `markdown.render` the other way round."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_FENCE = re.compile(r"`{3,}")


def sections(markdown: str, blocks: Sequence[Mapping[str, Any]]) -> list[str] | None:
    """The Markdown of each block, as `as_dicts` gives them; empty for one that shows nothing.

    None if this is not what `render` made of these blocks: somebody else wrote it, or it was changed.
    """
    lines = markdown.split("\n")
    found: list[str] = []
    at = 0
    for block in blocks:
        while at < len(lines) and not lines[at].strip():
            at += 1
        end = at + _length(lines[at:], block)
        if end < at:
            return None
        found.append("\n".join(lines[at:end]))
        at = end
    return found if not any(line.strip() for line in lines[at:]) else None


def _length(lines: Sequence[str], block: Mapping[str, Any]) -> int:
    """How many lines a block has at the beginning of these; -1 if it cannot be there."""
    kind, first = block["type"], lines[0] if lines else ""
    match kind:
        case "picture" if block.get("link") or block["text"]:
            linked = not block.get("link") or first == f"![]({block['link']})"
            end = next((place for place, line in enumerate(lines) if not line.strip()), len(lines))
            return end if linked and end else -1
        case "code" if _FENCE.fullmatch(first):
            return _through(lines, first)
        case "table" if first == "<table>":
            return _through(lines, "</table>")
        case "table":
            return next((place for place, line in enumerate(lines) if not line.startswith("|")), len(lines)) or -1
    if kind == "picture" or (kind in {"heading", "paragraph", "footnote"} and not block["text"]):
        return 0
    starts = {"heading": "#", "quote": "> "}
    fits = bool(first) and all(first.startswith(start) is (kind == one) for one, start in starts.items())
    return 1 if fits and kind != "code" else -1


def _through(lines: Sequence[str], last: str) -> int:
    return next((place for place, line in enumerate(lines) if place and line == last), -2) + 1
