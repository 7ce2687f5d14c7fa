"""Moments and durations: parses typed ones, and formats them for people."""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated

import typer

from pipeline.engine.errors import UserError

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGO = re.compile(r"(?:\d+(?:w|d|h|min|m|s))+")
_PART = re.compile(r"(?<!\d)(\d+)(w|d|h|min|m|s)")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
HOW = "2d, 3h, 90m (ago), 2026-03-01, 2026-03-01T14:30, today, yesterday or now"

Since = Annotated[str, typer.Option(metavar="WHEN", help=f"From this time on: {HOW}.")]
Until = Annotated[str, typer.Option(metavar="WHEN", help="Before this time; written like --since.")]


def moment(words: str, zone: tzinfo, option: str = "--since", now: datetime | None = None) -> datetime | None:
    """An instant with a zone, from an ISO text (in `zone` unless it names its own; a date is its midnight), `now`,
    `today`, `yesterday`, or a time ago such as `2d`; None for an empty text.

    `option`: the option that an error names; `now`: the current time, None for the clock's. Raises `typer.BadParameter`
    for any other text.
    """
    stripped = words.strip()
    now = (now or datetime.now(UTC)).astimezone(zone)
    if not stripped:
        return None
    try:
        match stripped.lower():
            case "now":
                return now
            case "today" | "yesterday" as day:
                midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
                return midnight - timedelta(days=1) if day == "yesterday" else midnight
            case text if _AGO.fullmatch(text):
                ago = timedelta(seconds=sum(int(n) * _UNITS[unit] for n, unit in _PART.findall(text)))
                return now.astimezone(UTC) - ago  # in UTC, where no clock change adds or removes an hour
        parsed = datetime.fromisoformat(stripped)
        # Converting to UTC also refuses instants near the calendar's ends, which a zone would overflow.
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{stripped!r} is not a time: {HOW}", param_hint=option) from None


def zone_of_here() -> tzinfo:
    """This machine's time zone, which `today` refers to."""
    return datetime.now(UTC).astimezone().tzinfo or UTC


def duration_s(text: str) -> float | None:
    """A duration such as `90s`, `10m`, `2h` or `90d` in seconds, a number alone as seconds; None for an empty text.
    Raises `UserError` for other texts and 0."""
    if not text:
        return None
    match = _DURATION.fullmatch(text.strip())
    if not match or float(match[1]) <= 0:
        raise UserError(f"'{text}' is not a duration: write it like 90s, 10m, 2h or 90d", code="usage")
    return float(match[1]) * _UNITS[match[2] or "s"]


def local(at: datetime | None, zone: tzinfo) -> str:
    """`2026-03-01 14:30:05` in this zone; empty for None."""
    return at.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S") if at else ""


def span(seconds: float) -> str:
    """A duration such as `45 s`, `12 min 5 s` or `3 h 5 min`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def ago(at: datetime | None) -> str:
    """How long ago, such as `3 h ago`, rounded down; empty for None."""
    if at is None:
        return ""
    seconds = max(0, int((datetime.now(UTC) - at).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"
