"""Values in words: numbers, money, sizes, times."""

import hashlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from pipeline.engine.nouns import duration

_STEPS = ((86_400 * 365, "y"), (86_400, "d"), (3600, "h"), (60, "min"))


def count(number: float | None) -> str:
    """Return a rounded number such as `1,425`; None gives a dash."""
    return "–" if number is None else f"{number:,.0f}"


def money(amount: float | None) -> str:
    """Return dollars such as `$0.42`, with two significant digits below a cent, and `< $0.0001` below that; 0 and None
    give a dash."""
    if not amount:
        return "–"
    return f"${amount:,.2f}" if abs(amount) >= 0.01 else f"${amount:.2g}" if abs(amount) >= 0.0001 else "< $0.0001"


def size(octets: float | None) -> str:
    """Return a size such as `1.4 MB`, in steps of 1000; None gives a dash."""
    if octets is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(octets) < 1000:
            return f"{octets:.0f} {unit}" if unit == "B" or octets >= 100 else f"{octets:.1f} {unit}"
        octets /= 1000
    return f"{octets:.1f} TB"


def ms(milliseconds: float | None) -> str:
    """Return a duration in words from its milliseconds; None gives a dash."""
    return "–" if milliseconds is None else duration(milliseconds / 1000)


def ago(moment: datetime, now: datetime) -> str:
    """Return the distance of a moment from now, such as `2 min ago` or `in 40 s`; `just now` for the last five
    seconds."""
    seconds = (now - moment).total_seconds()
    past, seconds = seconds >= 0, abs(seconds)
    if seconds < 5 and past:
        return "just now"
    distance = next(
        (f"{int(seconds // length)} {unit}" for length, unit in _STEPS if seconds >= length), f"{seconds:.0f} s"
    )
    return f"{distance} ago" if past else f"in {distance}"


def exact(moment: datetime) -> str:
    """Return a moment such as `2026-11-23 09:12:05 UTC`."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def plural(number: float, singular: str, many: str = "") -> str:
    """Return a number with its noun, such as `1 page` or `1,425 pages`. `many`: an irregular plural."""
    return f"{count(number)} {singular if number == 1 else many or singular + 's'}"


def combined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return both mappings as one, in which `second` overrides `first`, without None, empty texts and empty lists."""
    return {name: value for name, value in {**first, **second}.items() if value not in (None, "", [], ())}


def short_hash(value: object) -> str:
    """Return ten hexadecimal digits that depend on the value, for ids of elements."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:10]


FILTERS: dict[str, Callable[..., Any]] = {
    "count": count,
    "money": money,
    "size": size,
    "duration": duration,
    "ms": ms,
    "ago": ago,
    "exact": exact,
    "plural": plural,
    "combined": combined,
    "short_hash": short_hash,
}
