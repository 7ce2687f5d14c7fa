"""The workers that live: who they are, since when, and what each does now."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pipeline.engine.backlog import Held
from pipeline.engine.presence import Presence
from pipeline.engine.wire import VIEW
from pipeline.flows import flows
from pipeline.storage.context import Context


@dataclass(frozen=True)
class Job:
    """What a worker does for one scope: a document, a run, a batch, an item. `units`: those that it has claimed."""

    __pydantic_config__ = VIEW
    flow: str
    work: str
    """The kind of units: `page`, `shard`, `delivery`."""
    scope: str
    """The id of the document, run, batch or item."""
    units: int
    """How many it has claimed."""


@dataclass(frozen=True)
class Worker:
    """A worker. Fields that are None or empty are not known: a worker of an earlier version does not say."""

    __pydantic_config__ = VIEW
    id: str
    name: str
    """Its role, and its host after the @."""
    role: str
    host: str
    process: int
    since: datetime | None
    seen_s: float | None
    """How long ago it said that it lives."""
    slots: int | None
    """Messages that it works on at once."""
    queues: list[str]
    busy: int
    """Messages that hold a claim now."""
    jobs: list[Job] = field(default_factory=list)


def workers(context: Context) -> list[Worker]:
    """Those that live, by name. Raises `RedisError`."""
    facts = Presence(context.redis).facts()
    held: dict[tuple[str, str], list[tuple[str, Held]]] = {}
    for flow in flows():
        for one in flow.held(context):
            held.setdefault(_whose(one.worker_id), []).append((flow.name, one))
    return [_worker(worker, said, held.get(_whose(worker), [])) for worker, said in sorted(facts.items())]


def _whose(process_id: str) -> tuple[str, str]:
    """Which worker this process is of: all of one have its name and its nonce."""
    name, _, rest = process_id.partition(":")
    return name, rest.partition(":")[2]


def _worker(worker_id: str, facts: dict[str, Any], held: Iterable[tuple[str, Held]]) -> Worker:
    name, _, rest = worker_id.partition(":")
    process = rest.partition(":")[0]
    role, _, host = name.partition("@")
    since, mine = facts.get("since_ms"), list(held)
    jobs: dict[tuple[str, str, str], int] = {}
    for flow, one in mine:
        key = (flow, one.work, one.scope)
        jobs[key] = jobs.get(key, 0) + one.units
    return Worker(
        worker_id,
        name,
        role,
        host,
        int(process) if process.isdecimal() else 0,
        datetime.fromtimestamp(since / 1000, UTC) if since else None,
        facts.get("seen_s"),
        facts.get("slots"),
        list(facts.get("queues", [])),
        sum(one.messages for _, one in mine),
        [Job(*key, units) for key, units in sorted(jobs.items())],
    )
