"""Instances of the gateway: which are there, and which of them each node and session is connected to."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pipeline.nodes.state.sender import Command, call
from pipeline.nodes.state.store import Store


@dataclass(frozen=True)
class InstanceView:
    """An instance that is there, or was."""

    instance_id: str
    boot: str
    """Of the process that is there; empty: none is."""
    last_seen_ms: int
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        return bool(self.boot)


class Owners:
    """Which instance each node, or each session, is connected to."""

    def __init__(self, store: Store, key: Callable[[str], str]) -> None:
        self._store = store
        self._key = key
        self._ttl_ms = int(store.settings.owner_ttl_seconds * 1000)

    async def take(self, name: str, instance_id: str) -> str:
        """It is connected to this instance; whose it was before, or empty.

        If the answer is lost and the call repeated, that is this instance: the other finds out by `renew`.
        """
        before: bytes = await self._store.run("owner_take", [self._key(name)], [instance_id, self._ttl_ms])
        return before.decode()

    async def drop(self, name: str, instance_id: str) -> None:
        """It is not connected to this instance any more. If it is another's, it stays so."""
        await self._store.run("delete_own", [self._key(name)], [instance_id])

    async def owner(self, name: str) -> str:
        """The instance, or empty."""
        return (await self._store.do("GET", self._key(name)) or b"").decode()

    async def renew(self, instance_id: str, names: Iterable[str]) -> set[str]:
        """Prolong what is connected to this instance, or make it known again if Redis was emptied.

        Returns those that are another instance's by now.
        """
        asked = list(names)
        commands = [call("owner_renew", [self._key(name)], [instance_id, self._ttl_ms]) for name in asked]
        renewed = await self._store.batch(commands, "owner_renew")
        return {name for name, is_ours in zip(asked, renewed, strict=True) if not is_ours}


class Instances:
    """Presence of instances, and owners of nodes and sessions; all end by themselves after `owner_ttl_seconds`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys
        self._ttl_ms = int(store.settings.owner_ttl_seconds * 1000)
        self.nodes = Owners(store, store.keys.node_owner)
        self.sessions = Owners(store, store.keys.session_owner)

    async def present(self, instance_id: str, boot: str, info: dict[str, Any], *, begins: bool = True) -> bool:
        """Announce the instance for the next `owner_ttl_seconds`.

        A process that `begins` takes the name from any other process. False: a later process has taken the name.
        """
        now_ms, key = await self._store.now_ms(), self._keys.presence(instance_id)
        commands: list[Command] = [
            ("SET", key, boot, "PX", self._ttl_ms) if begins else call("owner_renew", [key], [boot, self._ttl_ms]),
            ("ZADD", self._keys.schedulers, now_ms, instance_id),
            ("SET", self._keys.info(instance_id), json.dumps(info), "PX", self._ttl_ms),
        ]
        is_ours, *_ = await self._store.batch(commands, "presence")
        return bool(is_ours != 0)

    async def leave(self, instance_id: str, boot: str) -> None:
        """The instance goes. Its inbox stays until somebody has taken what is in it."""
        await self._store.run("delete_own", [self._keys.presence(instance_id)], [boot])

    async def living(self) -> dict[str, str]:
        """By instance, its boot."""
        return {one.instance_id: one.boot for one in await self.all() if one.alive}

    async def is_alive(self, home: str) -> bool:
        """Whether `instance/boot` is there: the same process."""
        instance_id, _, boot = home.partition("/")
        found: bytes | None = await self._store.do("GET", self._keys.presence(instance_id))
        return found is not None and found.decode() == boot

    async def all(self) -> list[InstanceView]:
        """Those that are there, and those that were and whose inbox nobody has closed."""
        found = await self._store.do("ZRANGE", self._keys.schedulers, 0, -1, "WITHSCORES")
        seen = {instance_id.decode(): int(float(at)) for instance_id, at in _pairs(found)}
        boots = await self._store.get_many([self._keys.presence(instance_id) for instance_id in seen])
        infos = await self._store.get_many([self._keys.info(instance_id) for instance_id in seen])
        return [
            InstanceView(instance_id, (boot or b"").decode(), at_ms, json.loads(info or b"{}"))
            for (instance_id, at_ms), boot, info in zip(seen.items(), boots, infos, strict=True)
        ]


def _pairs(found: Any) -> list[tuple[bytes, Any]]:
    """Members and scores, which come in pairs or one after another, by the protocol."""
    if found and not isinstance(found[0], bytes):
        return [(member, score) for member, score in found]
    return list(zip(found[::2], found[1::2], strict=True))
