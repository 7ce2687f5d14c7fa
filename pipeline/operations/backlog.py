"""Reasons why work waits: the number of waiting units of all flows by reason, and until when they wait."""

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
"""A reason's kind, words, until and queue."""


@dataclass(frozen=True)
class Reason:
    """A reason why units wait."""

    __pydantic_config__ = VIEW
    kind: str
    """`operator`, `spend`, `breaker`, `limits`, `capacity`: the queue is closed or full. `retry`: after a failure.
    `turn`: other work is first. `paused`: with their document or run. `worker`: no worker runs. `free`: all workers are
    busy. `offline`: Redis is down. `unserved`: their provider is no longer configured."""
    words: str
    until: datetime | None
    """The time when the first of them continues; None: unknown."""
    queue: str
    """The closed or full queue; else empty."""
    units: dict[str, int]
    """The number of waiting units by their name for people."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def count(self) -> int:
        """The number of all these units."""
        return sum(self.units.values())


def reasons(context: Context, queues: Mapping[str, QueueView] | None, served: Collection[str] | None) -> list[Reason]:
    """The reasons why units of all flows wait; the reason of most units first.

    `queues`: the queues by name; None while Redis is down. `served`: the queues that workers consume; None if
    unknown.
    """
    now = context.db.now()
    counted: dict[Key, Counter[str]] = {}
    for flow in flows():
        for waiting in flow.waiting(context):
            if waiting.later:
                key = ("retry", "will be tried again", waiting.next_at, "")
                counted.setdefault(key, Counter())[waiting.kind] += waiting.later
            if waiting.count > waiting.later:
                key = _reason(context, waiting, queues, served, now)
                counted.setdefault(key, Counter())[waiting.kind] += waiting.count - waiting.later
    all_ = [Reason(*key, dict(units)) for key, units in _first_due(counted).items()]
    return sorted(all_, key=lambda reason: (-reason.count, reason.words))


def _first_due(
    counted: Mapping[Key, Counter[str]],
) -> dict[Key, Counter[str]]:
    """Merge the reasons `retry` into one, with the time when the first of their units is due."""
    retries = [key for key in counted if key[0] == "retry"]
    rest = {key: units for key, units in counted.items() if key[0] != "retry"}
    if retries:
        due = min((until for _, _, until, _ in retries if until), default=None)
        rest["retry", retries[0][1], due, ""] = sum((counted[key] for key in retries), Counter())
    return rest


def _reason(
    context: Context,
    waiting: Waiting,
    queues: Mapping[str, QueueView] | None,
    served: Collection[str] | None,
    now: datetime,
) -> Key:
    if not waiting.queue:
        return ("paused" if waiting.is_paused else "turn", waiting.why, None, "")
    if queues is None:
        return "offline", OFFLINE, None, ""
    if waiting.queue not in queues:
        return "unserved", f"{waiting.queue}: its provider is no longer configured", None, waiting.queue
    held = holdup(queues[waiting.queue], now)
    if held is not None:
        subject = f"{waiting.queue} is " if held.kind == "operator" else ""
        return held.kind, subject + held.words, held.until, waiting.queue
    if served is not None and waiting.queue not in served:
        words = unserved(context, waiting.queue)
        return "worker", words if served else NoWorker().reason, None, waiting.queue if served else ""
    return "free", FREE, None, ""


def by_queue(context: Context) -> dict[str, Counter[str]]:
    """Return the number of waiting units by queue, and by their name for people. Leaves out units that wait for no
    queue."""
    queues: dict[str, Counter[str]] = {}
    for flow in flows():
        for waiting in flow.waiting(context):
            if waiting.queue:
                queues.setdefault(waiting.queue, Counter())[waiting.kind] += waiting.count
    return queues


def failures(context: Context, limit: int) -> list[Failure]:
    """Return the newest `limit` failures of all flows together that last until a person acts, newest first."""
    newest = [failure for flow in flows() for failure in flow.failures(context, limit)]
    return sorted(newest, key=lambda failure: failure.at, reverse=True)[:limit]
