"""Versions of a kind's vectors: they tell another process by one row that vectors changed, and which.

A transaction takes its version as its last act before the commit, and locks the counter's row until it has committed.
So versions become visible in order, without gaps: a process that has seen 7 needs the changes above 7. Taken earlier,
that lock would precede others, and transactions could wait for each other.
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
    """Note that this transaction changed vectors of this kind, or with `removed` deleted some: its commit raises the
    kind's version."""
    changed = session.info.setdefault(_CHANGED, {})
    changed[kind] = changed.get(kind, False) or removed


def has_own(session: Session, kind: str) -> bool:
    """Whether this transaction itself has changed vectors of this kind, invisibly to others until the commit."""
    return kind in session.info.get(_CHANGED, {})


class Version(NamedTuple):
    """A kind's version, and the last version that removed vectors."""

    version: int
    removed: int


def versions(session: Session, kinds: Sequence[str]) -> dict[str, Version]:
    """Return the version of each kind as this transaction sees it; 0 for a kind that never had vectors."""
    these = one_of(session, VERSIONS.c.kind, kinds)
    rows = session.execute(select(VERSIONS.c.kind, VERSIONS.c.version, VERSIONS.c.removed).where(these)).all()
    known = {kind: Version(version, removed) for kind, version, removed in rows}
    return {kind: known.get(kind, Version(0, 0)) for kind in kinds}


# Before the events' stamp (`engine.outbox`), whichever is imported first: all transactions lock in this order.
@event.listens_for(Session, "before_commit", insert=True)
def _stamp(session: Session) -> None:
    # Sorted, so that transactions that changed several kinds do not deadlock.
    for kind, removed in sorted(session.info.pop(_CHANGED, {}).items()):
        insert: Any = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
        first = insert(VERSIONS).values(kind=kind, version=1, removed=0)
        higher = first.on_conflict_do_update(index_elements=["kind"], set_={"version": VERSIONS.c.version + 1})
        version: int = session.execute(higher.returning(VERSIONS.c.version)).scalar_one()
        if removed:
            session.execute(update(VERSIONS).where(VERSIONS.c.kind == kind).values(removed=version))
        own = update(CODES).where(CODES.c.kind == kind, CODES.c.version == UNSTAMPED)
        session.execute(own.values(version=version))


@event.listens_for(Session, "after_rollback")
def _forget(session: Session) -> None:
    session.info.pop(_CHANGED, None)
