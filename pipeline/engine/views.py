"""Views: frozen, typed copies of rows for callers; and views as JSON."""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum, IntEnum
from functools import cache
from math import floor, log10
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

View = TypeVar("View")
PASSING = "passing"
"""A mark in a field's metadata: the field is transient, and stays out of the view's JSON."""


def view_of(kind: type[View], row: Any, /, **more: Any) -> View:
    """Return a row, or any object with its attributes, as a view of this class. `more` overrides the row.

    A field's type decides how to read its column: an enum from its value, a list or dict from JSON. A field without a
    column keeps its default.
    """
    readers = _readers(kind)  # type: ignore[arg-type]  # mypy does not know that classes are hashable
    own = {name: read(getattr(row, name)) for name, read in readers if name not in more and hasattr(row, name)}
    return kind(**own, **more)


@cache
def _readers(kind: Any) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    return tuple((field.name, _reader(field.type)) for field in fields(kind))


def _reader(declared: Any) -> Callable[[Any], Any]:
    if get_origin(declared) is Annotated:
        declared = get_args(declared)[0]
    if isinstance(declared, type) and issubclass(declared, Enum):
        return declared
    if {get_origin(kind) for kind in (declared, *get_args(declared))} & {list, dict}:
        return lambda value: json.loads(value) if isinstance(value, str) else value
    return lambda value: value


def money(amount: float) -> str:
    """Write a cost, without a currency: four decimals, or two significant digits below 0.001."""
    digits = 4 if amount == 0 or amount >= 0.001 else 1 - floor(log10(amount))
    return f"{amount:.{digits}f}"


def plain(value: Any) -> Any:
    """Return a view, or a container of views, as JSON types: views as dicts, numbered states by name, times in ISO
    format, paths as text."""
    if is_dataclass(value) and not isinstance(value, type):
        shown = (field.name for field in fields(value) if not field.metadata.get(PASSING))
        return {name: plain(getattr(value, name)) for name in shown}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, Path) else value
