"""Quotas of callers: requests, uploads, pages, money and concurrency. Limits are live settings."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition

from redis import RedisError

from pipeline.engine.connection import connect
from pipeline.engine.rates import Rate, TooMany, take
from pipeline.operations import accounts
from pipeline.operations.refusal import Refused
from pipeline.reading.sandbox.limits import Unwanted
from pipeline.settings import ApiSettings
from pipeline.storage import api_keys
from pipeline.storage.context import Context

_AWAY_S = 5.0
"""How long to skip Redis after it was unreachable."""
_FRESH_S = 1.0
"""How long to use live settings before the next read."""
_ASK_S = 0.5
_DAY_S = 86_400
WRONG_KEYS = Rate(30, 60)
"""The most wrong keys from one address."""


class Quotas:
    """The rates of each caller. While Redis is unreachable, these limits do not apply."""

    def __init__(self, context: Context) -> None:
        self._context = context
        # A client that fails at once: counting must not delay a request.
        self._redis = connect(context.settings.effective_redis_url, retries=0, timeout_s=1)
        self._not_before = 0.0
        self._settings, self._read_at = context.settings.api, float("-inf")

    @property
    def settings(self) -> ApiSettings:
        """The API's settings with their live changes. Reads the database at most once a second; never fails."""
        now = time.monotonic()
        if now - self._read_at > _FRESH_S:
            self._read_at = now
            self._settings = api_keys.limits(self._context) or self._settings
        return self._settings

    def take(self, name: str, rate: Rate, units: int = 1, *, code: str = "too_many_requests", reason: str = "") -> None:
        """Take units from a rate; negative units give back. Raises `Refused` (429, with `code`) if it is used up. A
        rate of 0 means no limit, and so does an unreachable Redis."""
        if rate.limit <= 0 or not self._context.online or time.monotonic() < self._not_before:
            return
        try:
            take(self._redis, name, rate, units)
        except TooMany as error:
            excess = reason or f"more than {rate.limit} requests in {rate.per_s:g} s"
            headers = {"Retry-After": str(max(1, round(error.wait_s + 0.5)))} if error.wait_s is not None else {}
            raise Refused(f"{excess}: wait, or ask for a higher limit", code=code, headers=headers) from None
        except RedisError:
            self._not_before = time.monotonic() + _AWAY_S

    def take_request(self, caller: str) -> None:
        """Count one request of this caller. Raises `Refused` (429)."""
        self.take(f"requests:{caller}", Rate(self.settings.requests_per_min, 60))

    def take_upload(self, caller: str, megabytes: int) -> None:
        """Count megabytes that this caller uploads, or that Penstock fetches for it. Raises `Refused` (429)."""
        limit = self.settings.upload_mb_per_hour
        reason = f"more than {limit} MB in an hour"
        self.take(f"uploads:{caller}", Rate(limit, 3600), megabytes, code="quota", reason=reason)

    def take_pages(self, caller: str, count: int) -> None:
        """Count pages to convert for this caller; negative counts give back. Raises `Refused` (429)."""
        limit = self.settings.pages_per_day
        reason = f"more than {limit} pages in a day"
        self.take(f"pages:{caller}", Rate(limit, _DAY_S), count, code="quota", reason=reason)

    def check_spending(self, caller: str) -> None:
        """Raise `OverCap` (429) if this caller has spent its cap today, by this server's clock. Waits for the database.

        The transaction that admits work checks again, with the work's estimate.
        """
        if self.settings.spend_per_day > 0:
            accounts.check(self._context, caller)

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()
        self._redis.connection_pool.disconnect()


class TooManyAtOnce(Refused):
    """Too many actions run at the same time."""


@dataclass(frozen=True, eq=False)
class _Action:
    """An action that waits or has begun."""

    caller: str
    places: int


@dataclass
class AtOnce:
    """Places for at most `most` actions at the same time. No caller gets more than half of them.

    Where actions wait, the caller with the fewest places goes first.
    """

    most: int
    noun: str
    wait_s: float = 0.0
    """How long an action waits for a place."""
    waiting: int = 0
    """The most actions that wait, half of them of one caller."""
    _open: Counter[str] = field(default_factory=Counter)
    _waiting: list[_Action] = field(default_factory=list)
    _changed: Condition = field(default_factory=Condition)

    @property
    def now(self) -> int:
        """The number of places that are taken."""
        return self._open.total()

    @property
    def each(self) -> int:
        """The most places of one caller."""
        return self.most // 2

    @contextmanager
    def one(self, caller: str, wanted: Callable[[], bool] = lambda: True, places: int = 1) -> Iterator[None]:
        """Admit one action of this caller during the block. It takes `places`, at most `each` of them.

        Raises `TooManyAtOnce` if no place is free in time: 429 if the caller has its share, 503 if others have them;
        and `Unwanted` once `wanted`, asked twice a second while the action waits, returns False.
        """
        action = _Action(caller, min(places, self.each))
        with self._changed:
            self._enter(action)
        try:
            self._wait(action, wanted)
        finally:
            with self._changed:
                self._waiting.remove(action)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._open[caller] -= action.places
                self._open += Counter()  # drops callers without actions
                self._changed.notify_all()

    def _enter(self, action: _Action) -> None:
        self._waiting.append(action)
        if self._next() is action:
            return
        of_caller = sum(other.caller == action.caller for other in self._waiting)
        if of_caller > self.waiting // 2 or len(self._waiting) > self.waiting:
            self._waiting.remove(action)
            raise self._refusal(action)

    def _wait(self, action: _Action, wanted: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.wait_s
        while True:
            with self._changed:
                if self._next() is action:
                    self._open[action.caller] += action.places
                    return
                if (left_s := deadline - time.monotonic()) <= 0:
                    raise self._refusal(action)
                self._changed.wait(min(left_s, _ASK_S))
            if not wanted():
                raise Unwanted("the caller no longer waits")

    def _next(self) -> _Action | None:
        """Return the waiting action that may begin, if any: the first of the caller with the fewest places."""
        due = [action for action in self._waiting if self._has_room(action)]
        first = min(due, key=lambda action: self._open[action.caller], default=None)
        # Smaller actions do not overtake one that needs several places.
        return first if first and self._open.total() + first.places <= self.most else None

    def _has_room(self, action: _Action) -> bool:
        return self._open[action.caller] + action.places <= self.each

    def _refusal(self, action: _Action) -> TooManyAtOnce:
        if not self._has_room(action):
            return TooManyAtOnce(f"too many {self.noun} of yours run already: wait for one", code="too_many_requests")
        return TooManyAtOnce(f"too many {self.noun} at the same time: try again in a moment", code="busy")


SEARCHES = AtOnce(24, "searches", wait_s=20, waiting=16)
"""Searches take a thread while a provider answers."""
