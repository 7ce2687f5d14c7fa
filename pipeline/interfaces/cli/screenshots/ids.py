"""How people name frames, batches and nodes: f12, b3, n7."""

from enum import StrEnum

import typer


class Named(StrEnum):
    """What an id begins with: each kind is numbered by itself, so a number alone would not say which is meant."""

    FRAME = "f"
    BATCH = "b"
    NODE = "n"


_OLDER = {"shot": Named.FRAME, "batch": Named.BATCH, "merge": Named.NODE, "vector": Named.NODE}
"""Words that stood before the number earlier, with a colon."""
_MOST_DIGITS = 18
HOW = "f12 (a frame), b3 (a batch) or n7 (a node)"


def frame(number: int | None) -> str:
    """A frame as people see and type it; empty for None."""
    return f"{Named.FRAME}{number}" if number is not None else ""


def batch(number: int | None) -> str:
    """A batch as people see and type it; empty for None."""
    return f"{Named.BATCH}{number}" if number is not None else ""


def node(number: int | None) -> str:
    """A node as people see and type it; empty for None."""
    return f"{Named.NODE}{number}" if number is not None else ""


def parse(said: str, param_hint: str = "ID") -> tuple[Named, int]:
    """The kind and number of an id as it was typed. Raises `typer.BadParameter` for anything else."""
    older, colon, digits = said.strip().rpartition(":")
    kind = _OLDER.get(older) if colon else None
    if not colon and digits[:1].lower() in set(Named):
        kind, digits = Named(digits[0].lower()), digits[1:]
    if not digits.isascii() or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise typer.BadParameter(f"{said!r} is not an id: write {HOW}", param_hint=param_hint)
    if kind is None:
        choices = f"{frame(int(digits))} (a frame), {batch(int(digits))} (a batch) or {node(int(digits))} (a node)"
        raise typer.BadParameter(f"{said!r} may be {choices}", param_hint=param_hint)
    return kind, int(digits)
