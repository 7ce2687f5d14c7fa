"""The text of a page in sections, one for each block that has a box on the page's picture."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from pipeline.interfaces.console import markdown
from pipeline.interfaces.console.addresses import url
from pipeline.reading.layout.sections import sections
from pipeline.storage import fusion

_MARKUP = re.compile(r"""(<(?:"[^"<]*+"|'[^'<]*+'|[^'"<>])*+>)""")
_SAID = 90
MOST_MARKED = 200_000
"""Longer texts are shown without marked words."""
MOST_BLOCKS = 2_000
"""A page with more blocks is shown as one text, without boxes."""


@dataclass(frozen=True)
class Section:
    """Part of a page's text. `box`: left, top, width and height on the page; None if unknown."""

    id: str
    kind: str
    html: Markup
    label: str
    """Its first words, for screen readers."""
    box: tuple[float, float, float, float] | None = None
    depth: int = 0
    matches: bool = False
    """The section has searched words."""

    @property
    def area(self) -> float:
        """The area of its box: small boxes are drawn above boxes of paragraphs that span columns."""
        return self.box[2] * self.box[3] if self.box else 0.0


@dataclass(frozen=True)
class Reading:
    """A page to read: its sections, and the size of the page in their boxes' units; 0 without boxes."""

    sections: list[Section]
    width: float = 0
    height: float = 0
    note: str = ""
    """The reason why its source is shown."""

    @property
    def boxes(self) -> list[Section]:
        """The sections that can be shown on the picture."""
        return [section for section in self.sections if section.box]


def reading(document_id: str, content: str, layout: Mapping[str, Any] | None, caller: str, words: str = "") -> Reading:
    """Return the page's Markdown as sections of HTML, one for each block of `layout`, with `words` marked.

    Without blocks that match the text, or with more than `MOST_BLOCKS`, it is one section without a box; none for a
    blank text.
    """
    pictures = url(f"/api/v1/documents/{document_id}/pictures")
    blocks = [block for block in layout["blocks"] if block["type"] != "furniture"] if layout else []
    parts = sections(content, blocks) if 0 < len(blocks) <= MOST_BLOCKS else None
    if layout is None or parts is None:
        shown = markdown.html([content] if content.strip() else [], caller, pictures)
        return Reading(
            [Section("b0", "markdown", marked(shown_part, words), "") for shown_part in shown.parts], note=shown.note
        )
    # The class of a list item gives its depth.
    texts = [part.strip() if block["type"] == "list_item" else part for block, part in zip(blocks, parts, strict=True)]
    shown = markdown.html(texts, caller, pictures)
    page_sections = [
        Section(
            f"b{place}",
            block["type"],
            marked(part, words),
            _first_words(block),
            _box(block),
            min(int(block.get("depth", 0)), 6),
            matches=bool(words and fusion.spots(str(block["text"])[:MOST_MARKED], words)),
        )
        for place, (block, part) in enumerate(zip(blocks, shown.parts, strict=True))
    ]
    return Reading(page_sections, float(layout["width"] or 0), float(layout["height"] or 0), shown.note)


def marked(html: Markup, words: str) -> Markup:
    """Return the HTML with these words marked in its text; very long HTML stays unmarked."""
    if not words.strip() or len(html) > MOST_MARKED:
        return html
    parts = _MARKUP.split(str(html))
    for place in range(0, len(parts), 2):
        parts[place] = _marked_text(parts[place], words)
    return Markup("".join(parts))  # noqa: S704  # clean HTML stays clean: marks are added to its text only


def _marked_text(text: str, words: str) -> str:
    marked_parts, at = [], 0
    for begin, end in fusion.spots(text, words):
        # Not inside `&amp;`.
        if begin < at or re.search(r"&#?\w*$", text[max(0, begin - 12) : begin]):
            continue
        marked_parts += [text[at:begin], "<mark>", text[begin:end], "</mark>"]
        at = end
    return "".join([*marked_parts, text[at:]])


def _first_words(block: Mapping[str, Any]) -> str:
    text = " ".join(str(block["text"]).split())
    return text if len(text) <= _SAID else f"{text[: _SAID - 1]}…"


def _box(block: Mapping[str, Any]) -> tuple[float, float, float, float] | None:
    if not block.get("bbox"):
        return None
    left, top, right, bottom = (float(side) for side in block["bbox"])
    return round(left, 1), round(top, 1), round(max(right - left, 1), 1), round(max(bottom - top, 1), 1)
