"""The decision after an error, as a pure function."""

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from pipeline.engine.errors import ErrorKind, UnitError


@dataclass(frozen=True)
class RetryAt:
    """Retry at `at`; the attempt counts."""

    at: datetime


@dataclass(frozen=True)
class Release:
    """Retry at `at`; the attempt does not count, because the unit was not at fault."""

    at: datetime


@dataclass(frozen=True)
class GiveUp:
    """Do not retry unless a person asks."""


@dataclass(frozen=True)
class Drop:
    """Give the unit back: its result is no longer needed."""


Decision = RetryAt | Release | GiveUp | Drop
MAX_RELEASES = 20
"""After this many releases, a rate limit uses an attempt of the unit if other calls succeed."""


@dataclass(frozen=True)
class Past:
    """The number of releases of a unit, and the time since the last one."""

    releases: int = 0
    released_s_ago: float | None = None


_NO_TABLE_S = 5.0


@dataclass(frozen=True)
class Policy:
    """The waits in seconds before further attempts. A unit has one attempt more than waits."""

    backoff_s: tuple[float, ...]
    jitter: float = 0.2
    """The largest random addition, as a fraction of the wait, so that a burst of failures does not return as one."""

    @property
    def max_attempts(self) -> int:
        return len(self.backoff_s) + 1

    def wait_s(self, attempt: int) -> float:
        """Return the wait in seconds after attempt number `attempt` (1-based), with random jitter."""
        if not self.backoff_s:
            return _NO_TABLE_S
        wait = self.backoff_s[min(attempt, len(self.backoff_s)) - 1]
        return wait * (1 + self.jitter * random.random())  # noqa: S311  # spreads load, guards nothing


def decide(error: UnitError, attempt: int, now: datetime, policy: Policy, past: Past = Past()) -> Decision:
    """Decide about a unit whose attempt number `attempt` (1-based) ended in `error`.

    Permanent errors are never retried. An unwanted result gives the unit back. A failure of the provider (not of the
    unit) uses no attempt, however long it lasts. A quota, a rate limit or an unavailable provider releases the unit at
    once, for its gate to wait; a rate limit that the unit may have caused does so at most `MAX_RELEASES` times. For
    other errors, a server's Retry-After replaces the wait of `policy`.
    """
    if error.kind is ErrorKind.CANCELLED:
        return Drop()
    if error.kind is ErrorKind.PERMANENT:
        return GiveUp()
    own = error.health is None or error.health.blames_unit(past.released_s_ago)
    limited = error.kind is ErrorKind.RATE_LIMITED and not (error.health and own and past.releases >= MAX_RELEASES)
    unavailable = error.kind is ErrorKind.UNAVAILABLE and not (error.health and own)
    if limited or unavailable or error.kind is ErrorKind.QUOTA:
        return Release(now)  # the gate stays closed for as long as it takes
    if own and attempt >= policy.max_attempts:
        return GiveUp()
    wait_s = policy.wait_s(attempt if own else past.releases + 1)
    at = now + timedelta(seconds=wait_s if error.retry_after_s is None else error.retry_after_s)
    return RetryAt(at) if own else Release(at)


def seconds_or_date(value: str | None, now: datetime) -> float | None:
    """Parse the value of a Retry-After header into a wait in seconds; None for any other text.

    The number is foreign input: it may be negative, infinite or NaN."""
    if not value:
        return None
    try:
        return float(value)
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return ((date if date.tzinfo else date.replace(tzinfo=UTC)) - now).total_seconds()
