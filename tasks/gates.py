"""Gates as workers use them: found by queue, and kept in step with the database by a thread of each worker."""

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
"""What is changed by a command is in force at once; this is for rows changed by hand, and for an emptied Redis."""
LOOK_AT_GATES = "look_at_gates"
"""The control command that has workers look at the gates of some queues."""
_due = threading.Event()
_syncing = threading.Lock()
# No pool process is forked while the thread below is inside SQLite: the child would inherit a mutex of the library that
# nobody unlocks, and hang in its first query.
os.register_at_fork(before=_syncing.acquire, after_in_parent=_syncing.release, after_in_child=_syncing.release)


def gate_of(queue: str) -> Gate | None:
    """The gate of a queue; None if it has none."""
    context = get_context()
    return gates.gate(context, queue) if queue in context.gates.queues else None


def bring_in_step() -> None:
    """Have the thread below look now: somebody has met a gate whose limits are gone."""
    _due.set()


def keep_in_step(stopped: threading.Event) -> None:
    """Now and then, until `stopped`: what the database says, the gates say. First, what this worker's settings say.

    Whatever one round raises, the next one comes: without it, nobody here would put an emptied Redis right.
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
