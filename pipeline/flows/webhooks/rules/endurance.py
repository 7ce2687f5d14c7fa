"""Rules for failing endpoints: Penstock pauses them, and disables them in the end."""

from datetime import datetime, timedelta

FIRST_PAUSE_S = 5.0
LONGEST_RETRY_AFTER_S = 86_400.0
"""The longest accepted Retry-After, so that endpoints cannot schedule our work."""
GONE = "it answered 410 Gone"


def pause_s(failures: int, longest_s: float, retry_after_s: float | None = None) -> float:
    """Return the pause in seconds after this many failures in a row: 5, doubled for each further one, to `longest_s`.

    The answer's `retry_after_s` may prolong it, to a day.
    """
    own = min(FIRST_PAUSE_S * 2.0 ** min(failures - 1, 30), longest_s)
    return own if retry_after_s is None else max(own, min(retry_after_s, LONGEST_RETRY_AFTER_S))


def has_failed_for_good(failing_since: datetime, now: datetime, days: float) -> bool:
    """Whether to disable an endpoint that has failed since then; 0 days: never."""
    return bool(days) and now - failing_since >= timedelta(days=days)
