"""A unit's way through the gate to the provider: the second check, the call, and what it says of the provider."""

from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

import structlog
from redis import RedisError
from sqlalchemy.exc import SQLAlchemyError

from pipeline.engine.breaker import Breaker, BreakerState
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.gate import Admission, Gate

log = structlog.get_logger(__name__)
Result = TypeVar("Result")


class Sending(Protocol):
    """What a provider tells of a request on its way: preparing and sending one takes as long as it likes, and a
    window that counted from before that would be upset."""

    def ready(self) -> None:
        """The request is about to be sent. Raises `UnitError`: then nothing may be sent."""

    def sent(self) -> None:
        """The request has been handed over to the network."""


sending: ContextVar[Sending | None] = ContextVar("sending", default=None)
"""Who wants to know of the request that this call makes."""


class GateClosed(UnitError):
    """The gate closed between admission and call: no call was made, and no attempt is used."""

    kind = ErrorKind.RATE_LIMITED


@dataclass(frozen=True)
class Passage:
    """What a message was admitted with. One call at a time; `leave` when the message is done, called or not."""

    gate: Gate
    breaker: Breaker
    holder: str
    quota_reset: Callable[[datetime], datetime]
    on_change: Callable[[BreakerState | None], None]
    """Called when the breaker opened, with how it stands, or closed, with None."""
    cost_of: Callable[[str, int, int], float]
    """The price of a call by model, input and output tokens."""
    on_cost: Callable[[float], None]
    cost: int = 1
    tokens: int = 0
    """Estimated tokens of the call; corrected by what it used."""

    def call(self, ask: Callable[[], Result], usage_of: Callable[[Result], tuple[str, int, int]]) -> Result:
        """Make one call; `usage_of` gives model, input and output tokens of its result.

        Raises `GateClosed` if the gate closed before it was sent, or what `ask` raises."""
        on_the_way = _Stamping(self)
        token = sending.set(on_the_way)
        try:
            result = ask()
        except UnitError as error:
            if on_the_way.stamp:
                self._note(lambda failure=error: self._failed(failure))  # type: ignore[misc]
                if (partial := getattr(error, "answer", None)) is not None:
                    self._note(lambda: self._account(*usage_of(partial)))
            raise
        finally:
            sending.reset(token)
        if not on_the_way.stamp:
            raise RuntimeError("a provider made a call without telling `sending`")
        # The breaker first: while it is half-open, its probe keeps others out. What follows (accounts, storing the
        # result) needs no place at the provider: another call may have it.
        self._note(self._succeeded)
        self._note(self.leave)
        self._note(lambda: self._account(*usage_of(result)))
        return result

    def _note(self, note: Callable[[], None]) -> None:
        """Do the bookkeeping after a call. What it cannot write must not cost the answer that was paid for."""
        try:
            note()
        except (RedisError, SQLAlchemyError) as error:
            log.warning("passage.not_noted", queue=self.gate.queue, error=type(error).__name__)

    def _succeeded(self) -> None:
        if self.breaker.succeeded():
            self.on_change(None)

    def _account(self, model: str, input_tokens: int, output_tokens: int) -> None:
        if self.tokens:
            self.gate.finish(self.holder, input_tokens + output_tokens - self.tokens)
        cost = self.cost_of(model, input_tokens, output_tokens)
        if cost:
            self.on_cost(cost)

    def _failed(self, error: UnitError) -> None:
        if self.breaker.failed(error, self.quota_reset):
            self.on_change(self.breaker.look())

    def leave(self) -> None:
        """Give slot and reservation back; harmless if they are."""
        self.gate.finish(self.holder)


class _Stamping:
    """Stamps the passage's reservation when the request is ready, and again when it is sent."""

    def __init__(self, passage: Passage) -> None:
        self._passage = passage
        self.stamp = 0

    def ready(self) -> None:
        passage = self._passage
        try:
            admission = passage.gate.stamp(passage.holder, passage.cost, passage.tokens)
        except RedisError:
            # Without Redis nobody can say whether a call is allowed.
            admission = Admission(granted=False, wait_s=1.0, reason="Redis is away")
        if not admission.granted:
            why = f"the gate of {passage.gate.queue} closed ({admission.reason})"
            raise GateClosed(why, retry_after_s=admission.wait_s, code="gate_closed")
        self.stamp = admission.stamp

    def sent(self) -> None:
        with suppress(RedisError):
            self._passage.gate.sent(self.stamp, self._passage.cost, self._passage.tokens)
