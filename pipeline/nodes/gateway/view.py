"""An instance's view of all nodes, its own and those of other instances, and the order in which it tries them."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pipeline.nodes.protocol import Capability, Offer
from pipeline.nodes.settings import NodeSnapshotSettings
from pipeline.nodes.state.snapshots import NodeState, Snapshots

ANY_MODEL = "*"
_UNKNOWN_LATENCY_MS = 1000.0


@dataclass(frozen=True)
class Need:
    """The capability and model that a job needs. An empty model: the node chooses."""

    capability: Capability
    model: str = ""

    @property
    def pool(self) -> str:
        """The name of the pool, whose line holds the jobs with this need."""
        return f"{self.capability}:{self.model}"

    @classmethod
    def of_pool(cls, pool: str) -> "Need":
        capability, _, model = pool.partition(":")
        return cls(Capability(capability), model)

    def met_by(self, offers: Iterable[Offer]) -> bool:
        """Whether a node with these offers can do the job."""
        return any(
            offer.capability == self.capability
            and (not self.model or self.model in offer.models or ANY_MODEL in offer.models)
            for offer in offers
        )


def ranked(nodes: Iterable[NodeState], need: Need, full: frozenset[str], failed: frozenset[str]) -> list[NodeState]:
    """Return the nodes that offer what the job needs, without draining and `full` ones, those with the lowest (used +
    1) / slots × latency first. Pure.

    Nodes in `failed`, at which the job has failed, come last.
    """

    def rank(node: NodeState) -> tuple[bool, float, str]:
        latency_ms = node.latency_ms.get(str(need.capability), _UNKNOWN_LATENCY_MS)
        return node.node_id in failed, (node.used + 1) / node.slots * latency_ms, node.node_id

    able = (node for node in nodes if not node.draining and node.node_id not in full and need.met_by(node.offers))
    return sorted(able, key=rank)


class View:
    """All nodes as of the last refresh, with this instance's own nodes kept current."""

    def __init__(
        self,
        instance_id: str,
        snapshots: Snapshots,
        settings: NodeSnapshotSettings,
        local: Callable[[], list[NodeState]],
    ) -> None:
        """`local`: returns the current state of this instance's nodes."""
        self._instance_id = instance_id
        self._snapshots = snapshots
        self._settings = settings
        self._local = local
        self._nodes: dict[str, NodeState] = {}
        self._full: dict[str, float] = {}
        """By node: when a reservation last failed."""
        self._published: dict[str, tuple[object, float]] = {}
        """By node of this instance: the facts last published, and when."""

    async def refresh(self) -> None:
        """Write to Redis the nodes of this instance whose used slots, draining or connection changed, or that were last
        written a third of `presence_ttl_seconds` ago; read those of other instances, unless snapshots are disabled:
        then forget those."""
        now, local, changed = time.monotonic(), self._local(), []
        for node in local:
            facts = (node.used, node.draining, node.slots, node.connected_ms)
            published, at = self._published.get(node.node_id, (None, 0.0))
            if published != facts or now - at > self._settings.presence_ttl_seconds / 3:
                self._published[node.node_id] = (facts, now)
                changed.append(node)
        if changed:
            await self._snapshots.put(changed)
        states = await self._snapshots.all() if self._settings.enabled else []
        self._nodes = {node.node_id: node for node in states if node.instance_id != self._instance_id}
        local = self._local()  # nodes may have connected or left during the awaits above
        self._nodes |= {node.node_id: node for node in local}
        self._full = {node_id: at for node_id, at in self._full.items() if node_id in self._nodes}
        self._published = {
            node.node_id: self._published[node.node_id] for node in local if node.node_id in self._published
        }

    def put(self, node: NodeState) -> None:
        """Update a node of this instance."""
        self._nodes[node.node_id] = node
        self._full.pop(node.node_id, None)

    def forget(self, node_id: str) -> None:
        """Remove a node that has disconnected."""
        self._nodes.pop(node_id, None)

    def get(self, node_id: str) -> NodeState | None:
        return self._nodes.get(node_id)

    def __len__(self) -> int:
        return len(self._nodes)

    def mark_full(self, node_id: str, now: float) -> None:
        """Note that a reservation at the node failed at `now` (monotonic time). `put` cancels the note."""
        self._full[node_id] = now

    def candidates(self, need: Need, since: float, failed: frozenset[str] = frozenset()) -> list[NodeState]:
        """Return the nodes to try for the job, best first: without draining nodes, this instance's nodes without a free
        slot, and nodes marked as full after `since` (monotonic time). Nodes in `failed` come last.

        Keeps busy nodes of other instances, because their slot counts may be out of date.
        """
        full = {node_id for node_id, at in self._full.items() if at > since}
        local = (node for node in self._nodes.values() if node.instance_id == self._instance_id)
        full |= {node.node_id for node in local if node.used >= node.slots}
        return ranked(self._nodes.values(), need, frozenset(full), failed)

    def offered(self, need: Need) -> bool:
        """Whether any node offers this, busy or not, except draining nodes."""
        return any(need.met_by(node.offers) and not node.draining for node in self._nodes.values())

    def pools(self, node_id: str, pools: Iterable[str]) -> list[str]:
        """Return those of the pools that this node can serve."""
        node = self._nodes.get(node_id)
        return [pool for pool in pools if node and not node.draining and Need.of_pool(pool).met_by(node.offers)]
