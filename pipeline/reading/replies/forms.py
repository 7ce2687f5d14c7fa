"""The parsers of all forms of replies, without limits: `reply` limits them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.reading.replies import (
    doctags,
    front_matter,
    html_blocks,
    json_blocks,
    marked_regions,
    plain_markdown,
    tables,
    wrapping,
)
from pipeline.reading.replies.assembly import assemble
from pipeline.reading.replies.form import MAX_CHARACTERS, Form, Parsed, Region

Size = tuple[int, int]


def _read_otsl(form: Form, text: str, size: Size) -> Parsed:
    """Return the table that is the whole reply: OTSL, or HTML where the model prefers it."""
    found = tables.is_otsl(text) or "<table" in text.lower()
    return assemble(form, [Region("table" if found else "text", text)], size, complete=found or not text)


_READERS: Mapping[str, Callable[[Form, str, Size], Parsed]] = {
    "markdown": plain_markdown.read,
    "front_matter": front_matter.read,
    "ref_det": marked_regions.read_ref_det,
    "json_blocks": json_blocks.read,
    "layout_tokens": marked_regions.read_layout_tokens,
    "doctags": doctags.read,
    "otsl": _read_otsl,
    "md_boxes": marked_regions.read_md_boxes,
    "html_blocks": html_blocks.read,
}


def parse(form: Form, raw: str, size: Size) -> Parsed:
    """Return the Markdown and blocks of a reply, as `reply.parse` promises, in this process and without limits."""
    cut = len(raw) > MAX_CHARACTERS
    text, only_thoughts = wrapping.answer(raw[:MAX_CHARACTERS], markdown=form.kind in {"markdown", "front_matter"})
    parsed = _READERS[form.kind](form, text, size)
    return replace(parsed, complete=parsed.complete and not cut, only_thoughts=only_thoughts)


def region(values: Sequence[Any]) -> Region:
    """Return a region that was sent as JSON."""
    label, text, box, turn, continues = values
    return Region(label, text, box and tuple(box), turn, continues)
