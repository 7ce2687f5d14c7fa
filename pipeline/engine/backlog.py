"""Waiting units, held units and recent failures of a flow, in the same form for all flows."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, FromClause, func, select
from sqlalchemy.orm import Session

from pipeline.engine.claims import in_states
from pipeline.engine.transaction import ReadTx
from pipeline.engine.wire import VIEW
from pipeline.engine.work import Work


@dataclass(frozen=True)
class Waiting:
    """Units that wait for the same thing."""

    kind: str
    """Their name for people: `pages`."""
    count: int
    queue: str = ""
    """The queue of their messages; empty: they have none yet, and `why` gives the reason."""
    later: int = 0
    """How many of these are due later, after a failed attempt."""
    next_at: datetime | None = None
    """When the first of the later units is due."""
    why: str = ""
    is_paused: bool = False
    """Whether a person paused their scope."""


@dataclass(frozen=True)
class Held:
    """Units of one scope that one process holds."""

    work: str
    """The units' kind."""
    worker_id: str
    """The process."""
    scope: str
    units: int
    messages: int
    """The number of deliveries that hold them. Each occupies one thread or process of its worker."""


@dataclass(frozen=True)
class Failure:
    """A failure that lasts until a person acts."""

    __pydantic_config__ = VIEW
    flow: str
    kind: str
    """The kind as in events: `document`, `song_batch`, `knowledge_item`."""
    id: str
    name: str
    """Its name for people."""
    words: str
    """The error."""
    at: datetime


def waiting(
    tx: ReadTx,
    work: Work,
    kind: str,
    *where: ColumnElement[bool],
    by: ColumnElement[Any] | None = None,
    within: FromClause | None = None,
) -> Iterable[tuple[Any, Waiting]]:
    """Count the claimable units, due or not; yield (value of `by`, count) for each value that has any. Without `by`,
    there is one count for None, or nothing. `kind`: the units' name for people.

    `within`: the table joined with the tables that `where` needs. If a claim changes the state, the query compares
    states alone, because indexes serve these.
    """
    table, due = within if within is not None else work.table, work.table.c.next_run_at
    sources = work.machine.sources(work.claim)
    stays = any(work.machine.target(source, work.claim) in sources for source in sources)
    states = work.claimable if stays else in_states(work.table, sources)
    group = [] if by is None else [by]
    all_ = select(*group, func.count()).select_from(table).where(states, *work.where, *where).group_by(*group)
    late = (
        select(*group, func.count(), func.min(due)).select_from(table).where(work.waits(due > tx.now), *where)
    ).group_by(*group)
    later = {(*value,): (count, first) for *value, count, first in tx.execute(late)}
    for *value, count in tx.execute(all_):
        if count:
            put_off, first = later.get((*value,), (0, None))
            yield value[0] if value else None, Waiting(kind, count, later=put_off, next_at=first)


def held(session: Session, work: Work) -> list[Held]:
    """Count the held units: one entry per process and scope, with the number of its units and of its messages."""
    c = work.table.c
    working = select(c.worker_id, work.scope.label("scope"), c.request_id).where(work.working).subquery().c
    query = select(working.worker_id, working.scope, func.count(), func.count(working.request_id.distinct()))
    rows = session.execute(query.group_by(working.worker_id, working.scope))
    return [Held(work.name, worker, str(scope), units, messages) for worker, scope, units, messages in rows if worker]
