"""Compute when a provider's daily quota resets: at a time of day in a zone, whatever the server's clock."""

import re
from datetime import datetime, time, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_OFFSET = re.compile(r"UTC\s*+(?P<sign>[+-]?)\s*+(?P<hours>\d{1,2})?(?::(?P<minutes>\d{1,2}))?", re.IGNORECASE)
_MAX_NAME = 60


def zone(name: str) -> tzinfo:
    """Return a zone by its name (`America/Los_Angeles`) or offset (`UTC+8`, `UTC-03:30`). Raises `ValueError`."""
    match = _OFFSET.fullmatch(name.strip())
    try:
        if match is not None:
            offset = timedelta(hours=int(match["hours"] or 0), minutes=int(match["minutes"] or 0))
            return timezone(-offset if match["sign"] == "-" else offset)
        return ZoneInfo(name[: _MAX_NAME + 1])  # a longer name makes the lookup exceed the recursion limit
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: the name is a folder of zones
        raise ValueError(
            f"there is no time zone {name[:_MAX_NAME]}: use a name like Europe/Berlin or an offset like UTC+8"
        ) from error


def next_reset(now: datetime, at: time, where: tzinfo) -> datetime:
    """Return the next time after `now`, in its time zone, when the clock in zone `where` shows `at`."""
    local = now.astimezone(where)
    reset = local.replace(hour=at.hour, minute=at.minute, second=0, microsecond=0)
    if reset <= local:
        reset = (local + timedelta(days=1)).replace(hour=at.hour, minute=at.minute, second=0, microsecond=0)
    return reset.astimezone(now.tzinfo)
