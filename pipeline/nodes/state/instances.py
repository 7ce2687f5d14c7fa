"""Gateway instances: which of them live, and which of them owns each node and session."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pipeline.nodes.state.sender import Command, call
from pipeline.nodes.state.store import Store


@dataclass(frozen=True)
class InstanceView:
    """An instance, living or dead."""

    instance_id: str
    boot: str
    """The random number of the living process. Empty: the instance is dead."""
    last_seen_ms: int
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        return bool(self.boot)


class Owners:
    """The owner of each node, or of each session: the instance that it is connected to."""

    def __init__(self, store: Store, key: Callable[[str], str]) -> None:
        self._store = store
        self._key = key
        self._ttl_ms = int(store.settings.owner_ttl_seconds * 1000)

    async def take(self, name: str, instance_id: str) -> str:
        """Make this instance the owner, for `owner_ttl_seconds`. Returns the previous owner, or an empty string.

        If an answer is lost and the call repeated, it returns this instance; the previous owner finds out by `renew`.
        """
        before: bytes = await self._store.run("owner_take", [self._key(name)], [instance_id, self._ttl_ms])
        return before.decode()

    async def drop(self, name: str, instance_id: str) -> None:
        """End the ownership of this instance. Harmless if another instance is the owner."""
        await self._store.run("delete_own", [self._key(name)], [instance_id])

    async def owner(self, name: str) -> str:
        """Return the owner, or an empty string."""
        return (await self._store.do("GET", self._key(name)) or b"").decode()

    async def renew(self, instance_id: str, names: Iterable[str]) -> set[str]:
        """Prolong the ownerships of this instance, and restore those that Redis lost.

        Returns the names that another instance owns.
        """
        owned = list(names)
        commands = [call("owner_renew", [self._key(name)], [instance_id, self._ttl_ms]) for name in owned]
        renewed = await self._store.batch(commands, "owner_renew")
        return {name for name, is_ours in zip(owned, renewed, strict=True) if not is_ours}


class Instances:
    """The presence of instances, and the owners of nodes and sessions. Each expires after `owner_ttl_seconds`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys
        self._ttl_ms = int(store.settings.owner_ttl_seconds * 1000)
        self.nodes = Owners(store, store.keys.node_owner)
        self.sessions = Owners(store, store.keys.session_owner)

    async def present(self, instance_id: str, boot: str, info: dict[str, Any], *, begins: bool = True) -> bool:
        """Record that the instance lives for the next `owner_ttl_seconds`. False: a later process has taken its name.

        `begins`: the first call of a process, which takes the name from any other process.
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
        """End the instance's presence, unless another process has its name. Its inbox stays until another instance has
        drained it."""
        await self._store.run("delete_own", [self._keys.presence(instance_id)], [boot])

    async def living(self) -> dict[str, str]:
        """Map each living instance to its boot number."""
        return {instance.instance_id: instance.boot for instance in await self.all() if instance.alive}

    async def is_alive(self, home: str) -> bool:
        """Whether the process `home`, written `instance/boot`, lives; False if a later process has the instance's
        name."""
        instance_id, _, boot = home.partition("/")
        presence: bytes | None = await self._store.do("GET", self._keys.presence(instance_id))
        return presence is not None and presence.decode() == boot

    async def all(self) -> list[InstanceView]:
        """Return the living instances, and the dead ones until another instance has closed their inbox
        (`close_dead`)."""
        members = await self._store.do("ZRANGE", self._keys.schedulers, 0, -1, "WITHSCORES")
        seen = {instance_id.decode(): int(float(at)) for instance_id, at in _pairs(members)}
        boots = await self._store.get_many([self._keys.presence(instance_id) for instance_id in seen])
        infos = await self._store.get_many([self._keys.info(instance_id) for instance_id in seen])
        return [
            InstanceView(instance_id, (boot or b"").decode(), at_ms, json.loads(info or b"{}"))
            for (instance_id, at_ms), boot, info in zip(seen.items(), boots, infos, strict=True)
        ]


def _pairs(answer: Any) -> list[tuple[bytes, Any]]:
    """Pair members with scores. The version of the Redis protocol decides whether they arrive in pairs or flat."""
    if answer and not isinstance(answer[0], bytes):
        return [(member, score) for member, score in answer]
    return list(zip(answer[::2], answer[1::2], strict=True))
