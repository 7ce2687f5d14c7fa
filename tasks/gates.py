"""Gates as workers use them: found by queue, and kept in step with the database by a thread of each worker."""

import threading

import structlog
from redis import RedisError
from sqlalchemy.exc import SQLAlchemyError

from pipeline.engine.gate import Gate
from pipeline.providers import gates
from pipeline.storage.context import get_context

log = structlog.get_logger(__name__)
SYNC_INTERVAL_S = 1.0
_gates: dict[str, Gate | None] = {}


def gate_of(queue: str) -> Gate | None:
    """The gate of a queue; None if it has none."""
    if queue not in _gates:
        found = gates.gated_queues(get_context().settings).get(queue)
        _gates[queue] = gates.gate(get_context(), found) if found else None
    return _gates[queue]


def keep_in_step(stopped: threading.Event) -> None:
    """Once a second, until `stopped`: what the database says, the gates say."""
    while not stopped.wait(SYNC_INTERVAL_S):
        try:
            gates.sync(get_context())
        except (RedisError, SQLAlchemyError) as error:
            log.warning("gates.sync_failed", error=type(error).__name__)
