"""When a provider's daily quota resets: at a time of day in a zone, whatever the server's clock."""

import re
from datetime import datetime, time, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_OFFSET = re.compile(r"UTC\s*+(?P<sign>[+-]?)\s*+(?P<hours>\d{1,2})?(?::(?P<minutes>\d{1,2}))?", re.IGNORECASE)
_MAX_NAME = 60


def zone(name: str) -> tzinfo:
    """A zone by its name (`America/Los_Angeles`) or its offset (`UTC+8`, `UTC-03:30`). Raises `ValueError`."""
    found = _OFFSET.fullmatch(name.strip())
    try:
        if found is not None:
            offset = timedelta(hours=int(found["hours"] or 0), minutes=int(found["minutes"] or 0))
            return timezone(-offset if found["sign"] == "-" else offset)
        return ZoneInfo(name[: _MAX_NAME + 1])  # a name that is too long takes the search for it to the recursion limit
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: the name of a folder of zones
        raise ValueError(
            f"there is no time zone {name[:_MAX_NAME]}: use a name like Europe/Berlin or an offset like UTC+8"
        ) from error


def next_reset(now: datetime, at: time, where: tzinfo) -> datetime:
    """The next moment after `now` at which it is `at` in `where`."""
    local = now.astimezone(where)
    reset = local.replace(hour=at.hour, minute=at.minute, second=0, microsecond=0)
    if reset <= local:
        reset = (local + timedelta(days=1)).replace(hour=at.hour, minute=at.minute, second=0, microsecond=0)
    return reset.astimezone(now.tzinfo)
