"""Lists, a page at a time. A cursor names the last item of a page, so that no page leaves out or repeats an item while
others are added and deleted."""

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

_SHAPE = Field(json_schema_extra={"pattern": "^(W[w-z0-9_-][A-Za-z0-9_-]*)?$"})
"""The shape that `encode` gives, for the OpenAPI document: `decode` refuses more, and says so."""
Cursor = Annotated[
    Annotated[str, StringConstraints(max_length=_MAX_CURSOR), CLEAN, _SHAPE] | None,
    Query(description="`next_cursor` of the previous page; none: the first page."),
]


class Page(BaseModel, Generic[Item]):
    """A page of a list."""

    items: list[Item]
    next_cursor: str | None = Field(default=None, description="The cursor of the next page; null on the last page.")


def encode(*key: str | int | float | datetime) -> str:
    """Return a cursor, safe in addresses, that names the item with this key."""
    parts = [part.isoformat() if isinstance(part, datetime) else part for part in key]
    return base64.urlsafe_b64encode(json.dumps(parts, separators=(",", ":")).encode()).decode().rstrip("=")


def decode(cursor: str | None, *types: Any) -> tuple[Any, ...] | None:
    """Return the parts of a cursor's key, of these types; None without a cursor. Raises `Refused` (400) for other text.

    A cursor needs no signature: it holds no more than a filter could, and passes the same checks.
    """
    if not cursor:
        return None
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        parts = TypeAdapter(tuple[types]).validate_python(json.loads(text))  # type: ignore[valid-type]
    except (ValueError, binascii.Error, ValidationError, RecursionError):
        parts = None
    if parts is None or any(_unfit(part) for part in parts):
        raise Refused("this list gave no such cursor: begin without one", code="bad_cursor")
    return tuple(parts)


def _unfit(part: Any) -> bool:
    """Whether some database could not compare with this value."""
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


def views(items: Sequence[Item], limit: int, key: Callable[[Item], Sequence[Any]]) -> Page[Item]:
    """Return a page of the first `limit` items. Query `limit + 1`: the extra item shows that there is a next page.

    `key`: the parts of an item's key, for the cursor.
    """
    shown = list(items[:limit])
    return Page(items=shown, next_cursor=encode(*key(shown[-1])) if len(items) > limit else None)


def page(
    items: Sequence[Item], limit: int, shown: Callable[[Item], Shown], key: Callable[[Item], Sequence[Any]]
) -> Page[Shown]:
    """Return a page of `shown(item)` for the first `limit` items; an extra item, not shown, announces a next page."""
    part = views(items, limit, key)
    return Page(items=[shown(item) for item in part.items], next_cursor=part.next_cursor)
