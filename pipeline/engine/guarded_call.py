"""A call to a provider through its gate: check the gate once more, call, and record the provider's health."""

import time
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
from pipeline.engine.errors import ErrorKind, Health, UnitError
from pipeline.engine.gate import Admission, Gate, StampedCall
from pipeline.engine.telemetry import span

log = structlog.get_logger(__name__)
Result = TypeVar("Result")
_NEVER_THE_UNITS = frozenset({"overloaded", "rate_limited"})
"""Codes of failures that a unit cannot cause."""
_OF_THE_ACCOUNT = frozenset({"auth", "no_credit"})
"""Codes of failures of the account: they are never the unit's fault, even if other calls succeed."""


class RequestHooks(Protocol):
    """Hooks that a provider's client calls as a request leaves. Preparing and sending it may take long, so a window
    counts the request from the time that it really leaves."""

    def ready(self) -> None:
        """Call just before the request is sent. If this raises `UnitError`, do not send it."""

    def sent(self) -> None:
        """Call when the request has been handed to the network."""


request_hooks: ContextVar[RequestHooks | None] = ContextVar("request_hooks", default=None)
"""The hooks of the request that the current call makes."""

earlier_answers: ContextVar[int] = ContextVar("earlier_answers", default=0)
"""The number of recorded answers to the same request, if the call wants a new answer; else 0."""


class GateClosed(UnitError):
    """The gate closed between admission and call: no call took place, and the unit's attempt does not count."""

    kind = ErrorKind.RATE_LIMITED


@dataclass
class GuardedCall:
    """The calls of one admitted message, one at a time. Use `leave` when the message is done, even without a call."""

    gate: Gate
    breaker: Breaker
    holder: str
    quota_reset: Callable[[datetime], datetime]
    on_change: Callable[[BreakerState | None], None]
    """Takes the breaker's state when it has opened, and None just before it closes."""
    cost_of: Callable[[str, int, int], float]
    """The price of a call by model, input and output tokens."""
    on_cost: Callable[[float], None]
    answers: Callable[[], bool] = lambda: False
    """Asks the provider a free question; whether it answers."""
    cost: int = 1
    tokens: int = 0
    """Estimated tokens of a call, corrected afterwards by its usage."""
    holds: bool = True
    """Whether this has a slot or a reservation: the message's admission, or a call's stamp."""

    def call(self, ask: Callable[[], Result], usage_of: Callable[[Result], tuple[str, int, int]]) -> Result:
        """Make one call, note its outcome at gate and breaker, and return its result. `usage_of` returns the model,
        input tokens and output tokens of a result.

        Raises `GateClosed` if the gate, closed or full, refuses the call before the request is sent, and any error of
        `ask`.
        """
        provider, _, capability = self.breaker.name.partition(":")
        with span("ai.call", provider=provider, capability=capability, queue=self.gate.queue) as note:
            try:
                result = self._call(ask, usage_of)
            except UnitError as error:
                note(failed=str(error.kind))  # not its text, which may quote the request
                raise
            model, input_tokens, output_tokens = usage_of(result)
            note(model=model, input_tokens=input_tokens, output_tokens=output_tokens)
            return result

    def _call(self, ask: Callable[[], Result], usage_of: Callable[[Result], tuple[str, int, int]]) -> Result:
        hooks = _StampHooks(self)
        token = request_hooks.set(hooks)
        try:
            result = ask()
        except UnitError as error:
            if hooks.stamp or error.kind is ErrorKind.UNAVAILABLE:
                self._note(lambda failure=error: self._judge(failure, hooks))  # type: ignore[misc]
                self._note(lambda failure=error: self._failed(failure))  # type: ignore[misc]
                if (partial := getattr(error, "answer", None)) is not None:
                    self._note(lambda: self._account(hooks, *usage_of(partial)))
            raise
        finally:
            request_hooks.reset(token)
        if not hooks.stamp:
            raise RuntimeError("a provider made a call without calling `request_hooks`")
        # The breaker first: while it is half-open, its probe keeps other calls out. Accounting and storing the result
        # need no slot at the provider, so free it before them.
        self._note(lambda: self.breaker.succeeded(self._closing))
        self._note(lambda: self._account(hooks, *usage_of(result)))
        return result

    def _note(self, note: Callable[[], object]) -> None:
        """Call `note`, which records something about a finished call. Logs errors of Redis and the database, since an
        answer that was paid for must not be lost."""
        try:
            note()
        except (RedisError, SQLAlchemyError) as error:
            log.warning("passage.not_noted", queue=self.gate.queue, error=type(error).__name__)

    def _closing(self) -> None:
        self.on_change(None)

    def _account(self, hooks: "_StampHooks", model: str, input_tokens: int, output_tokens: int) -> None:
        call = StampedCall(hooks.stamp, self.cost, self.tokens, time.monotonic() - hooks.stamped_at)
        used = input_tokens + output_tokens
        # A service that reports no usage counts as the estimate: every call uses tokens.
        self._finish(used - self.tokens if self.tokens and used else 0, call)
        cost = self.cost_of(model, input_tokens, output_tokens)
        if cost:
            self.on_cost(cost)

    def _judge(self, error: UnitError, hooks: "_StampHooks") -> None:
        """Set `error.health` to the provider's health, which decides whether the failure uses an attempt."""
        took_s = time.monotonic() - hooks.stamped_at if hooks.stamp else 0.0
        error.health = Health(took_s, None)  # unless Redis knows more
        if error.code in _OF_THE_ACCOUNT:
            return
        # A list of models proves nothing about an unknown model: do not ask for it.
        may_ask = error.kind is not ErrorKind.UNAVAILABLE and error.code not in _NEVER_THE_UNITS
        error.health = self.breaker.health(took_s, self.answers if may_ask else lambda: False)

    def _failed(self, error: UnitError) -> None:
        if self.breaker.failed(error, self.quota_reset, self._closing):
            self.on_change(self.breaker.inspect())

    def leave(self) -> None:
        """Give back slot and reservation; harmless if already done."""
        if self.holds:
            self._finish()

    def _finish(self, extra_tokens: int = 0, call: StampedCall | None = None) -> None:
        self.gate.finish(self.holder, extra_tokens, call)
        self.holds = False


class _StampHooks:
    """Stamps the call when its request is ready; the stamp ages when it is sent."""

    def __init__(self, guarded: GuardedCall) -> None:
        self._guarded = guarded
        self.stamp = 0
        self.stamped_at = 0.0

    def ready(self) -> None:
        guarded = self._guarded
        guarded.holds = True  # even if the answer is lost
        try:
            admission = guarded.gate.stamp(guarded.holder, guarded.cost, guarded.tokens)
        except RedisError:
            # Without Redis, nothing can tell whether a call is allowed.
            admission = Admission(granted=False, wait_s=1.0, reason="Redis is unreachable")
        if not admission.granted:
            why = f"the gate of {guarded.gate.queue} closed ({admission.reason})"
            raise GateClosed(why, retry_after_s=admission.wait_s, code="gate_closed")
        self.stamp, self.stamped_at = admission.stamp, time.monotonic()

    def sent(self) -> None:
        self.stamped_at = time.monotonic()
        guarded = self._guarded
        with suppress(RedisError):
            guarded.gate.sent(guarded.holder, StampedCall(self.stamp, guarded.cost, guarded.tokens, 0.0))
