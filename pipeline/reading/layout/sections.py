"""Cut a page's Markdown into the parts of its blocks: `markdown.render` in reverse."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_FENCE = re.compile(r"`{3,}")


def sections(markdown: str, blocks: Sequence[Mapping[str, Any]]) -> list[str] | None:
    """Cut a page's Markdown into one part for each block (given as by `as_dicts`), an empty one for a block that shows
    nothing. Return None if the lines do not fit the blocks.

    It compares the kinds of blocks and the links of pictures, not their texts: it does not notice a changed word.
    """
    lines = markdown.split("\n")
    parts: list[str] = []
    at = 0
    for block in blocks:
        while at < len(lines) and not lines[at].strip():
            at += 1
        end = at + _length(lines, at, block)
        if end < at:
            return None
        parts.append("\n".join(lines[at:end]))
        at = end
    return parts if not any(line.strip() for line in lines[at:]) else None


def _length(lines: Sequence[str], at: int, block: Mapping[str, Any]) -> int:
    """Return how many lines a block has from line `at` on; -1 if it cannot be there."""
    kind, first = block["type"], lines[at] if at < len(lines) else ""
    match kind:
        case "picture" if block.get("link") or block["text"]:
            linked = not block.get("link") or first == f"![]({block['link']})"
            end = next((place for place in range(at, len(lines)) if not lines[place].strip()), len(lines)) - at
            return end if linked and end else -1
        case "code" if _FENCE.fullmatch(first):
            return _through(lines, at, first)
        case "table" if first == "<table>":
            return _through(lines, at, "</table>")
        case "table":
            end = next((place for place in range(at, len(lines)) if not lines[place].startswith("|")), len(lines))
            return end - at or -1
    if kind in {"furniture", "picture"} or (kind in {"heading", "paragraph", "footnote"} and not block["text"]):
        return 0
    starts = {"heading": "#", "quote": "> "}
    fits = bool(first) and all(first.startswith(start) is (kind == name) for name, start in starts.items())
    return 1 if fits and kind != "code" else -1


def _through(lines: Sequence[str], at: int, last: str) -> int:
    return next((place - at + 1 for place in range(at + 1, len(lines)) if lines[place] == last), -1)
