"""What an instance knows of all nodes, its own and those of others, and which of them to ask first."""

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
    """What a job asks for. An empty model: whichever the node has."""

    capability: Capability
    model: str = ""

    @property
    def pool(self) -> str:
        """The waiting line of jobs with this need."""
        return f"{self.capability}:{self.model}"

    @classmethod
    def of_pool(cls, pool: str) -> "Need":
        capability, _, model = pool.partition(":")
        return cls(Capability(capability), model)

    def met_by(self, offers: Iterable[Offer]) -> bool:
        """Whether somebody who offers this could do it."""
        return any(
            offer.capability == self.capability
            and (not self.model or self.model in offer.models or ANY_MODEL in offer.models)
            for offer in offers
        )


def ranked(nodes: Iterable[NodeState], need: Need, full: frozenset[str], left_out: frozenset[str]) -> list[NodeState]:
    """The nodes that may do this now, best first: few slots in use, then short latency. Pure.

    Those `left_out` come last: they have failed this job, and are better than nothing.
    """

    def rank(node: NodeState) -> tuple[bool, float, str]:
        latency_ms = node.latency_ms.get(str(need.capability), _UNKNOWN_LATENCY_MS)
        return node.node_id in left_out, (node.used + 1) / node.slots * latency_ms, node.node_id

    able = (node for node in nodes if not node.draining and node.node_id not in full and need.met_by(node.offers))
    return sorted(able, key=rank)


class View:
    """The nodes as of the last look, corrected by what this instance has seen since."""

    def __init__(
        self,
        instance_id: str,
        snapshots: Snapshots,
        settings: NodeSnapshotSettings,
        here: Callable[[], list[NodeState]],
    ) -> None:
        """`here`: the nodes of this instance, as they are now."""
        self._instance_id = instance_id
        self._snapshots = snapshots
        self._settings = settings
        self._here = here
        self._nodes: dict[str, NodeState] = {}
        self._full: dict[str, float] = {}
        """When a node was found full."""
        self._shown: dict[str, tuple[object, float]] = {}
        """What the others were shown of a node that is here, and when."""

    async def refresh(self) -> None:
        """Show the nodes that are here to the others, and see theirs."""
        now, here, changed = time.monotonic(), self._here(), []
        for node in here:
            facts = (node.used, node.draining, node.slots, node.connected_ms)
            shown, at = self._shown.get(node.node_id, (None, 0.0))
            if shown != facts or now - at > self._settings.presence_ttl_seconds / 3:
                self._shown[node.node_id] = (facts, now)
                changed.append(node)
        if changed:
            await self._snapshots.put(changed)
        seen = await self._snapshots.all() if self._settings.enabled else []
        self._nodes = {node.node_id: node for node in seen if node.instance_id != self._instance_id}
        here = self._here()  # who has come or gone meanwhile
        self._nodes |= {node.node_id: node for node in here}
        self._full = {node_id: at for node_id, at in self._full.items() if node_id in self._nodes}
        self._shown = {node.node_id: self._shown[node.node_id] for node in here if node.node_id in self._shown}

    def put(self, node: NodeState) -> None:
        """A node of this instance as it is now."""
        self._nodes[node.node_id] = node
        self._full.pop(node.node_id, None)

    def forget(self, node_id: str) -> None:
        """A node has gone."""
        self._nodes.pop(node_id, None)

    def get(self, node_id: str) -> NodeState | None:
        return self._nodes.get(node_id)

    def __len__(self) -> int:
        return len(self._nodes)

    def is_full(self, node_id: str, now: float) -> None:
        """A node had no slot at the time `now`."""
        self._full[node_id] = now

    def candidates(self, need: Need, since: float, left_out: frozenset[str] = frozenset()) -> list[NodeState]:
        """Whom to ask, in this order; not those that were found full after `since`.

        What another instance said of its nodes is old: they are asked, however busy they were.
        """
        full = {node_id for node_id, at in self._full.items() if at > since}
        here = (node for node in self._nodes.values() if node.instance_id == self._instance_id)
        full |= {node.node_id for node in here if node.used >= node.slots}
        return ranked(self._nodes.values(), need, frozenset(full), left_out)

    def offered(self, need: Need) -> bool:
        """Whether any node offers this, busy or not."""
        return any(need.met_by(node.offers) and not node.draining for node in self._nodes.values())

    def pools(self, node_id: str, pools: Iterable[str]) -> list[str]:
        """Those of the waiting lines that this node could serve."""
        node = self._nodes.get(node_id)
        return [pool for pool in pools if node and not node.draining and Need.of_pool(pool).met_by(node.offers)]
