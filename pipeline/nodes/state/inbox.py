"""Inboxes: messages from instance to instance, as Redis Streams. Source 004, "Streams 投递与可靠性".

A message arrives at least once, and may come again: what it asks for is harmless to repeat.
One that was given out too often, and that nobody handled, becomes a dead letter (`dlq`).
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from redis.exceptions import ResponseError

from pipeline.engine.connection import TIMEOUT_S
from pipeline.nodes.state.sender import Part
from pipeline.nodes.state.store import Store

_LEASE_MS = 10_000
"""How long one who takes over a dead instance's inbox has it, after its last look."""
_REMEMBERED = 10_000
_ANY = 2**31
_MAX_BLOCK_MS = int(TIMEOUT_S * 500)
"""A command that waits for longer would be taken for one that is never answered."""


@dataclass(frozen=True)
class Envelope:
    """A message, as it is in a stream."""

    id: str
    kind: str
    body: dict[str, Any]
    payload: bytes = field(default=b"", repr=False)


class Inbox:
    """The inbox of one instance, and the way to those of others."""

    def __init__(self, store: Store, instance_id: str) -> None:
        self._store = store
        self._keys = store.keys
        self._settings = store.settings
        self._instance_id = instance_id
        self._key = self._keys.inbox(instance_id)
        self._most = store.settings.dlq_max_deliveries if store.settings.dlq_enabled else _ANY
        self._resumed_after: str | None = "0"
        """Of those that were given to this instance before it started, up to which it has read; None: all."""
        self._sendings: OrderedDict[bytes, str] = OrderedDict()

    async def open(self) -> None:
        """Make the inbox, if there is none. Before that, nobody can send to it."""
        try:
            await self._store.do("XGROUP", "CREATE", self._key, self._settings.stream_group, "0", "MKSTREAM")
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def send(self, to: str, kind: str, body: dict[str, Any], payload: bytes = b"") -> bool:
        """Put a message into an instance's inbox. False: it has none, since it has gone or Redis was emptied."""
        # A command that is repeated because its answer was lost sends twice; the reader knows it by `sending`.
        parts: list[Part] = ["kind", kind, "body", json.dumps(body), "sending", uuid4().hex]
        parts += ["payload", payload] if payload else []
        limit = self._settings.stream_maxlen
        return bool(await self._store.do("XADD", self._keys.inbox(to), "NOMKSTREAM", "MAXLEN", "~", limit, "*", *parts))

    async def send_dispensable(self, to: str, kind: str, body: dict[str, Any]) -> bool:
        """Send a message that may get lost. If the inbox is half full, drop it, so that it pushes no other message
        out."""
        length = await self._store.do("XLEN", self._keys.inbox(to))
        return length < self._settings.stream_maxlen / 2 and await self.send(to, kind, body)

    async def read(self) -> list[Envelope]:
        """The next messages; waits for them for `stream_block_ms` at most.

        First those that were given to this instance before it started. If Redis was emptied, the inbox is made again.
        """
        settings = self._settings
        options = ("XREADGROUP", "GROUP", settings.stream_group, self._instance_id, "COUNT", settings.stream_count)
        try:
            if self._resumed_after is not None:
                found = await self._store.read_blocking(*options, "STREAMS", self._key, self._resumed_after)
                if entries := _entries(found):
                    self._resumed_after = entries[-1][0].decode()
                    return await self._known(entries)
                self._resumed_after = None
            block_ms = min(settings.stream_block_ms, _MAX_BLOCK_MS)
            found = await self._store.read_blocking(*options, "BLOCK", block_ms, "STREAMS", self._key, ">")
        except ResponseError as error:
            if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
                raise
            await self.open()
            return []
        return await self._known(_entries(found))

    async def done(self, ids: Iterable[str]) -> None:
        """These messages were handled."""
        await self.done_dead(self._instance_id, ids)

    async def reclaim(self, min_idle_ms: int) -> list[Envelope]:
        """Messages that were given out so long ago and not handled: this instance's again, one delivery more.

        Not those that were given out over `dlq_max_deliveries` times: they become dead letters.
        """
        settings = self._settings
        arguments: list[Part] = [settings.stream_group, self._instance_id, min_idle_ms, settings.stream_count]
        return await self._known(await self._store.run("inbox_reclaim", [self._key], [*arguments, self._most]))

    async def take_dead(self, instance_id: str) -> list[Envelope] | None:
        """What is in the inbox of an instance that is gone. None: it lives, or another takes it.

        What is not `done_dead` comes again. Empty: nothing is left, `close_dead`.
        """
        if await self._store.do("EXISTS", self._keys.presence(instance_id)):
            return None
        keys = [self._keys.inbox(instance_id), self._keys.drain(instance_id)]
        arguments: list[Part] = [self._settings.stream_group, self._instance_id, _LEASE_MS, self._settings.stream_count]
        is_ours, entries = await self._store.run("inbox_drain", keys, [*arguments, self._most])
        return [_envelope(name.decode(), entry_fields(pairs)) for name, pairs in entries] if is_ours else None

    async def done_dead(self, instance_id: str, ids: Iterable[str]) -> None:
        """These messages of `take_dead` were handled."""
        if handled := list(ids):
            await self._store.run(
                "inbox_done", [self._keys.inbox(instance_id)], [self._settings.stream_group, *handled]
            )

    async def close_dead(self, instance_id: str) -> bool:
        """Remove the inbox of an instance that is gone, and forget the instance. False: there is something in it."""
        keys = [self._keys.inbox(instance_id), self._keys.drain(instance_id)]
        if not await self._store.run("inbox_close", keys):
            return False
        if await self._store.do("EXISTS", self._keys.dlq(instance_id)):
            await self._store.do("SADD", self._keys.dlqs, instance_id)
        if not await self._store.do("EXISTS", self._keys.presence(instance_id)):
            await self._store.do("ZREM", self._keys.schedulers, instance_id)
        return True

    async def pending(self) -> int:
        """How many messages were given to this instance and are not handled."""
        try:
            found = await self._store.do("XPENDING", self._key, self._settings.stream_group)
        except ResponseError:
            return 0
        return int(found["pending"])

    async def _known(self, entries: list[Any]) -> list[Envelope]:
        """The messages in entries; those that are gone, or another's second copy, are taken out of the stream."""
        found: list[Envelope] = []
        void: list[str] = []
        for entry_id, pairs in entries:
            if entry_id is None:
                continue
            name = entry_id.decode()
            values = entry_fields(pairs or {})
            sending = values.get(b"sending", b"")
            if not values or self._sendings.setdefault(sending, name) != name:
                void.append(name)
                continue
            found.append(_envelope(name, values))
        while len(self._sendings) > _REMEMBERED:
            self._sendings.popitem(last=False)
        await self.done(void)
        return found


def entry_fields(pairs: Any) -> Mapping[bytes, bytes]:
    """Of an entry, as a script or a command gives it."""
    return pairs if isinstance(pairs, Mapping) else dict(zip(pairs[::2], pairs[1::2], strict=True))


def _envelope(entry_id: str, values: Mapping[bytes, bytes]) -> Envelope:
    """The message in an entry."""
    body = json.loads(values.get(b"body", b"{}"))
    return Envelope(entry_id, values.get(b"kind", b"").decode(), body, values.get(b"payload", b""))


def _entries(found: Any) -> list[Any]:
    """Of the one stream that was read. The shape depends on the protocol."""
    if not found:
        return []
    (entries,) = found.values() if isinstance(found, Mapping) else (found[0][1],)
    return entries[0] if entries and isinstance(entries[0], list) else list(entries)
