"""What the flow needs from time to time: buffers batched, lost claims given back, old files removed."""

from collections.abc import Callable

import structlog

from pipeline.engine.leases import Leases
from pipeline.flows.screenshots import recovery
from pipeline.flows.screenshots.frames import buffer, files, rejections, retention
from pipeline.flows.screenshots.live import screenshots_in_force
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
BATCHES, MERGES, VECTORS = "batches", "merges", "vectors"
"""The flow's scopes: batches of frames on their way to nodes, merges of nodes, and vectors of nodes."""


def due(context: Context) -> list[str]:
    """Batch frames that waited long enough; then every scope may have something to do."""
    portions: tuple[Callable[[Context], object], ...] = (buffer.batch_ready, buffer.batch_orphans)
    for batch in portions:
        try:
            batch(context)
        except Exception as error:
            # What one source's rows raise must not keep the others' batches from being launched.
            log.exception("buffers.not_batched", error=type(error).__name__)
    return [BATCHES, MERGES, VECTORS]


def next_wait_s(context: Context) -> float | None:
    """Seconds until a batch or merge is due, or a buffer makes a batch; None if nothing waits."""
    waits = (recovery.next_wait_s(context), buffer.next_look_s(context))
    return min((wait for wait in waits if wait is not None), default=None)


def free_lost(context: Context, absent: set[str]) -> list[str]:
    """Give back what is held by absent workers or beyond its lease."""
    if recovery.free_lost(context, absent):
        # Messages of lost workers may be among them: the others take their places again. Not so for vectors, which
        # nobody claims: whoever makes them may live, and be in a call that is paid for.
        merge_places(context).clear()
    return []


def clean_up(context: Context) -> int:
    """Remove files that nobody owns, frames whose time is over, and old rejections; how many files."""
    rejections.prune(context)
    return files.remove_orphans(context) + retention.expire(context)


def merge_places(context: Context) -> Leases:
    """Messages for merges that wait or are at work. One that is lost gives its place back by itself."""
    return Leases(context.redis, "screenshots:merges", screenshots_in_force(context).merge_workers)


def embed_place(context: Context) -> Leases:
    """The one message for vectors that waits or is at work."""
    return Leases(context.redis, "screenshots:embed", limit=1)
