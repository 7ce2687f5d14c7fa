"""When closed queues flow again, in one place for readers of Redis. Rule: docs/sources/music.md#breaker.

Gates use their own times and never these, which may be some seconds old.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from math import inf
from typing import Any

from pipeline.engine.gate import FOR_EVER
from pipeline.storage.context import Context

KEY = "penstock:queues:resume_at"
"""A hash: queue → epoch ms, or -1 until it is resumed. It contains closed queues only."""


def note(context: Context, left_s: Mapping[str, float | None]) -> None:
    """Note in Redis how long these queues stay closed, in seconds; infinity: until further notice; None: not closed.
    Other queues stay as noted."""
    now_ms = context.db.now().timestamp() * 1000
    closed: dict[Any, int] = {
        queue: FOR_EVER if seconds == inf else int(now_ms + seconds * 1000)
        for queue, seconds in left_s.items()
        if seconds is not None
    }
    with context.redis.pipeline() as pipe:
        if flowing := sorted(left_s.keys() - closed.keys()):
            pipe.hdel(KEY, *flowing)
        if closed:
            pipe.hset(KEY, mapping=closed)
        pipe.execute()


def resume_at(context: Context) -> dict[str, datetime | None]:
    """Return when each noted queue flows again; None: when it is resumed. Leaves out queues whose time is over."""
    now = context.db.now()
    noted = {str(queue): int(str(until)) for queue, until in context.redis.hgetall(KEY).items()}
    times = {queue: None if ms < 0 else datetime.fromtimestamp(ms / 1000, UTC) for queue, ms in sorted(noted.items())}
    return {queue: at for queue, at in times.items() if at is None or at > now}
