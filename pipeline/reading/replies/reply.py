"""Parse a model's raw reply."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from pipeline.reading.replies import front_matter, plain_markdown, wrapping
from pipeline.reading.replies.form import MAX_CHARACTERS, Form, Parsed

Size = tuple[int, int]

_READERS: Mapping[str, Callable[[Form, str, Size], Parsed]] = {
    "markdown": plain_markdown.read,
    "front_matter": front_matter.read,
}


def parse(form: Form, raw: str, size: Size) -> Parsed:
    """Return the Markdown and blocks of a reply; never raises. `size`: width and height of the picture sent, in pixels.

    A reply that is not in its form is read as far as possible, and `complete` is false."""
    cut = len(raw) > MAX_CHARACTERS
    text, only_thoughts = wrapping.answer(raw[:MAX_CHARACTERS], markdown=form.kind in {"markdown", "front_matter"})
    parsed = _READERS[form.kind](form, text, size)
    return replace(parsed, complete=parsed.complete and not cut, only_thoughts=only_thoughts)
