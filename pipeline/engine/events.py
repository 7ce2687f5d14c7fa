"""State changes as a capped Redis stream that readers replay from an id. A convenience: the database is the truth."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, cast

import structlog
from redis import Redis, RedisError

log = structlog.get_logger(__name__)

STREAM = "penstock:events"
MAX_EVENTS = 10_000


def publish(redis: "Redis", flow: str, event: str, **fields: str | int) -> None:
    """Append one event. If Redis is unreachable, log that and lose the event, without harm."""
    try:
        redis.xadd(STREAM, cast("Any", {"flow": flow, "event": event, **fields}), maxlen=MAX_EVENTS, approximate=True)
    except RedisError as error:
        log.warning("event.lost", flow=flow, event_name=event, error=type(error).__name__)


def trim(redis: "Redis", before: datetime | None, most: int, *, dry_run: bool) -> int:
    """Remove events older than `before` (None: whatever their age), and those beyond the newest `most` (0: whatever
    their number).

    Returns how many it removed, or with `dry_run` would remove.
    """
    old = [entry for entry, _ in cast("Any", redis.xrange(STREAM, max=f"({_id_at(before)}"))] if before else []
    total = redis.xlen(STREAM)
    excess = max(len(old), total - most if most else 0)
    if excess and not dry_run:
        redis.xtrim(STREAM, maxlen=total - excess, approximate=False)
    return excess


def _id_at(moment: datetime) -> str:
    return f"{int(moment.timestamp() * 1000)}-0"


def last_id(redis: "Redis") -> str:
    """Return the id of the newest event, for `read`; `0-0` without events."""
    newest = cast("list[tuple[str, Any]]", redis.xrevrange(STREAM, count=1))
    return newest[0][0] if newest else "0-0"


def read(redis: "Redis", after: str, block_s: float) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield events after the id `after`, as (id, fields), oldest first, at most 1000. Waits up to `block_s` seconds for
    the first one."""
    reply = cast("Any", redis.xread({STREAM: after}, count=1000, block=max(1, int(block_s * 1000))))
    streams = reply.items() if isinstance(reply, dict) else (reply or [])
    for _, entries in streams:
        # RESP3 wraps each batch of entries in one more list.
        for entry in entries if not entries or isinstance(entries[0], tuple) else entries[0]:
            yield entry[0], entry[1]
