"""Parse a model's raw reply: a small one here, a large one in a child process with limits."""

from collections.abc import Callable, Sequence
from threading import BoundedSemaphore
from typing import Any

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.reading.replies import forms
from pipeline.reading.replies.assembly import assemble
from pipeline.reading.replies.form import MAX_CHARACTERS, Form, Parsed, Region
from pipeline.reading.sandbox import child
from pipeline.reading.sandbox.limits import Limits, refused

LARGE = 20_000
"""The longest reply to parse in this process, in characters: it takes a tenth of a second at most."""
LIMITS = Limits(timeout_s=10, total_s=10, memory_mb=600, max_chars=5_000_000)
_MOST_SENT = 5_000_000
_CHILDREN = BoundedSemaphore(2)
_WAIT_S = 20.0

Size = tuple[int, int]


def parse(form: Form, raw: str, size: Size) -> Parsed:
    """Return the Markdown and blocks of a reply. `size`: width and height of the picture sent, in pixels.

    A reply that is not in its form is read as far as possible, and `complete` is false. Raises `UnitError`: permanent
    with code `unparsable` if parsing fails or exceeds its limits, transient if no child can parse now."""
    facts = {"task": "reply", "form": vars(form), "text": raw[: MAX_CHARACTERS + 1], "size": size}
    return _parsed(len(raw), lambda: forms.parse(form, raw, size), facts)


def put_together(regions: Sequence[Region], size: Size) -> Parsed:
    """Return the page made of regions whose texts were read one by one. Raises `UnitError` as `parse` does."""
    facts = {"task": "regions", "regions": regions, "size": size}
    length = sum(len(region.text) for region in regions)
    return _parsed(length, lambda: assemble(Form(scale=None), regions, size), facts)


def _parsed(length: int, here: Callable[[], Parsed], facts: dict[str, Any]) -> Parsed:
    if length <= LARGE:
        try:
            return here()
        except Exception as error:
            raise refused(f"the reply cannot be parsed: {type(error).__name__}", "unparsable") from error
    if length > _MOST_SENT:
        raise refused(f"the reply has {length:,} characters, more than {_MOST_SENT:,}", "unparsable")
    if not _CHILDREN.acquire(timeout=_WAIT_S):
        raise UnitError("other large replies are being parsed", code="no_reader")
    try:
        with child.Session("") as session:
            answer = session.ask(facts, "the reply", LIMITS)
    except UnitError as error:
        if error.kind is not ErrorKind.PERMANENT:
            raise
        raise refused(f"the reply cannot be parsed: {error}", "unparsable") from error
    finally:
        _CHILDREN.release()
    return Parsed(**answer | {"regions": tuple(map(forms.region, answer["regions"]))})
