"""Limits as people write them: `10/s`, `500/min`, `20000/day`, `100000 tokens/min`."""

import re

from pipeline.engine.gate import MAX_WINDOWS, Unit, Window

_SECONDS = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400}
_FORM = re.compile(r"(\d+)\s*+(tokens?|requests?)?\s*+/\s*+(\d+(?:\.\d+)?)?\s*+([a-z]+)")
MAX_LIMIT = 1_000_000_000


def parse_windows(text: str) -> list[Window]:
    """Parse limits separated by commas, such as `10/s, 100000 tokens/min`; an empty text has none. Raises
    `ValueError`."""
    parts = [part.strip().lower() for part in text.split(",") if part.strip()]
    if len(parts) > MAX_WINDOWS:
        raise ValueError(f"{len(parts)} limits are too many: a queue has at most {MAX_WINDOWS}")
    return [_parse(part) for part in parts]


def _parse(part: str) -> Window:
    match = _FORM.fullmatch(part)
    if not match or match[4] not in _SECONDS:
        raise ValueError(f"'{part}' is not a limit: write it like 10/s, 500/min, 20000/day or 100000 tokens/min")
    limit, window_s = int(match[1]), float(match[3] or 1) * _SECONDS[match[4]]
    if not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"'{part}': the limit must be from 1 to {MAX_LIMIT}; to stop a queue, pause it")
    if not 0.1 <= window_s <= 31 * 86400:
        raise ValueError(f"'{part}': the window must be from 0.1 s to 31 days")
    return Window(limit, window_s, Unit.TOKENS if (match[2] or "").startswith("token") else Unit.REQUESTS)


def format_windows(windows: list[Window]) -> str:
    """The windows as text for `parse_windows`."""
    return ", ".join(_format(window) for window in windows)


def _format(window: Window) -> str:
    unit = " tokens" if window.unit is Unit.TOKENS else ""
    for name, seconds in (("day", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count = window.window_s / seconds
        if count >= 1 and count == int(count):
            return f"{window.limit}{unit}/{int(count) if count > 1 else ''}{name}"
    return f"{window.limit}{unit}/{window.window_s!r}s"
