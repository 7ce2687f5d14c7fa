"""What a batch is told of the time before it: late threads, open segments, entities. Source 000, section 1.3."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pipeline.screenshots.graph.models import ENTITIES, MENTIONS, NODES, THREADS

THREADS_SHOWN = 3
ENTITIES_SHOWN = 10
SEGMENTS_SHOWN = 10
OPEN_FOR = timedelta(minutes=15)


def pack(session: Session, at: datetime) -> dict[str, Any]:
    """The history before `at`, the time of the batch's first frame, small enough for a prompt."""
    return {"threads": _threads(session, at), "segments": _segments(session, at), "entities": _entities(session, at)}


def _threads(session: Session, at: datetime) -> list[dict[str, Any]]:
    late = select(THREADS).where(THREADS.c.first_at <= at).order_by(THREADS.c.last_at.desc()).limit(THREADS_SHOWN)
    return [
        {"thread_id": row.id, "title": row.title, "last_at": row.last_at.isoformat()} for row in session.execute(late)
    ]


def _segments(session: Session, at: datetime) -> list[dict[str, Any]]:
    # A clock that went backwards gives a batch nothing to go on with, and does no other harm.
    late = (
        select(NODES.c.thread_id, NODES.c.title, NODES.c.summary)
        .where(NODES.c.kind == "event", NODES.c.merged_into_id.is_(None), NODES.c.event_time.between(at - OPEN_FOR, at))
        .order_by(NODES.c.event_time.desc())
        .limit(SEGMENTS_SHOWN)
    )
    return [dict(row._mapping) for row in session.execute(late)]  # noqa: SLF001  # SQLAlchemy's public name for it


def _entities(session: Session, at: datetime) -> list[str]:
    last = func.max(NODES.c.event_time)
    late = (
        select(ENTITIES.c.name)
        .join(MENTIONS, MENTIONS.c.entity_id == ENTITIES.c.id)
        .join(NODES, NODES.c.id == MENTIONS.c.node_id)
        .where(NODES.c.event_time.between(at - timedelta(days=1), at))
        .group_by(ENTITIES.c.id, ENTITIES.c.name)
        .order_by(last.desc())
        .limit(ENTITIES_SHOWN)
    )
    return list(session.execute(late).scalars())
