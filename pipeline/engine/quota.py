"""When a provider's daily quota resets: at a time of day in a zone, whatever the server's clock."""

from datetime import datetime, time, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


def zone(name: str) -> tzinfo:
    """A zone by its name (`America/Los_Angeles`) or its offset (`UTC+8`, `UTC-03:30`). Raises `ValueError`."""
    if name.upper().startswith("UTC"):
        sign = -1 if "-" in name else 1
        hours, _, minutes = name[3:].strip().lstrip("+-").partition(":")
        return timezone(sign * timedelta(hours=int(hours or 0), minutes=int(minutes or 0)))
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(
            f"there is no time zone {name}: use a name like Europe/Berlin or an offset like UTC+8"
        ) from error


def next_reset(now: datetime, at: time, where: tzinfo) -> datetime:
    """The next moment after `now` at which it is `at` in `where`."""
    local = now.astimezone(where)
    reset = local.replace(hour=at.hour, minute=at.minute, second=0, microsecond=0)
    if reset <= local:
        reset = (local + timedelta(days=1)).replace(hour=at.hour, minute=at.minute, second=0, microsecond=0)
    return reset.astimezone(now.tzinfo)
