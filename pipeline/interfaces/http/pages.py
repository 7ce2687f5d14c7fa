"""Lists, a page at a time. A cursor says after which item the next page begins, so that nothing is left out or shown
twice while items come and go."""

import base64
import binascii
import json
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field, StringConstraints, TypeAdapter, ValidationError

from pipeline.engine.tables import storable
from pipeline.interfaces.http.fields import CLEAN
from pipeline.interfaces.http.moments import is_fit
from pipeline.operations.refusal import Refused

Item = TypeVar("Item")
Shown = TypeVar("Shown")
_MAX_CURSOR = 500

Cursor = Annotated[
    Annotated[str, StringConstraints(max_length=_MAX_CURSOR), CLEAN] | None,
    Query(description="`next_cursor` of the page before; none: the first page."),
]


class Page(BaseModel, Generic[Item]):
    """Some of a list."""

    items: list[Item]
    next_cursor: str | None = Field(default=None, description="Where the next page begins; null: this is the last one.")


def encode(*key: str | int | float | datetime) -> str:
    """A cursor that names the item with this key."""
    parts = [part.isoformat() if isinstance(part, datetime) else part for part in key]
    return base64.urlsafe_b64encode(json.dumps(parts, separators=(",", ":")).encode()).decode().rstrip("=")


def decode(cursor: str | None, *types: Any) -> tuple[Any, ...] | None:
    """The key in a cursor, its parts of these types; None for none. Raises `Refused` (400) for anything else.

    A cursor is not signed: it holds no more than a filter could, and is checked as strictly.
    """
    if not cursor:
        return None
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        parts = TypeAdapter(tuple[types]).validate_python(json.loads(text))  # type: ignore[valid-type]
    except (ValueError, binascii.Error, ValidationError, RecursionError):
        parts = None
    if parts is None or any(_unfit(part) for part in parts):
        raise Refused("this cursor was not given by this list: begin without one", code="bad_cursor")
    return tuple(parts)


def _unfit(part: Any) -> bool:
    """Whether no database could be asked about this."""
    match part:
        case str():
            return storable(part) != part
        case datetime():
            return not is_fit(part)
        case int():
            return abs(part) >= 2**63
        case float():
            return not math.isfinite(part)
        case _:
            return False


def views(found: Sequence[Item], limit: int, key: Callable[[Item], Sequence[Any]]) -> Page[Item]:
    """A page of what was found. Ask for `limit + 1` items: the one too many says that there is a next page."""
    some = list(found[:limit])
    return Page(items=some, next_cursor=encode(*key(some[-1])) if len(found) > limit else None)


def page(
    found: Sequence[Item], limit: int, shown: Callable[[Item], Shown], key: Callable[[Item], Sequence[Any]]
) -> Page[Shown]:
    """The same, of something that is shown for each item."""
    some = views(found, limit, key)
    return Page(items=[shown(item) for item in some.items], next_cursor=some.next_cursor)
