"""The live workers: their identity, start and current jobs."""

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
    """A worker's current work for one scope: a document, a run, a batch or an item."""

    __pydantic_config__ = VIEW
    flow: str
    work: str
    """The kind of units: `page`, `shard`, `delivery`."""
    scope: str
    """The id of the document, run, batch or item."""
    units: int
    """The number of units that it has claimed."""


@dataclass(frozen=True)
class Worker:
    """A worker. Fields that are None or empty are unknown: workers of an earlier version do not report them."""

    __pydantic_config__ = VIEW
    id: str
    name: str
    """Its role, and its host after the @."""
    role: str
    host: str
    process: int
    since: datetime | None
    seen_s: float | None
    """Seconds since it last renewed its presence."""
    slots: int | None
    """How many messages it works on at once."""
    queues: list[str]
    busy: int
    """How many of its messages hold a claim now."""
    jobs: list[Job] = field(default_factory=list)


def workers(context: Context) -> list[Worker]:
    """Return the live workers, sorted by name. Raises `RedisError`."""
    facts = Presence(context.redis).facts()
    held: dict[tuple[str, str], list[tuple[str, Held]]] = {}
    for flow in flows():
        for claims in flow.held(context):
            held.setdefault(_worker_of(claims.worker_id), []).append((flow.name, claims))
    return [_worker(worker, own, held.get(_worker_of(worker), [])) for worker, own in sorted(facts.items())]


def _worker_of(process_id: str) -> tuple[str, str]:
    """Return the name and nonce in a process id, which all processes of a worker share."""
    name, _, rest = process_id.partition(":")
    return name, rest.partition(":")[2]


def _worker(worker_id: str, facts: dict[str, Any], held: Iterable[tuple[str, Held]]) -> Worker:
    name, _, rest = worker_id.partition(":")
    process = rest.partition(":")[0]
    role, _, host = name.partition("@")
    since, claims = facts.get("since_ms"), list(held)
    jobs: dict[tuple[str, str, str], int] = {}
    for flow, each in claims:
        key = (flow, each.work, each.scope)
        jobs[key] = jobs.get(key, 0) + each.units
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
        sum(each.messages for _, each in claims),
        [Job(*key, units) for key, units in sorted(jobs.items())],
    )
