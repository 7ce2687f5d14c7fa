"""What each caller may have: in a time, for how much money, and at once. Limits are live settings."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from redis import RedisError

from pipeline.engine.connection import connect
from pipeline.engine.rates import Rate, TooMany, take
from pipeline.operations import accounts
from pipeline.operations.refusal import Refused
from pipeline.settings import ApiSettings
from pipeline.storage import api_keys
from pipeline.storage.context import Context

_AWAY_S = 5.0
"""How long Redis is not asked again after it was away."""
_FRESH_S = 1.0
"""How long what the live settings said is taken for true."""
_DAY_S = 86_400
WRONG_KEYS = Rate(30, 60)
"""How often one address may be wrong."""


class Quotas:
    """What each caller may have in a time. While Redis is away, nobody counts: reading goes on without it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        # One that fails at once: who counts must not keep waiting who reads.
        self._redis = connect(context.settings.effective_redis_url, retries=0, timeout_s=1)
        self._not_before = 0.0
        self._settings, self._read_at = context.settings.api, float("-inf")

    @property
    def settings(self) -> ApiSettings:
        """The API's settings, with what was changed of them live. Blocks, once a second; never fails."""
        now = time.monotonic()
        if now - self._read_at > _FRESH_S:
            self._read_at = now
            self._settings = api_keys.limits(self._context) or self._settings
        return self._settings

    def take(self, name: str, rate: Rate, units: int = 1, *, code: str = "too_many_requests", what: str = "") -> None:
        """Raises `Refused` (429) if the caller has had enough. A rate of 0 is no limit."""
        if rate.limit <= 0 or not self._context.online or time.monotonic() < self._not_before:
            return
        try:
            take(self._redis, name, rate, units)
        except TooMany as error:
            said = what or f"more than {rate.limit} requests in {rate.per_s:g} s"
            headers = {"Retry-After": str(max(1, round(error.wait_s + 0.5)))} if error.wait_s is not None else {}
            raise Refused(f"{said}: wait, or ask for a higher limit", code=code, headers=headers) from None
        except RedisError:
            self._not_before = time.monotonic() + _AWAY_S

    def take_request(self, caller: str) -> None:
        """One request of this caller."""
        self.take(f"requests:{caller}", Rate(self.settings.requests_per_min, 60))

    def take_upload(self, caller: str, megabytes: int) -> None:
        """So much that this caller sends, or has us fetch."""
        limit = self.settings.upload_mb_per_hour
        what = f"more than {limit} MB in an hour"
        self.take(f"uploads:{caller}", Rate(limit, 3600), megabytes, code="quota", what=what)

    def take_pages(self, caller: str, count: int) -> None:
        """So many pages that are to be converted for this caller, or converted again."""
        limit = self.settings.pages_per_day
        what = f"more than {limit} pages in a day"
        self.take(f"pages:{caller}", Rate(limit, _DAY_S), count, code="quota", what=what)

    def give_back_pages(self, caller: str, count: int) -> None:
        """Return pages that were charged but not submitted."""
        self.take_pages(caller, -count)

    def check_spending(self, caller: str) -> None:
        """Raise `OverCap` (429) if what this caller asked for has cost enough today, by this server's clock. Blocks.

        Whatever takes work in asks again, for what that may cost, in its own transaction.
        """
        if self.settings.spend_per_day > 0:
            accounts.check(self._context, caller)

    def close(self) -> None:
        """Drop the connections."""
        self._redis.close()
        self._redis.connection_pool.disconnect()


class TooManyAtOnce(Refused):
    """Too much runs at the same time."""


@dataclass
class AtOnce:
    """At most `most` at the same time, and `each` of one caller, so that nobody keeps all others away."""

    most: int
    each: int
    what: str
    _open: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    @property
    def now(self) -> int:
        """How many there are."""
        return self._open.total()

    @contextmanager
    def one(self, caller: str) -> Iterator[None]:
        """One more of this caller. Raises `TooManyAtOnce`: 429 if they have too many, 503 if there are too many."""
        with self._lock:
            if self._open[caller] >= self.each:
                raise TooManyAtOnce(
                    f"{self.each} {self.what} of yours run already: wait for one", code="too_many_requests"
                )
            if self._open.total() >= self.most:
                raise TooManyAtOnce(f"too many {self.what} at the same time: try again in a moment", code="busy")
            self._open[caller] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[caller] -= 1
                self._open += Counter()  # without those that have none
