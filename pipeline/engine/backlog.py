"""What waits, what is under way, and what failed last: what flows tell whoever looks at all of them together."""

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
    """What people call them: `pages`."""
    count: int
    queue: str = ""
    """Where their messages go; empty: they have none yet, and `why` says what they wait for."""
    later: int = 0
    """Of these, tried again at a time of their own, after an attempt that failed."""
    next_at: datetime | None = None
    """When the first of those is due."""
    why: str = ""
    is_paused: bool = False
    """A person paused what they belong to."""


@dataclass(frozen=True)
class Held:
    """Units of one scope that a process holds."""

    work: str
    """Their kind."""
    worker_id: str
    """The process."""
    scope: str
    units: int
    messages: int
    """Whose deliveries hold them: each has a place of its worker's."""


@dataclass(frozen=True)
class Failure:
    """Something that failed and stays so until a person does something."""

    __pydantic_config__ = VIEW
    flow: str
    kind: str
    """As in events: `document`, `song_batch`, `knowledge_item`."""
    id: str
    name: str
    """What people know it by."""
    words: str
    """What went wrong."""
    at: datetime


def waiting(
    tx: ReadTx,
    work: Work,
    kind: str,
    *where: ColumnElement[bool],
    by: ColumnElement[Any] | None = None,
    within: FromClause | None = None,
) -> Iterable[tuple[Any, Waiting]]:
    """How many units may be claimed, be they due or not, for each value of `by` of which there are any.

    `within`: the table, joined with what `where` asks of. Where what is held is in other states, the states alone are
    looked at, which indexes know.
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
    """What processes hold, scope by scope."""
    c = work.table.c
    mine = select(c.worker_id, work.scope.label("scope"), c.request_id).where(work.working).subquery().c
    query = select(mine.worker_id, mine.scope, func.count(), func.count(mine.request_id.distinct()))
    rows = session.execute(query.group_by(mine.worker_id, mine.scope))
    return [Held(work.name, worker, str(scope), units, messages) for worker, scope, units, messages in rows if worker]
