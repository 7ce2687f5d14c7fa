"""Why work waits: how many units of all flows for which reason, and until when."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import computed_field

from pipeline.engine.backlog import Failure, Waiting
from pipeline.engine.presence import NoWorker
from pipeline.engine.wire import VIEW
from pipeline.flows import flows
from pipeline.providers.queue_views import QueueView, holdup, unserved
from pipeline.storage.context import Context

OFFLINE = "Redis is down: `penstock up` starts it"
FREE = "a free worker"
Key = tuple[str, str, datetime | None, str]
"""Of a reason: kind, words, until, queue."""


@dataclass(frozen=True)
class Reason:
    """Why units wait."""

    __pydantic_config__ = VIEW
    kind: str
    """`operator`, `spend`, `breaker`, `limits`, `capacity`: a queue is closed or full. `retry`: after a failure.
    `turn`. `paused`: by their document or run. `worker`: none runs. `free`: all are busy. `offline`: Redis is down.
    `unserved`: their provider is not configured any more."""
    words: str
    until: datetime | None
    """When the first of them continues; None: unknown."""
    queue: str
    """The closed or full queue; else empty."""
    units: dict[str, int]
    """How many wait, by what people call them."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def count(self) -> int:
        """All of them."""
        return sum(self.units.values())


def reasons(context: Context, queues: Mapping[str, QueueView] | None, served: Collection[str] | None) -> list[Reason]:
    """What waits in all flows, and why; the reason of most units first.

    `queues`: as they stand, by name; None where Redis is down. `served`: queues that a worker takes messages from; None
    if that is not known.
    """
    now = context.db.now()
    counted: dict[Key, Counter[str]] = {}
    for flow in flows():
        for one in flow.waiting(context):
            if one.later:
                key = ("retry", "will be tried again", one.next_at, "")
                counted.setdefault(key, Counter())[one.kind] += one.later
            if one.count > one.later:
                key = _reason(context, one, queues, served, now)
                counted.setdefault(key, Counter())[one.kind] += one.count - one.later
    found = [Reason(*key, dict(units)) for key, units in _first_due(counted).items()]
    return sorted(found, key=lambda reason: (-reason.count, reason.words))


def _first_due(
    counted: Mapping[Key, Counter[str]],
) -> dict[Key, Counter[str]]:
    """The same, with one reason for all that is tried again: when the first of it is due."""
    again = [key for key in counted if key[0] == "retry"]
    rest = {key: units for key, units in counted.items() if key[0] != "retry"}
    if again:
        due = min((until for _, _, until, _ in again if until), default=None)
        rest["retry", again[0][1], due, ""] = sum((counted[key] for key in again), Counter())
    return rest


def _reason(
    context: Context,
    one: Waiting,
    queues: Mapping[str, QueueView] | None,
    served: Collection[str] | None,
    now: datetime,
) -> Key:
    if not one.queue:
        return ("paused" if one.is_paused else "turn", one.why, None, "")
    if queues is None:
        return "offline", OFFLINE, None, ""
    if one.queue not in queues:
        return "unserved", f"{one.queue}: its provider is not configured any more", None, one.queue
    held = holdup(queues[one.queue], now)
    if held is not None:
        who = f"{one.queue} is " if held.kind == "operator" else ""
        return held.kind, who + held.words, held.until, one.queue
    if served is not None and one.queue not in served:
        words = unserved(context, one.queue)
        return "worker", words if served else NoWorker().reason, None, one.queue if served else ""
    return "free", FREE, None, ""


def by_queue(context: Context) -> dict[str, Counter[str]]:
    """How many units wait, by the queue that their messages go to and by what people call them."""
    found: dict[str, Counter[str]] = {}
    for flow in flows():
        for one in flow.waiting(context):
            if one.queue:
                found.setdefault(one.queue, Counter())[one.kind] += one.count
    return found


def failures(context: Context, limit: int) -> list[Failure]:
    """The newest failures of all flows."""
    found = [failure for flow in flows() for failure in flow.failures(context, limit)]
    return sorted(found, key=lambda failure: failure.at, reverse=True)[:limit]
