"""When closed queues flow again, in one place, for people who look into Redis. Rule: docs/sources/music.md#breaker.

Gates go by their own times and never by these, which may be some seconds old.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from math import inf
from typing import Any

from pipeline.engine.gate import FOR_EVER
from pipeline.storage.context import Context

KEY = "penstock:queues:resume_at"
"""A hash: queue → epoch ms, or -1 until somebody resumes it. Only closed queues are in it."""


def note(context: Context, left_s: Mapping[str, float | None]) -> None:
    """Note how long these queues stay closed, in seconds; infinity: until further notice; None: they are not closed."""
    now_ms = context.db.now().timestamp() * 1000
    closed: dict[Any, int] = {
        queue: FOR_EVER if each == inf else int(now_ms + each * 1000)
        for queue, each in left_s.items()
        if each is not None
    }
    with context.redis.pipeline() as pipe:
        if flowing := sorted(left_s.keys() - closed.keys()):
            pipe.hdel(KEY, *flowing)
        if closed:
            pipe.hset(KEY, mapping=closed)
        pipe.execute()


def resume_at(context: Context) -> dict[str, datetime | None]:
    """When each queue flows again that was closed when somebody last looked; None: when it is resumed."""
    now = context.db.now()
    found = {str(queue): int(str(until)) for queue, until in context.redis.hgetall(KEY).items()}
    times = {queue: None if ms < 0 else datetime.fromtimestamp(ms / 1000, UTC) for queue, ms in sorted(found.items())}
    return {queue: at for queue, at in times.items() if at is None or at > now}
