"""How an endpoint that fails is treated: it is left alone for a while, and disabled in the end."""

from datetime import datetime, timedelta

FIRST_PAUSE_S = 5.0
LONGEST_RETRY_AFTER_S = 86_400.0
"""What an endpoint may ask for: it is not our scheduler."""
GONE = "it answered 410 Gone"


def pause_s(failures: int, longest_s: float, asked_s: float | None = None) -> float:
    """How long nothing is sent after so many failures in a row; `asked_s`: the answer's Retry-After."""
    own = min(FIRST_PAUSE_S * 2.0 ** min(failures - 1, 30), longest_s)
    return own if asked_s is None else max(own, min(asked_s, LONGEST_RETRY_AFTER_S))


def has_failed_for_good(failing_since: datetime, now: datetime, days: float) -> bool:
    """Whether an endpoint that fails since then is given up; 0 days: never."""
    return bool(days) and now - failing_since >= timedelta(days=days)
