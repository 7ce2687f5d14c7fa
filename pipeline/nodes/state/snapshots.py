"""Snapshots of nodes: what every instance knows of those that are connected to others."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b

from pipeline.nodes.protocol import Capability, Offer
from pipeline.nodes.state.sender import Command
from pipeline.nodes.state.store import Store

_CAPABILITIES = frozenset(Capability)
_WRITTEN_WITHIN = 3
"""A snapshot that is as before is written again after this part of its presence's time."""


@dataclass(frozen=True)
class NodeState:
    """A node that is connected. Times are ms of the Redis server's clock."""

    node_id: str
    name: str
    token_id: str
    instance_id: str
    """Which it is connected to."""
    slots: int
    used: int
    offers: tuple[Offer, ...]
    latency_ms: dict[str, float] = field(default_factory=dict)
    """By capability: how long its last jobs took."""
    draining: bool = False
    """It takes no more jobs."""
    software: str = ""
    connected_ms: int = 0
    last_seen_ms: int = 0

    def pack(self) -> bytes:
        offers = [{"capability": offer.capability, "models": offer.models} for offer in self.offers]
        return json.dumps(vars(self) | {"offers": offers}).encode()

    @classmethod
    def unpack(cls, data: bytes) -> "NodeState":
        """Ignore fields and capabilities of a newer instance that this one does not know."""
        written = json.loads(data)
        values = {one.name: written[one.name] for one in fields(cls) if one.name in written}
        offers = [Offer.model_validate(offer) for offer in written["offers"] if offer["capability"] in _CAPABILITIES]
        return cls(**values | {"offers": tuple(offers)})


@dataclass(frozen=True)
class GoneNode:
    """A node that was there."""

    node_id: str
    name: str
    last_seen_ms: int


class Snapshots:
    """The snapshots of all nodes. What is as it was is neither written nor read each time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys
        self._settings = store.settings.node_snapshot
        self._ttl_ms = int(self._settings.presence_ttl_seconds * 1000)
        self._written: dict[str, tuple[NodeState, float]] = {}
        """Without `last_seen_ms`, which is kept beside the snapshot; and when."""
        self._known: dict[str, tuple[str, NodeState]] = {}

    async def put(self, nodes: Sequence[NodeState]) -> None:
        """These nodes, all that are connected to this instance, are present for the next `presence_ttl_seconds`."""
        if not nodes:
            self._written.clear()
            return
        now = time.monotonic()
        bare = {node.node_id: replace(node, last_seen_ms=0, latency_ms=dict(node.latency_ms)) for node in nodes}
        listed = await self._store.do("SADD", self._keys.nodes, *bare)
        if listed > len(bare.keys() - self._written.keys()):
            # Redis was emptied, or a node that was gone for long is back.
            self._written.clear()
        oldest = now - self._ttl_ms / 1000 / _WRITTEN_WITHIN
        known = {name: state for name, (state, at) in self._written.items() if at > oldest and name in bare}
        kept = {name: self._written[name] for name in known}
        due = [node for node in nodes if known.get(node.node_id) != bare[node.node_id]]
        if due:
            seen = [part for node in due for part in (node.last_seen_ms, node.node_id)]
            commands: list[Command] = [("ZADD", self._keys.nodes_last_seen, "GT", *seen)]
            commands += [part for node in due for part in self._write(node, bare[node.node_id].pack())]
            await self._store.batch(commands, "snapshot_put")
        self._written = kept | {node.node_id: (bare[node.node_id], now) for node in due}

    def _write(self, node: NodeState, raw: bytes) -> list[Command]:
        keys, name = self._keys, node.node_id
        kept_ms = self._ttl_ms + int(self._settings.remove_stale_after_seconds * 1000)
        presence = f"{node.last_seen_ms} {_digest(raw)} {node.instance_id}"
        return [
            # The snapshot first: who sees the presence finds what it speaks of.
            ("SET", keys.node_snapshot(name), raw, "PX", kept_ms),
            ("SET", keys.node_presence(name), presence, "PX", self._ttl_ms),
        ]

    async def gone(self, node_id: str, instance_id: str = "") -> bool:
        """The node is not connected any more. With `instance_id`, nothing happens if it is another's by now."""
        self._written.pop(node_id, None)
        return bool(await self._store.run("node_gone", [self._keys.node_presence(node_id)], [instance_id]))

    async def all(self) -> list[NodeState]:
        """Those that are present."""
        return list((await self._present(await self._names())).values())

    async def listed(self) -> list[NodeState | GoneNode]:
        """Those that are present, and those that were within `remove_stale_after_seconds`."""
        names = await self._names()
        present = await self._present(names)
        gone = await self._gone([name for name in names if name not in present])
        return [present.get(name) or gone[name] for name in names]

    async def _names(self) -> list[str]:
        return sorted(name.decode() for name in await self._store.do("SMEMBERS", self._keys.nodes))

    async def _present(self, names: Sequence[str]) -> dict[str, NodeState]:
        found = await self._store.get_many([self._keys.node_presence(name) for name in names])
        present = {name: raw.decode().split(" ", 2) for name, raw in zip(names, found, strict=True) if raw}
        digests = {name: digest for name, (digest, _) in self._known.items()}
        await self._learn([name for name, (_, digest, _) in present.items() if digests.get(name) != digest])
        self._known = {name: known for name, known in self._known.items() if name in present}
        return {
            name: replace(self._known[name][1], last_seen_ms=int(seen_ms))
            for name, (seen_ms, *_) in present.items()
            if name in self._known
        }

    async def _learn(self, names: Sequence[str]) -> None:
        found = await self._store.get_many([self._keys.node_snapshot(name) for name in names])
        for name, raw in zip(names, found, strict=True):
            if raw:
                self._known[name] = (_digest(raw), NodeState.unpack(raw))

    async def _gone(self, names: Sequence[str]) -> dict[str, GoneNode]:
        found = await self._store.get_many([self._keys.node_snapshot(name) for name in names])
        seen = await self._store.batch([("ZSCORE", self._keys.nodes_last_seen, name) for name in names], "zscore")
        return {
            name: GoneNode(name, NodeState.unpack(raw).name if raw else "", int(float(at or 0)))
            for name, raw, at in zip(names, found, seen, strict=True)
        }

    async def clean(self) -> int:
        """Forget the nodes that were not seen for `remove_stale_after_seconds`; how many."""
        keys = self._keys
        limit = await self._store.now_ms() - int(self._settings.remove_stale_after_seconds * 1000)
        found = await self._store.do("ZRANGEBYSCORE", keys.nodes_last_seen, "-inf", limit)
        names = [name.decode() for name in found]
        present = await self._store.get_many([keys.node_presence(name) for name in names])
        stale = [name for name, raw in zip(names, present, strict=True) if not raw]
        if stale:
            removals: list[Command] = [("SREM", keys.nodes, *stale), ("ZREM", keys.nodes_last_seen, *stale)]
            removals += [("DEL", keys.node_snapshot(name)) for name in stale]
            await self._store.batch(removals, "snapshot_clean")
        return len(stale)


def _digest(raw: bytes) -> str:
    return blake2b(raw, digest_size=8).hexdigest()
