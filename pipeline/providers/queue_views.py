"""Views of queues and their gates: waiting and current messages, limits and their use, and why a gate is closed."""

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
    """A limit and its current use."""

    __pydantic_config__ = VIEW
    limit: str
    used: int
    of: str
    """`queue`, or the provider whose queues share the limit."""
    most: int = 0
    """The maximum of `used`."""
    unit: str = ""
    """`requests` or `tokens`."""
    window_s: float = 0.0
    next_in_s: float | None = None
    """Seconds until the limit admits one more; None if it does now."""


@dataclass(frozen=True)
class QueueView:
    """A queue. Only queues whose messages call a provider have a gate."""

    __pydantic_config__ = VIEW
    name: str
    waiting: int
    """Messages waiting; those being processed are not counted."""
    provider: str = ""
    """The provider that its messages call; empty for a queue without a gate."""
    in_flight: int | None = None
    """Messages being processed; null without a gate."""
    capacity: int = 0
    """Messages that may be processed at once, of this queue or of all queues of its provider; 0: no limit."""
    is_full: bool = False
    """Whether all these places are taken."""
    limits: list[LimitView] = field(default_factory=list)
    closed_by: str = ""
    """`operator`, `spend`, `breaker`, or `limits` that are used up for now; empty: it flows, or has no gate."""
    reason: str = ""
    resumes_in_s: float | None = None
    """None while it flows, is closed until further notice, or waits for limits, which free up bit by bit."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def gate(self) -> str:
        """`none`, `flowing` or `closed`. Note that breakers use "open" and "closed" the other way round."""
        return "none" if self.in_flight is None else "closed" if self.closed_by else "flowing"


@dataclass(frozen=True)
class Holdup:
    """Why a queue admits no further messages now."""

    __pydantic_config__ = VIEW
    kind: str
    """`operator`, `spend`, `breaker`, `limits` or `capacity`."""
    words: str
    until: datetime | None = None
    """When the queue is expected to admit the next message; None: when it is resumed, or a call ends."""


def require_online(context: Context) -> None:
    """Raise `UserError` if the embedded Redis, which holds the gates, is down. Does not check another Redis."""
    if not context.online:
        raise UserError("Redis is down, so no gate can be read: `penstock up` starts it", code="offline")


def queues(context: Context) -> list[QueueView]:
    """Return all queues, those without a gate first. Raises `UserError` if the embedded Redis is down, `RedisError` if
    another is unreachable."""
    require_online(context)
    gates.sync(context)
    names = context.gates.names
    values = gates.live_values(context)
    return [_view(context, values, name, waiting) for name, waiting in queue_depths(context.redis, names).items()]


def queue(context: Context, name: str) -> QueueView:
    """Return a queue with a gate. Raises `UserError` for an unknown queue; `UserError` or `RedisError` if Redis is
    down."""
    context.gates.require(name)
    require_online(context)
    gates.sync(context)
    return _view(context, gates.live_values(context), name, queue_depths(context.redis, [name])[name])


def breakers(context: Context) -> list[BreakerState]:
    """Return all breakers. Raises `UserError` or `RedisError` if Redis is down."""
    require_online(context)
    return [gates.breaker(context, name).inspect() for name in context.gates.breakers]


def breaker(context: Context, name: str) -> BreakerState:
    """Return one breaker. Raises `UserError` for an unknown breaker; `UserError` or `RedisError` if Redis is down."""
    require_online(context)
    return gates.require_breaker(context, name).inspect()


def breaker_history(context: Context, name: str) -> list[BreakerChange]:
    """Return the latest changes of a breaker, newest first. Raises `UserError` for an unknown one."""
    gates.require_breaker(context, name)
    with context.db.read() as session:
        return breaker_record.history(live_settings.stored(session), name)


def holdup(view: QueueView, now: datetime) -> Holdup | None:
    """Return why this queue admits no messages; None if it admits some, or has no gate. `now`: the time of the view,
    from which `until` counts."""
    words = {
        "operator": "paused by an operator" + (f": “{view.reason}”" if view.reason else ""),
        "spend": f"{view.provider} has reached its spend cap: {view.reason}",
        "breaker": f"{view.provider} is paused by its breaker: {view.reason}",
    }
    if view.closed_by in words:
        left_s = view.resumes_in_s
        return Holdup(
            view.closed_by, words[view.closed_by], None if left_s is None else now + timedelta(seconds=left_s)
        )
    waits = [(limit.next_in_s, limit) for limit in view.limits if limit.next_in_s is not None]
    if waits:
        left_s, limit = max(waits, key=lambda wait: wait[0])
        scope = view.name if limit.of == "queue" else limit.of
        return Holdup("limits", f"{scope}: {limit.limit} is used up", now + timedelta(seconds=left_s))
    if view.is_full:
        places = "the only place is" if view.capacity == 1 else f"all {view.capacity} places are"
        return Holdup("capacity", f"{view.name}: {places} taken")
    return None


def unserved(context: Context, queue: str) -> str:
    """Return the sentence that no worker takes this queue, with the command that starts one. Checks nothing."""
    role = "ai" if queue in context.gates.queues else queue
    return f"no worker takes {queue}: start one with `penstock worker --role {role}`"


def _view(context: Context, values: Mapping[str, Value], name: str, waiting: int) -> QueueView:
    gated = context.gates.queues.get(name)
    if gated is None:
        return QueueView(name, waiting)
    state = gates.gate(context, name).inspect()
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
        any(in_use >= most for most, in_use in places),
        limits,
        by,
        reason,
        None if left_s == inf else left_s,
    )


def _limit(state: WindowState, of: str) -> LimitView:
    window = state.window
    return LimitView(
        format_windows([window]),
        state.used,
        of,
        window.limit,
        window.unit.value,
        window.window_s,
        state.next_s or None,
    )
