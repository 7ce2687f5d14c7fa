"""Dead letters: messages that failed at every delivery. They wait for an operator."""

import json
from dataclasses import dataclass
from typing import Any

from pipeline.nodes.state.inbox import entry_fields
from pipeline.nodes.state.store import Store


@dataclass(frozen=True)
class DlqEntry:
    """A dead letter."""

    id: str
    instance_id: str
    """The instance in whose inbox the message was."""
    source_id: str
    """The message's id in that inbox."""
    kind: str
    body: dict[str, Any]
    deliveries: int
    moved_ms: int


async def scan_dlq(store: Store, instance_id: str) -> int:
    """Move messages of the instance's inbox that had more than `dlq_max_deliveries` deliveries, the last at least
    `dlq_min_idle_ms` ago, to its dead letters. Returns how many; 0 if dead letters are disabled."""
    settings = store.settings
    if not settings.dlq_enabled:
        return 0
    keys = [store.keys.inbox(instance_id), store.keys.dlq(instance_id)]
    limits = [settings.dlq_min_idle_ms, settings.dlq_max_deliveries, settings.dlq_scan_count, settings.dlq_maxlen]
    return int(await store.run("dlq_move", keys, [settings.stream_group, *limits]))


async def dlq(store: Store, limit: int = 100) -> list[DlqEntry]:
    """List the dead letters of all instances, the newest first, at most `limit`."""
    instances = await _instances(store)
    commands = [("XREVRANGE", store.keys.dlq(instance_id), "+", "-", "COUNT", limit) for instance_id in instances]
    answers = await store.batch(commands, "dlq")
    entries = [
        _entry(instance_id, entry_id, pairs)
        for instance_id, letters in zip(instances, answers, strict=True)
        for entry_id, pairs in letters
    ]
    return sorted(entries, key=lambda entry: entry.moved_ms, reverse=True)[:limit]


async def dlq_size(store: Store) -> int:
    """Count the dead letters of all instances."""
    lengths = await store.batch([("XLEN", store.keys.dlq(name)) for name in await _instances(store)], "dlq")
    return sum(map(int, lengths))


async def _instances(store: Store) -> list[str]:
    lists = await store.batch([("ZRANGE", store.keys.schedulers, 0, -1), ("SMEMBERS", store.keys.dlqs)], "dlq")
    return sorted({name.decode() for names in lists for name in names})


async def replay(store: Store, instance_id: str, entry_id: str) -> bool:
    """Move a dead letter back into its instance's inbox, as a new message; if the instance is dead, another one handles
    it. False: the letter is unknown."""
    # List the instance first, so that living instances find its inbox if it is dead.
    await store.do("ZADD", store.keys.schedulers, "NX", 0, instance_id)
    keys = [store.keys.inbox(instance_id), store.keys.dlq(instance_id)]
    return bool(await store.run("dlq_replay", keys, [entry_id, store.settings.stream_maxlen]))


async def drop(store: Store, instance_id: str, entry_id: str) -> bool:
    """Delete a dead letter. False: the letter is unknown."""
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
