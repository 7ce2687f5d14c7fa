"""Moments as people say them at the terminal, and as they are told them."""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated

import typer

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGO = re.compile(r"(?:\d+(?:w|d|h|min|m|s))+")
_PART = re.compile(r"(\d+)(w|d|h|min|m|s)")
HOW = "2d, 3h, 90m (ago), 2026-03-01, 2026-03-01T14:30, today, yesterday or now"

Since = Annotated[str, typer.Option(metavar="WHEN", help=f"Only from then on: {HOW}.")]
Until = Annotated[str, typer.Option(metavar="WHEN", help="Only before then; said like --since.")]


def moment(words: str, zone: tzinfo, option: str = "--since", now: datetime | None = None) -> datetime | None:
    """An instant: ISO (in `zone` unless it names its own), or how long ago. None for nothing. A date is its beginning.

    Raises `typer.BadParameter` for anything else.
    """
    said = words.strip()
    now = (now or datetime.now(UTC)).astimezone(zone)
    if not said:
        return None
    try:
        match said.lower():
            case "now":
                return now
            case "today" | "yesterday" as day:
                midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
                return midnight - timedelta(days=1) if day == "yesterday" else midnight
            case text if _AGO.fullmatch(text):
                ago = timedelta(seconds=sum(int(n) * _UNITS[unit] for n, unit in _PART.findall(text)))
                return now.astimezone(UTC) - ago  # in UTC: clocks that go forward take no hour away
        found = datetime.fromisoformat(said)
        # Far from the ends of the calendar, so that no zone leads over them.
        return (found if found.tzinfo else found.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{said!r} is no time: {HOW}", param_hint=option) from None


def told(at: datetime | None, zone: tzinfo) -> str:
    """`2026-03-01 14:30:05`, in the zone of the settings."""
    return at.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S") if at else ""


def span(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 5 min`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{rest} s"
