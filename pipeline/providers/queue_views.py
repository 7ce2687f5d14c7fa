"""Queues and their gates as people see them: what waits, what is under way, limits and their use, why it is closed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf

from pydantic import computed_field

from pipeline.engine import live_settings
from pipeline.engine.breaker import BreakerState
from pipeline.engine.errors import UserError
from pipeline.engine.gate import WindowState
from pipeline.engine.limits import format_windows
from pipeline.engine.live_settings import Value
from pipeline.engine.metrics import queue_depths
from pipeline.engine.wire import VIEW
from pipeline.providers import breaker_record, gates
from pipeline.providers.breaker_record import BreakerChange
from pipeline.storage.context import Context


@dataclass(frozen=True)
class LimitView:
    """A limit, and how much of it is used now."""

    __pydantic_config__ = VIEW
    limit: str
    used: int
    of: str
    """`queue`, or the provider all of whose queues share it."""
    most: int = 0
    """`used` of how many."""
    unit: str = ""
    """`requests` or `tokens`."""
    window_s: float = 0.0
    next_in_s: float | None = None
    """Seconds until there is room for one more; None if there is."""


@dataclass(frozen=True)
class QueueView:
    """A queue. Only those whose messages call a provider have a gate."""

    __pydantic_config__ = VIEW
    name: str
    waiting: int
    """Messages; those under way are not counted."""
    provider: str = ""
    """Whom its messages call; empty for a queue without a gate."""
    in_flight: int | None = None
    """Messages under way; null without a gate."""
    capacity: int = 0
    """Messages that may be under way at once, of this queue or of all its provider's; 0: no limit."""
    is_full: bool = False
    """All these places are taken."""
    limits: list[LimitView] = field(default_factory=list)
    closed_by: str = ""
    """`operator`, `spend`, `breaker`, or `limits` that are used up for now; empty: it flows, or has no gate."""
    reason: str = ""
    resumes_in_s: float | None = None
    """None while it flows, closed until further notice, or by its limits: then it flows by itself, bit by bit."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def gate(self) -> str:
        """`none`, `flowing` or `closed`. Only breakers are open or closed the other way round."""
        return "none" if self.in_flight is None else "closed" if self.closed_by else "flowing"


@dataclass(frozen=True)
class Holdup:
    """Why nothing more of a queue is let through now."""

    __pydantic_config__ = VIEW
    kind: str
    """`operator`, `spend`, `breaker`, `limits` or `capacity`."""
    words: str
    until: datetime | None = None
    """When the next goes through, as far as anybody knows; None: until somebody resumes it, or a call ends."""


def require_online(context: Context) -> None:
    """Raise `UserError` where Redis is down: gates are there."""
    if not context.online:
        raise UserError("Redis is down, so no gate can be read: `penstock up` starts it", code="offline")


def queues(context: Context) -> list[QueueView]:
    """All queues, those without a gate first. Raises `UserError` where Redis is down."""
    require_online(context)
    gates.sync(context)
    names = context.gates.names
    values = gates.live_values(context)
    return [_view(context, values, name, waiting) for name, waiting in queue_depths(context.redis, names).items()]


def queue(context: Context, name: str) -> QueueView:
    """A queue with a gate. Raises `UserError` for an unknown one, or where Redis is down."""
    context.gates.require(name)
    require_online(context)
    gates.sync(context)
    return _view(context, gates.live_values(context), name, queue_depths(context.redis, [name])[name])


def breakers(context: Context) -> list[BreakerState]:
    """All breakers. Raises `UserError` where Redis is down."""
    require_online(context)
    return [gates.breaker(context, name).look() for name in context.gates.breakers]


def breaker(context: Context, name: str) -> BreakerState:
    """One breaker. Raises `UserError` for an unknown one, or where Redis is down."""
    require_online(context)
    return gates.require_breaker(context, name).look()


def breaker_history(context: Context, name: str) -> list[BreakerChange]:
    """The latest changes of a breaker, the newest first. Raises `UserError` for an unknown one."""
    gates.require_breaker(context, name)
    with context.db.read() as session:
        return breaker_record.history(live_settings.stored(session), name)


def holdup(view: QueueView, now: datetime) -> Holdup | None:
    """Why nothing more of this queue is let through; None if something is, or it has no gate."""
    words = {
        "operator": "paused by an operator" + (f": “{view.reason}”" if view.reason else ""),
        "spend": f"{view.provider} has reached its spend cap: {view.reason}",
        "breaker": f"{view.provider} is left alone for a while: {view.reason}",
    }
    if view.closed_by in words:
        left_s = view.resumes_in_s
        return Holdup(
            view.closed_by, words[view.closed_by], None if left_s is None else now + timedelta(seconds=left_s)
        )
    waits = [(limit.next_in_s, limit) for limit in view.limits if limit.next_in_s is not None]
    if waits:
        left_s, limit = max(waits, key=lambda one: one[0])
        whose = view.name if limit.of == "queue" else limit.of
        return Holdup("limits", f"{whose}: {limit.limit} is used up", now + timedelta(seconds=left_s))
    if view.is_full:
        places = "the only place is" if view.capacity == 1 else f"all {view.capacity} places are"
        return Holdup("capacity", f"{view.name}: {places} taken")
    return None


def unserved(context: Context, queue: str) -> str:
    """A sentence: no worker consumes this queue, and the command that starts one."""
    role = "ai" if queue in context.gates.queues else queue
    return f"no worker takes {queue}: start one with `penstock worker --role {role}`"


def _view(context: Context, values: Mapping[str, Value], name: str, waiting: int) -> QueueView:
    gated = context.gates.queues.get(name)
    if gated is None:
        return QueueView(name, waiting)
    state = gates.gate(context, name).look()
    limits = [
        _limit(used, of)
        for of, windows in (("queue", state.queue.windows), (gated.provider, state.provider.windows))
        for used in windows
    ]
    used_up = [used.window for used in state.windows if used.used >= used.window.limit]
    full = ("limits", inf, f"{format_windows(used_up)} used up") if used_up else ("", inf, "")
    by, left_s, reason = state.closed or full
    scopes = ((f"queue.{name}", state.queue), (f"provider.{gated.provider}", state.provider))
    places = [(int(most), scope.in_flight) for key, scope in scopes if (most := values[f"{key}.concurrency"].value)]
    return QueueView(
        name,
        waiting,
        gated.provider,
        state.in_flight,
        min((most for most, _ in places), default=0),
        any(taken >= most for most, taken in places),
        limits,
        by,
        reason,
        None if left_s == inf else left_s,
    )


def _limit(found: WindowState, of: str) -> LimitView:
    window = found.window
    return LimitView(
        format_windows([window]),
        found.used,
        of,
        window.limit,
        window.unit.value,
        window.window_s,
        found.next_s or None,
    )
