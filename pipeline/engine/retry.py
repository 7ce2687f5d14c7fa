"""What to do after an error: a pure decision."""

import random
from dataclasses import dataclass
from datetime import datetime, timedelta

from pipeline.engine.errors import ErrorKind, UnitError


@dataclass(frozen=True)
class RetryAt:
    """Try again then; the attempt counts."""

    at: datetime


@dataclass(frozen=True)
class Release:
    """Try again then; the attempt does not count, for the unit was not at fault."""

    at: datetime


@dataclass(frozen=True)
class GiveUp:
    """Never try again by yourself."""


@dataclass(frozen=True)
class Drop:
    """Nobody wants the result any more."""


Decision = RetryAt | Release | GiveUp | Drop


@dataclass(frozen=True)
class Policy:
    """Waits in seconds before each further attempt: attempts = waits + 1, so that every wait is used."""

    backoff_s: tuple[float, ...]
    jitter: float = 0.2
    """Part of the wait that is added at random, so that a burst of failures does not return as a burst."""

    @property
    def max_attempts(self) -> int:
        return len(self.backoff_s) + 1

    def wait_s(self, attempt: int) -> float:
        """The wait after attempt number `attempt` (1-based)."""
        wait = self.backoff_s[min(attempt, len(self.backoff_s)) - 1]
        return wait * (1 + self.jitter * random.random())  # noqa: S311  # spreads load, guards nothing


def decide(error: UnitError, attempt: int, now: datetime, policy: Policy) -> Decision:
    """What becomes of a unit whose attempt number `attempt` (1-based) ended in `error`.

    A server's Retry-After wins over any table; permanent errors are never tried again.
    """
    match error.kind:
        case ErrorKind.CANCELLED:
            return Drop()
        case ErrorKind.PERMANENT:
            return GiveUp()
        case ErrorKind.RATE_LIMITED | ErrorKind.QUOTA:
            # Without a wait of its own: the gate has closed, for as long as the server asked, and opens when it may.
            return Release(now)
        case ErrorKind.TRANSIENT:
            if attempt >= policy.max_attempts:
                return GiveUp()
            wait = policy.wait_s(attempt) if error.retry_after_s is None else error.retry_after_s
            return RetryAt(now + timedelta(seconds=wait))
