"""Dead letters: messages that were given out too often and that nobody handled. They wait for an operator."""

import json
from dataclasses import dataclass
from typing import Any

from pipeline.nodes.state.inbox import entry_fields
from pipeline.nodes.state.store import Store


@dataclass(frozen=True)
class DlqEntry:
    """A message that nobody could handle."""

    id: str
    instance_id: str
    """In whose inbox it was."""
    source_id: str
    """What it was called there."""
    kind: str
    body: dict[str, Any]
    deliveries: int
    moved_ms: int


async def scan_dlq(store: Store, instance_id: str) -> int:
    """Move what was given out over `dlq_max_deliveries` times, and is not being handled; how many."""
    settings = store.settings
    if not settings.dlq_enabled:
        return 0
    keys = [store.keys.inbox(instance_id), store.keys.dlq(instance_id)]
    limits = [settings.dlq_min_idle_ms, settings.dlq_max_deliveries, settings.dlq_scan_count, settings.dlq_maxlen]
    return int(await store.run("dlq_move", keys, [settings.stream_group, *limits]))


async def dlq(store: Store, limit: int = 100) -> list[DlqEntry]:
    """The dead letters of all instances, the newest first."""
    instances = await _instances(store)
    commands = [("XREVRANGE", store.keys.dlq(instance_id), "+", "-", "COUNT", limit) for instance_id in instances]
    found = await store.batch(commands, "dlq")
    entries = [
        _entry(instance_id, entry_id, pairs)
        for instance_id, letters in zip(instances, found, strict=True)
        for entry_id, pairs in letters
    ]
    return sorted(entries, key=lambda entry: entry.moved_ms, reverse=True)[:limit]


async def dlq_size(store: Store) -> int:
    """How many dead letters there are, of all instances."""
    found = await store.batch([("XLEN", store.keys.dlq(name)) for name in await _instances(store)], "dlq")
    return sum(map(int, found))


async def _instances(store: Store) -> list[str]:
    listed = await store.batch([("ZRANGE", store.keys.schedulers, 0, -1), ("SMEMBERS", store.keys.dlqs)], "dlq")
    return sorted({one.decode() for part in listed for one in part})


async def replay(store: Store, instance_id: str, entry_id: str) -> bool:
    """Put a dead letter back into its inbox. If the instance is gone, another takes it. False: there is none."""
    # Listed first: whoever looks after dead instances finds the inbox.
    await store.do("ZADD", store.keys.schedulers, "NX", 0, instance_id)
    keys = [store.keys.inbox(instance_id), store.keys.dlq(instance_id)]
    return bool(await store.run("dlq_replay", keys, [entry_id, store.settings.stream_maxlen]))


async def drop(store: Store, instance_id: str, entry_id: str) -> bool:
    """Remove a dead letter. False: there is none."""
    return bool(await store.do("XDEL", store.keys.dlq(instance_id), entry_id))


def _entry(instance_id: str, entry_id: bytes, pairs: Any) -> DlqEntry:
    values = {name.decode(): value for name, value in entry_fields(pairs).items()}
    return DlqEntry(
        entry_id.decode(),
        instance_id,
        values["source_id"].decode(),
        values["kind"].decode(),
        json.loads(values["body"]),
        int(values["deliveries"]),
        int(float(values["moved_ms"])),
    )
