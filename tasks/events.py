"""Events, for Python: how documents, runs, batches and knowledge items changed, in order and without gaps.

>>> from tasks import events
>>> for event in events.after(0, types=["document.*"]):
...     print(event.seq, event.type, event.scope_id)

Remember the number of the last one, and ask for what is after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy.exc import SQLAlchemyError

from pipeline.engine import events as live
from pipeline.engine import outbox
from pipeline.engine.announced import wants
from pipeline.engine.outbox import Event
from pipeline.storage.context import Context
from tasks.context import get_context

__all__ = ["Event", "Filter", "Kept", "after", "after_if_possible", "kept", "progress", "progress_from"]
log = structlog.get_logger(__name__)
PORTION = 500


@dataclass(frozen=True)
class Filter:
    """Which events somebody wants. Empty: all."""

    flow: str = ""
    types: tuple[str, ...] = ()
    """Types, or patterns such as `document.*`."""
    scope_id: str = ""
    """Only those about this document, run, batch or item."""

    def matches(self, event: Event) -> bool:
        return self.flow in {"", event.flow} and self.scope_id in {"", event.scope_id} and wants(self.types, event.type)

    def matches_progress(self, fields: dict[str, str]) -> bool:
        """Whether progress, as `progress` gives it, belongs to what is wanted."""
        mine = self.scope_id == "" or self.scope_id in fields.values()
        return self.flow in {"", fields.get("flow")} and mine and wants(self.types, "progress")


@dataclass(frozen=True)
class Kept:
    """Which events are kept: from `first` to `last`. None yet: `first` is the next one."""

    first: int
    last: int


def kept(context: Context | None = None) -> Kept:
    """Which events are kept."""
    with (context or get_context()).db.read() as session:
        return Kept(outbox.first_seq(session), outbox.last_seq(session))


def after(seq: int, limit: int = PORTION, *, types: Sequence[str] = (), context: Context | None = None) -> list[Event]:
    """Up to `limit` events after this number, in order; of these, those of the types wanted."""
    with (context or get_context()).db.read() as session:
        return [one for one in outbox.after(session, seq, limit) if wants(types, one.type)]


def after_if_possible(seq: int, context: Context | None = None) -> list[Event]:
    """Like `after`, and empty while the database is away: for those who will ask again."""
    try:
        return after(seq, context=context)
    except SQLAlchemyError as error:
        log.warning("events.not_read", error=type(error).__name__)
        return []


def progress_from(context: Context | None = None) -> str:
    """Where progress stands, from which to read on. Raises `RedisError`."""
    return live.last_id((context or get_context()).redis)


def progress(position: str, wait_s: float, context: Context | None = None) -> list[tuple[str, dict[str, str]]]:
    """Progress of what is under way: (its position, its fields). Waits for the first. Raises `RedisError`."""
    return list(live.read((context or get_context()).redis, position, wait_s))
