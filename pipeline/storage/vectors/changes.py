"""Versions of a kind's vectors: how another process learns from one row that something changed, and then what.

A transaction takes its version as its last act before the commit, and holds the counter's row until it has committed.
So versions become visible in order, without gaps: whoever has seen 7 needs what is above 7. Taken earlier, that row
would be a lock amid others, and transactions could wait for each other.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import event, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from pipeline.storage.lists import one_of
from pipeline.storage.vectors.models import CODES, VERSIONS

_CHANGED = "vectors.changed"
UNSTAMPED = 0


def note(session: Session, kind: str, *, removed: bool = False) -> None:
    """Note that this transaction changed vectors of this kind; `removed`: or removed some."""
    changed = session.info.setdefault(_CHANGED, {})
    changed[kind] = changed.get(kind, False) or removed


def has_own(session: Session, kind: str) -> bool:
    """Whether this transaction itself has changed vectors of this kind; nobody else sees that yet."""
    return kind in session.info.get(_CHANGED, {})


class Seen(NamedTuple):
    """A kind's version, and the last one that removed vectors."""

    version: int
    removed: int


def seen(session: Session, kinds: Sequence[str]) -> dict[str, Seen]:
    """Of each kind, as this transaction sees it."""
    these = one_of(session, VERSIONS.c.kind, kinds)
    rows = session.execute(select(VERSIONS.c.kind, VERSIONS.c.version, VERSIONS.c.removed).where(these)).all()
    found = {kind: Seen(version, removed) for kind, version, removed in rows}
    return {kind: found.get(kind, Seen(0, 0)) for kind in kinds}


# Before the events' stamp (`engine.outbox`), whoever is imported first: all transactions lock in this order.
@event.listens_for(Session, "before_commit", insert=True)
def _stamp(session: Session) -> None:
    # In one order, so that two transactions that changed several kinds do not wait for each other.
    for kind, removed in sorted(session.info.pop(_CHANGED, {}).items()):
        insert: Any = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
        first = insert(VERSIONS).values(kind=kind, version=1, removed=0)
        higher = first.on_conflict_do_update(index_elements=["kind"], set_={"version": VERSIONS.c.version + 1})
        version: int = session.execute(higher.returning(VERSIONS.c.version)).scalar_one()
        if removed:
            session.execute(update(VERSIONS).where(VERSIONS.c.kind == kind).values(removed=version))
        mine = update(CODES).where(CODES.c.kind == kind, CODES.c.version == UNSTAMPED)
        session.execute(mine.values(version=version))


@event.listens_for(Session, "after_rollback")
def _forget(session: Session) -> None:
    session.info.pop(_CHANGED, None)
