"""Moments in requests: with their zone, and within the range of every database."""

import re
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Query
from pydantic import AfterValidator, AwareDatetime, BeforeValidator

from pipeline.operations.refusal import Refused

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)


def is_fit(moment: datetime) -> bool:
    """Whether the moment has a zone and lies from 1970 to 2999, so that every database can compare with it."""
    return moment.tzinfo is not None and _EARLIEST <= moment < _LATEST


def _in_utc(moment: datetime) -> datetime:
    if not is_fit(moment):
        raise ValueError("must be from 1970 to 2999")
    return moment.astimezone(UTC)


def _written(moment: object) -> object:
    # Else `since=2026` would mean a second of 1970.
    if (isinstance(moment, str) and not _DATE.match(moment)) or isinstance(moment, int | float):
        raise ValueError("must be written like 2026-11-22T10:00:00Z")
    return moment


At = Annotated[AwareDatetime, BeforeValidator(_written), AfterValidator(_in_utc)]
"""A moment, with its zone."""
Since = Annotated[At | None, Query(description="From this moment on, such as 2026-11-22T10:00:00Z.")]
Until = Annotated[At | None, Query(description="Before this moment.")]


def check_range(since: datetime | None, until: datetime | None) -> None:
    """Raise `Refused` if both ends are given and `until` is not after `since`."""
    if since and until and since >= until:
        raise Refused("the range ends before it begins", code="bad_range")
