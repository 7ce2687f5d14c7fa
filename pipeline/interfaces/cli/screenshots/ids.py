"""The ids of frames, batches and nodes for people: f12, b3, n7."""

from enum import StrEnum

import typer


class Named(StrEnum):
    """The first letter of an id: each kind has its own numbers, so a number alone would be ambiguous."""

    FRAME = "f"
    BATCH = "b"
    NODE = "n"


_OLDER = {"shot": Named.FRAME, "batch": Named.BATCH, "merge": Named.NODE, "vector": Named.NODE}
"""Former words before the number, with a colon."""
_MOST_DIGITS = 18
HOW = "f12 (a frame), b3 (a batch) or n7 (a node)"


def frame(number: int | None) -> str:
    """A frame's id for people, such as `f12`; empty for None."""
    return f"{Named.FRAME}{number}" if number is not None else ""


def batch(number: int | None) -> str:
    """A batch's id for people, such as `b3`; empty for None."""
    return f"{Named.BATCH}{number}" if number is not None else ""


def node(number: int | None) -> str:
    """A node's id for people, such as `n7`; empty for None."""
    return f"{Named.NODE}{number}" if number is not None else ""


def parse(text: str, param_hint: str = "ID") -> tuple[Named, int]:
    """The kind and number of a typed id. Raises `typer.BadParameter` for any other text, also for a number without a
    kind."""
    older, colon, digits = text.strip().rpartition(":")
    kind = _OLDER.get(older) if colon else None
    if not colon and digits[:1].lower() in set(Named):
        kind, digits = Named(digits[0].lower()), digits[1:]
    if not digits.isascii() or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise typer.BadParameter(f"{text!r} is not an id: write {HOW}", param_hint=param_hint)
    if kind is None:
        choices = f"{frame(int(digits))} (a frame), {batch(int(digits))} (a batch) or {node(int(digits))} (a node)"
        raise typer.BadParameter(f"{text!r} may be {choices}", param_hint=param_hint)
    return kind, int(digits)
