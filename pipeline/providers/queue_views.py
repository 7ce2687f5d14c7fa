"""Queues and their gates as people see them: what waits, what is under way, limits and their use, why it is closed."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from pipeline.engine.breaker import BreakerState
from pipeline.engine.errors import UserError
from pipeline.engine.limits import format_windows
from pipeline.engine.metrics import queue_depths
from pipeline.providers import gates
from pipeline.storage.context import Context


@dataclass(frozen=True)
class LimitView:
    """A limit and how much of it is used now. `of`: `queue`, or the provider all of whose queues share it."""

    limit: str
    used: int
    of: str


@dataclass(frozen=True)
class QueueView:
    """A queue. `in_flight`: None without a gate, which only queues whose messages call a provider have."""

    name: str
    waiting: int
    provider: str = ""
    in_flight: int | None = None
    limits: list[LimitView] = field(default_factory=list)
    closed_by: str = ""
    """`operator`, `spend`, `breaker`, or `limits` that are used up for now; empty: it flows, or has no gate."""
    reason: str = ""
    resumes_in_s: float | None = None
    """None while it flows, closed until further notice, or by its limits: then it flows by itself, bit by bit."""

    @property
    def gate(self) -> str:
        """`none`, `flowing` or `closed`. Only breakers are open or closed the other way round."""
        return "none" if self.in_flight is None else "closed" if self.closed_by else "flowing"


def require_online(context: Context) -> None:
    """Raise `UserError` where Redis is down: gates are there."""
    if not context.online:
        raise UserError("Redis is down, so no gate can be read: `penstock up` starts it", code="offline")


def queues(context: Context, plain: Iterable[str]) -> list[QueueView]:
    """The queues without a gate of these names, and all with one. Raises `UserError` where Redis is down."""
    require_online(context)
    gates.sync(context)
    names = dict.fromkeys([*plain, *gates.gated_queues(context.settings)])
    return [_view(context, name, waiting) for name, waiting in queue_depths(context.redis, names).items()]


def queue(context: Context, name: str) -> QueueView:
    """A queue with a gate. Raises `UserError` for an unknown one, or where Redis is down."""
    gates.require(context, name)
    require_online(context)
    gates.sync(context)
    return _view(context, name, queue_depths(context.redis, [name])[name])


def breakers(context: Context) -> list[BreakerState]:
    """All breakers. Raises `UserError` where Redis is down."""
    require_online(context)
    return [gates.breaker(context, name).look() for name in gates.breakers(context.settings)]


def breaker(context: Context, name: str) -> BreakerState:
    """One breaker. Raises `UserError` for an unknown one, or where Redis is down."""
    require_online(context)
    return gates.require_breaker(context, name).look()


def _view(context: Context, name: str, waiting: int) -> QueueView:
    gated = gates.gated_queues(context.settings).get(name)
    if gated is None:
        return QueueView(name, waiting)
    state = gates.gate(context, gated).look()
    limits = [
        LimitView(format_windows([used.window]), used.used, of)
        for of, windows in (("queue", state.queue.windows), (gated.provider, state.provider.windows))
        for used in windows
    ]
    used_up = [used.window for used in state.windows if used.used >= used.window.limit]
    full = ("limits", inf, f"{format_windows(used_up)} used up") if used_up else ("", inf, "")
    by, left_s, reason = state.closed or full
    return QueueView(
        name, waiting, gated.provider, state.in_flight, limits, by, reason, None if left_s == inf else left_s
    )
