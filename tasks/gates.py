"""Gates for workers: looked up by queue, and synced with the database by a thread of each worker."""

import os
import threading

import structlog
from redis import RedisError
from sqlalchemy.exc import SQLAlchemyError

from pipeline.engine.gate import Gate
from pipeline.process import get_context
from pipeline.providers import gates

log = structlog.get_logger(__name__)
SYNC_INTERVAL_S = 5.0
"""The time between two syncs, for rows edited by hand and for an emptied Redis. Commands take effect at once."""
LOOK_AT_GATES = "look_at_gates"
"""The control command that makes workers check the gates of some queues."""
_due = threading.Event()
_syncing = threading.Lock()
# No fork while the thread below is inside SQLite: the child would inherit a locked mutex of the library and hang in its
# first query.
os.register_at_fork(before=_syncing.acquire, after_in_parent=_syncing.release, after_in_child=_syncing.release)


def gate_of(queue: str) -> Gate | None:
    """The gate of a queue; None if it has none."""
    context = get_context()
    return gates.gate(context, queue) if queue in context.gates.queues else None


def sync_now() -> None:
    """Make the thread of `keep_synced` sync at once, because a gate has lost its limits. Does not wait for that."""
    _due.set()


def keep_synced(stopped: threading.Event) -> None:
    """Publish this worker's defaults, then sync gates with the database regularly, until `stopped`.

    No error ends the thread: without it, this worker would not restore an emptied Redis.
    """
    published = False
    while not stopped.is_set():
        try:
            with _syncing:
                if not published:
                    gates.publish_defaults(get_context())
                    published = True
                gates.sync(get_context())
        except (RedisError, SQLAlchemyError) as error:
            log.warning("gates.sync_failed", error=type(error).__name__)
        except Exception as error:
            log.exception("gates.sync_failed", error=type(error).__name__)
        _due.wait(SYNC_INTERVAL_S)
        _due.clear()
