"""Snapshots of nodes, by which every instance knows the nodes of all other instances."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b

from pipeline.nodes.protocol import Capability, Offer
from pipeline.nodes.state.sender import Command
from pipeline.nodes.state.store import Store

_CAPABILITIES = frozenset(Capability)


@dataclass(frozen=True)
class NodeState:
    """A connected node. Times are ms of the Redis server's clock."""

    node_id: str
    name: str
    token_id: str
    instance_id: str
    """The instance that the node is connected to."""
    slots: int
    used: int
    offers: tuple[Offer, ...]
    latency_ms: dict[str, float] = field(default_factory=dict)
    """By capability: how long recent jobs took."""
    draining: bool = False
    """The node takes no new jobs."""
    software: str = ""
    connected_ms: int = 0
    last_seen_ms: int = 0

    def pack(self) -> bytes:
        offers = [{"capability": offer.capability, "models": offer.models} for offer in self.offers]
        return json.dumps(vars(self) | {"offers": offers}).encode()

    @classmethod
    def unpack(cls, data: bytes) -> "NodeState":
        """Read a packed node. Ignores unknown fields and capabilities, which a newer instance may have written."""
        written = json.loads(data)
        values = {known.name: written[known.name] for known in fields(cls) if known.name in written}
        offers = [Offer.model_validate(offer) for offer in written["offers"] if offer["capability"] in _CAPABILITIES]
        return cls(**values | {"offers": tuple(offers)})


@dataclass(frozen=True)
class DisconnectedNode:
    """A node that is not connected any more."""

    node_id: str
    name: str
    last_seen_ms: int


class Snapshots:
    """The snapshots of all nodes. Reads only those whose digest changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys
        self._settings = store.settings.node_snapshot
        self._ttl_ms = int(self._settings.presence_ttl_seconds * 1000)
        self._known: dict[str, tuple[str, NodeState]] = {}
        """By node: the digest and the state of the last snapshot read."""

    async def put(self, nodes: Sequence[NodeState]) -> None:
        """Write the snapshots of these nodes, which are present for the next `presence_ttl_seconds`."""
        if not nodes:
            return
        seen = [part for node in nodes for part in (node.last_seen_ms, node.node_id)]
        commands: list[Command] = [
            ("SADD", self._keys.nodes, *(node.node_id for node in nodes)),
            ("ZADD", self._keys.nodes_last_seen, "GT", *seen),
        ]
        commands += [part for node in nodes for part in self._write(node, replace(node, last_seen_ms=0).pack())]
        await self._store.batch(commands, "snapshot_put")

    def _write(self, node: NodeState, raw: bytes) -> list[Command]:
        keys, name = self._keys, node.node_id
        kept_ms = self._ttl_ms + int(self._settings.remove_stale_after_seconds * 1000)
        presence = f"{node.last_seen_ms} {_digest(raw)} {node.instance_id}"
        return [
            # Write the snapshot first, so that a reader of the presence finds the snapshot with its digest.
            ("SET", keys.node_snapshot(name), raw, "PX", kept_ms),
            ("SET", keys.node_presence(name), presence, "PX", self._ttl_ms),
        ]

    async def remove(self, node_id: str, instance_id: str = "") -> bool:
        """End the node's presence; with `instance_id`, only if that instance wrote it last. Returns whether it ended.
        `listed` still shows the node as gone."""
        return bool(await self._store.run("node_gone", [self._keys.node_presence(node_id)], [instance_id]))

    async def all(self) -> list[NodeState]:
        """Return the connected nodes."""
        return list((await self._present(await self._names())).values())

    async def listed(self) -> list[NodeState | DisconnectedNode]:
        """Return the connected nodes, and the gone ones last seen within `remove_stale_after_seconds`."""
        names = await self._names()
        present = await self._present(names)
        disconnected = await self._disconnected([name for name in names if name not in present])
        return [present.get(name) or disconnected[name] for name in names]

    async def _names(self) -> list[str]:
        return sorted(name.decode() for name in await self._store.do("SMEMBERS", self._keys.nodes))

    async def _present(self, names: Sequence[str]) -> dict[str, NodeState]:
        values = await self._store.get_many([self._keys.node_presence(name) for name in names])
        present = {name: raw.decode().split(" ", 2) for name, raw in zip(names, values, strict=True) if raw}
        digests = {name: digest for name, (digest, _) in self._known.items()}
        await self._load([name for name, (_, digest, _) in present.items() if digests.get(name) != digest])
        self._known = {name: known for name, known in self._known.items() if name in present}
        return {
            name: replace(self._known[name][1], last_seen_ms=int(seen_ms))
            for name, (seen_ms, *_) in present.items()
            if name in self._known
        }

    async def _load(self, names: Sequence[str]) -> None:
        values = await self._store.get_many([self._keys.node_snapshot(name) for name in names])
        for name, raw in zip(names, values, strict=True):
            if raw:
                self._known[name] = (_digest(raw), NodeState.unpack(raw))

    async def _disconnected(self, names: Sequence[str]) -> dict[str, DisconnectedNode]:
        values = await self._store.get_many([self._keys.node_snapshot(name) for name in names])
        seen = await self._store.batch([("ZSCORE", self._keys.nodes_last_seen, name) for name in names], "zscore")
        return {
            name: DisconnectedNode(name, NodeState.unpack(raw).name if raw else "", int(float(at or 0)))
            for name, raw, at in zip(names, values, seen, strict=True)
        }

    async def clean(self) -> int:
        """Forget the nodes that were not seen for `remove_stale_after_seconds`. Returns how many."""
        keys = self._keys
        limit = await self._store.now_ms() - int(self._settings.remove_stale_after_seconds * 1000)
        names = [name.decode() for name in await self._store.do("ZRANGEBYSCORE", keys.nodes_last_seen, "-inf", limit)]
        present = await self._store.get_many([keys.node_presence(name) for name in names])
        stale = [name for name, raw in zip(names, present, strict=True) if not raw]
        if stale:
            removals: list[Command] = [("SREM", keys.nodes, *stale), ("ZREM", keys.nodes_last_seen, *stale)]
            removals += [("DEL", keys.node_snapshot(name)) for name in stale]
            await self._store.batch(removals, "snapshot_clean")
        return len(stale)


def _digest(raw: bytes) -> str:
    return blake2b(raw, digest_size=8).hexdigest()
