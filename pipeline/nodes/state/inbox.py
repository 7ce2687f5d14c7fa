"""Inboxes: messages from instance to instance, as Redis Streams. Rules: docs/sources/nodes.md#streams.

A message arrives at least once, so its effect must be harmless to repeat. After too many failed deliveries it becomes
a dead letter (`dlq`).
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
"""How long an instance keeps a dead instance's inbox after it last read from it."""
_REMEMBERED = 10_000
_UNLIMITED = 2**31
_MAX_BLOCK_MS = int(TIMEOUT_S * 500)
"""The limit for blocking reads: well below the time after which the client gives up on an answer."""


@dataclass(frozen=True)
class Envelope:
    """A message in a stream."""

    id: str
    kind: str
    body: dict[str, Any]
    payload: bytes = field(default=b"", repr=False)


class Inbox:
    """Reads the inbox of one instance, and sends to those of others."""

    def __init__(self, store: Store, instance_id: str) -> None:
        self._store = store
        self._keys = store.keys
        self._settings = store.settings
        self._instance_id = instance_id
        self._key = self._keys.inbox(instance_id)
        self._max_deliveries = store.settings.dlq_max_deliveries if store.settings.dlq_enabled else _UNLIMITED
        self._resumed_after: str | None = "0"
        """The last id read of the messages delivered to this instance before it started. None: all are read."""
        self._sendings: OrderedDict[bytes, str] = OrderedDict()

    async def open(self) -> None:
        """Create the inbox if it does not exist. Messages cannot be sent to an absent inbox."""
        try:
            await self._store.do("XGROUP", "CREATE", self._key, self._settings.stream_group, "0", "MKSTREAM")
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def send(self, to: str, kind: str, body: dict[str, Any], payload: bytes = b"") -> bool:
        """Put a message into an instance's inbox; a full one loses its oldest messages. False: the inbox does not
        exist."""
        # A command whose answer was lost is sent twice. Readers drop the copy, which has the same `sending`.
        parts: list[Part] = ["kind", kind, "body", json.dumps(body), "sending", uuid4().hex]
        parts += ["payload", payload] if payload else []
        limit = self._settings.stream_maxlen
        return bool(await self._store.do("XADD", self._keys.inbox(to), "NOMKSTREAM", "MAXLEN", "~", limit, "*", *parts))

    async def send_dispensable(self, to: str, kind: str, body: dict[str, Any]) -> bool:
        """Send a message that may get lost. Drop it if the inbox is half full, to leave room for other messages.
        False: it was dropped, or the inbox does not exist."""
        length = await self._store.do("XLEN", self._keys.inbox(to))
        return length < self._settings.stream_maxlen / 2 and await self.send(to, kind, body)

    async def read(self) -> list[Envelope]:
        """Return the next messages, at most `stream_count`; without any, wait up to `stream_block_ms` (or a lower limit
        that the client's timeout sets) and return none. Creates the inbox again if Redis lost it. Deletes copies of
        messages that were read before, so a list can be empty although messages arrived.

        The first calls return the unhandled messages that were delivered to this instance before it started. A message
        stays in the inbox until `acknowledge`.
        """
        settings = self._settings
        options = ("XREADGROUP", "GROUP", settings.stream_group, self._instance_id, "COUNT", settings.stream_count)
        try:
            if self._resumed_after is not None:
                answer = await self._store.read_blocking(*options, "STREAMS", self._key, self._resumed_after)
                if entries := _entries(answer):
                    self._resumed_after = entries[-1][0].decode()
                    return await self._envelopes(entries)
                self._resumed_after = None
            block_ms = min(settings.stream_block_ms, _MAX_BLOCK_MS)
            answer = await self._store.read_blocking(*options, "BLOCK", block_ms, "STREAMS", self._key, ">")
        except ResponseError as error:
            if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
                raise
            await self.open()
            return []
        return await self._envelopes(_entries(answer))

    async def acknowledge(self, ids: Iterable[str]) -> None:
        """Delete these messages, which this instance has handled."""
        await self.acknowledge_dead(self._instance_id, ids)

    async def reclaim(self, min_idle_ms: int) -> list[Envelope]:
        """Return messages that were last delivered at least `min_idle_ms` ago and not deleted; this counts as one more
        delivery.

        Messages with more than `dlq_max_deliveries` deliveries are left for `scan_dlq`.
        """
        settings = self._settings
        arguments: list[Part] = [settings.stream_group, self._instance_id, min_idle_ms, settings.stream_count]
        entries = await self._store.run("inbox_reclaim", [self._key], [*arguments, self._max_deliveries])
        return await self._envelopes(entries)

    async def take_dead(self, instance_id: str) -> list[Envelope] | None:
        """Return messages of a dead instance's inbox, for this instance to handle. None: the instance lives, or another
        one drains its inbox.

        The next call returns messages again that `acknowledge_dead` has not deleted. If the list is empty, call
        `close_dead`.
        """
        if await self._store.do("EXISTS", self._keys.presence(instance_id)):
            return None
        keys = [self._keys.inbox(instance_id), self._keys.drain(instance_id)]
        arguments: list[Part] = [self._settings.stream_group, self._instance_id, _LEASE_MS, self._settings.stream_count]
        is_ours, entries = await self._store.run("inbox_drain", keys, [*arguments, self._max_deliveries])
        return [_envelope(name.decode(), entry_fields(pairs)) for name, pairs in entries] if is_ours else None

    async def acknowledge_dead(self, instance_id: str, ids: Iterable[str]) -> None:
        """Delete these handled messages of `take_dead`."""
        if handled := list(ids):
            await self._store.run(
                "inbox_done", [self._keys.inbox(instance_id)], [self._settings.stream_group, *handled]
            )

    async def close_dead(self, instance_id: str) -> bool:
        """Delete the empty inbox of a dead instance, and take the instance off the list. False: the inbox still has
        messages."""
        keys = [self._keys.inbox(instance_id), self._keys.drain(instance_id)]
        if not await self._store.run("inbox_close", keys):
            return False
        if await self._store.do("EXISTS", self._keys.dlq(instance_id)):
            await self._store.do("SADD", self._keys.dlqs, instance_id)
        if not await self._store.do("EXISTS", self._keys.presence(instance_id)):
            await self._store.do("ZREM", self._keys.schedulers, instance_id)
        return True

    async def pending(self) -> int:
        """Count the messages that were delivered to this instance and not deleted since; 0 if there is no inbox."""
        try:
            answer = await self._store.do("XPENDING", self._key, self._settings.stream_group)
        except ResponseError:
            return 0
        return int(answer["pending"])

    async def _envelopes(self, entries: list[Any]) -> list[Envelope]:
        """Return the messages in entries. Deletes entries that are empty or copies of an earlier message."""
        envelopes: list[Envelope] = []
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
            envelopes.append(_envelope(name, values))
        while len(self._sendings) > _REMEMBERED:
            self._sendings.popitem(last=False)
        await self.acknowledge(void)
        return envelopes


def entry_fields(pairs: Any) -> Mapping[bytes, bytes]:
    """Return the fields of an entry. Commands give a mapping, scripts a flat list."""
    return pairs if isinstance(pairs, Mapping) else dict(zip(pairs[::2], pairs[1::2], strict=True))


def _envelope(entry_id: str, values: Mapping[bytes, bytes]) -> Envelope:
    body = json.loads(values.get(b"body", b"{}"))
    return Envelope(entry_id, values.get(b"kind", b"").decode(), body, values.get(b"payload", b""))


def _entries(answer: Any) -> list[Any]:
    """Return the entries of the single stream in an answer, whose shape depends on the version of the protocol."""
    if not answer:
        return []
    (entries,) = answer.values() if isinstance(answer, Mapping) else (answer[0][1],)
    return entries[0] if entries and isinstance(entries[0], list) else list(entries)
