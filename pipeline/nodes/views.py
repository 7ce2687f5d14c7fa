"""Views of the gateway for the command line, the API and the console: nodes, jobs, dead letters and totals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pipeline.engine.wire import VIEW
from pipeline.nodes.job import Job, JobState
from pipeline.nodes.state.dlq import DlqEntry
from pipeline.nodes.state.instances import InstanceView as KnownInstance
from pipeline.nodes.state.snapshots import DisconnectedNode, NodeState


class NodeStatus(StrEnum):
    """Whether a node is connected and takes jobs."""

    CONNECTED = "connected"
    DRAINING = "draining"
    """The node finishes its jobs and takes no new ones."""
    GONE = "gone"


@dataclass(frozen=True)
class OfferView:
    """A capability of a node, with its models."""

    __pydantic_config__ = VIEW
    capability: str
    """`vision`, `text`, `embeddings` or `page`."""
    models: list[str]
    """`*` stands for any model."""


@dataclass(frozen=True)
class NodeView:
    """A node that is or was lately connected. Of a gone node only the id, the name and `last_seen_at` are known."""

    __pydantic_config__ = VIEW
    node_id: str
    status: NodeStatus
    last_seen_at: datetime | None
    name: str = ""
    instance_id: str = ""
    """The gateway instance that the node is connected to."""
    token_id: str = ""
    token: str = ""
    """The name of the node's token."""
    slots: int = 0
    """How many jobs the node does at once."""
    used: int = 0
    offers: list[OfferView] = field(default_factory=list)
    latency_ms: dict[str, float] = field(default_factory=dict)
    """By capability: how long recent jobs took."""
    software: str = ""
    connected_at: datetime | None = None
    jobs: list[str] = field(default_factory=list)
    """The jobs that hold the node's slots. Empty in lists of nodes."""

    @classmethod
    def of(cls, node: NodeState | DisconnectedNode, names: Mapping[str, str], jobs: Sequence[str] = ()) -> "NodeView":
        """Return the view of a node. `names`: the names of tokens, by their ids; `jobs`: those that hold its slots."""
        if isinstance(node, DisconnectedNode):
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
            [OfferView(offer.capability.value, list(offer.models)) for offer in node.offers],
            dict(node.latency_ms),
            node.software,
            at(node.connected_ms),
            list(jobs),
        )


@dataclass(frozen=True)
class JobView:
    """A job. The gateway keeps it for some minutes after its end (`result_ttl_ms`)."""

    __pydantic_config__ = VIEW
    job_id: str
    state: JobState
    outcome: str
    """`ok`, `error` or `cancelled`; empty until the job is done."""
    capability: str
    model: str
    attempt: int
    """The number of the current or last attempt, from 1."""
    max_attempts: int
    node_id: str
    """The node that has the job, or had it last."""
    instance_id: str
    """The gateway instance that schedules the job."""
    token_id: str
    """The token of the session that requested the job."""
    token: str
    created_at: datetime | None
    deadline_at: datetime | None
    finished_at: datetime | None
    error_code: str
    error: str

    @classmethod
    def of(cls, job: Job, names: Mapping[str, str]) -> "JobView":
        """Return the view of a job. `names`: the names of tokens, by their ids."""
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
    """A message between instances that failed at every delivery."""

    __pydantic_config__ = VIEW
    instance_id: str
    """The instance that the message was for."""
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
    """A living instance, or a dead one whose inbox still exists."""

    __pydantic_config__ = VIEW
    instance_id: str
    alive: bool
    last_seen_at: datetime | None
    nodes: int
    """Nodes that are connected to the instance."""
    sessions: int
    """Sessions that are connected to the instance."""
    messages: int
    """Messages in the inbox of the instance."""

    @classmethod
    def of(cls, known: KnownInstance, messages: int) -> "InstanceView":
        nodes, sessions = (int(known.info.get(name, 0)) if known.alive else 0 for name in ("nodes", "sessions"))
        return cls(known.instance_id, known.alive, at(known.last_seen_ms), nodes, sessions, messages)


@dataclass(frozen=True)
class GatewayView:
    """The status of the gateway over all its instances."""

    __pydantic_config__ = VIEW
    instances: list[InstanceView]
    nodes: dict[NodeStatus, int]
    slots: int
    used: int
    """Slots in use at connected nodes."""
    sessions: int
    jobs: dict[JobState, int]
    waiting: dict[str, int]
    """By `capability:model`: jobs that wait in line for a slot."""
    inbox_messages: int
    dead_letters: int
    dead_letters_moved: int
    """How many messages ever became dead letters."""


def at(ms: int) -> datetime | None:
    """Convert ms since the epoch to a time in UTC; None for 0."""
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None
