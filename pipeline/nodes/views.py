"""What people see of the gateway: nodes, jobs, dead letters, and how it stands as a whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pipeline.engine.wire import VIEW
from pipeline.nodes.job import Job, JobState
from pipeline.nodes.state.dlq import DlqEntry
from pipeline.nodes.state.instances import InstanceView as KnownInstance
from pipeline.nodes.state.snapshots import GoneNode, NodeState


class NodeStatus(StrEnum):
    """Whether a node works."""

    CONNECTED = "connected"
    DRAINING = "draining"
    """It finishes what it has, and takes no more."""
    GONE = "gone"


@dataclass(frozen=True)
class OfferView:
    """One thing that a node can do."""

    __pydantic_config__ = VIEW
    capability: str
    """`vision`, `text`, `embeddings` or `page`."""
    models: list[str]
    """`*`: any."""


@dataclass(frozen=True)
class NodeView:
    """A node that is connected, or was lately. Of one that is gone, only id, name and when it was seen are known."""

    __pydantic_config__ = VIEW
    node_id: str
    status: NodeStatus
    last_seen_at: datetime | None
    name: str = ""
    instance_id: str = ""
    """The instance of the gateway that it is connected to."""
    token_id: str = ""
    token: str = ""
    """Its token's name."""
    slots: int = 0
    """Jobs that it does at once."""
    used: int = 0
    offers: list[OfferView] = field(default_factory=list)
    latency_ms: dict[str, float] = field(default_factory=dict)
    """By capability: how long jobs took lately."""
    software: str = ""
    connected_at: datetime | None = None
    jobs: list[str] = field(default_factory=list)
    """Whom its slots are reserved for; in lists of nodes, empty."""

    @classmethod
    def of(cls, node: NodeState | GoneNode, names: Mapping[str, str], jobs: Sequence[str] = ()) -> "NodeView":
        """`names`: of tokens, by their ids."""
        if isinstance(node, GoneNode):
            return cls(node.node_id, NodeStatus.GONE, at(node.last_seen_ms), node.name, jobs=list(jobs))
        return cls(
            node.node_id,
            NodeStatus.DRAINING if node.draining else NodeStatus.CONNECTED,
            at(node.last_seen_ms),
            node.name,
            node.instance_id,
            node.token_id,
            names.get(node.token_id, ""),
            node.slots,
            node.used,
            [OfferView(one.capability.value, list(one.models)) for one in node.offers],
            dict(node.latency_ms),
            node.software,
            at(node.connected_ms),
            list(jobs),
        )


@dataclass(frozen=True)
class JobView:
    """A job. It is kept for some minutes after its end (`result_ttl_ms`)."""

    __pydantic_config__ = VIEW
    job_id: str
    state: JobState
    outcome: str
    """`ok`, `error` or `cancelled`; empty until it is done."""
    capability: str
    model: str
    attempt: int
    """From 1. Each is another node's."""
    max_attempts: int
    node_id: str
    """Who has it, or had it last."""
    instance_id: str
    """The instance of the gateway that schedules it."""
    token_id: str
    """The token of the session that asked for it."""
    token: str
    created_at: datetime | None
    deadline_at: datetime | None
    finished_at: datetime | None
    error_code: str
    error: str

    @classmethod
    def of(cls, job: Job, names: Mapping[str, str]) -> "JobView":
        """`names`: of tokens, by their ids."""
        return cls(
            job.job_id,
            job.state,
            job.outcome,
            job.capability,
            job.model,
            job.attempt,
            job.max_attempts,
            job.node_id,
            job.home.partition("/")[0],
            job.requester,
            names.get(job.requester, ""),
            at(job.created_ms),
            at(job.deadline_ms),
            at(job.finished_ms),
            job.error_code,
            job.error,
        )


@dataclass(frozen=True)
class DeadLetterView:
    """A message between instances that was delivered again and again, and never handled."""

    __pydantic_config__ = VIEW
    instance_id: str
    """Whom it was for."""
    id: str
    kind: str
    body: dict[str, Any]
    deliveries: int
    moved_at: datetime | None

    @classmethod
    def of(cls, entry: DlqEntry) -> "DeadLetterView":
        return cls(entry.instance_id, entry.id, entry.kind, entry.body, entry.deliveries, at(entry.moved_ms))


@dataclass(frozen=True)
class InstanceView:
    """An instance that is there; or one that is gone and whose messages nobody has taken over yet."""

    __pydantic_config__ = VIEW
    instance_id: str
    alive: bool
    last_seen_at: datetime | None
    nodes: int
    sessions: int
    """Connected to it."""
    messages: int
    """In its inbox."""

    @classmethod
    def of(cls, known: KnownInstance, messages: int) -> "InstanceView":
        nodes, sessions = (int(known.info.get(name, 0)) if known.alive else 0 for name in ("nodes", "sessions"))
        return cls(known.instance_id, known.alive, at(known.last_seen_ms), nodes, sessions, messages)


@dataclass(frozen=True)
class GatewayView:
    """How the gateway stands, all instances together."""

    __pydantic_config__ = VIEW
    instances: list[InstanceView]
    nodes: dict[NodeStatus, int]
    slots: int
    used: int
    """Of the nodes that are connected."""
    sessions: int
    jobs: dict[JobState, int]
    waiting: dict[str, int]
    """By `capability:model`: jobs in line for a slot."""
    inbox_messages: int
    dead_letters: int
    dead_letters_moved: int
    """Since ever."""


def at(ms: int) -> datetime | None:
    """The moment of so many milliseconds; None for 0."""
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None
