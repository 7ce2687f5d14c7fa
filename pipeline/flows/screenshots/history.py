"""The history that a batch's prompt includes: recent threads, open segments, entities.

Rule: docs/sources/screenshots.md#history.
"""

from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from pipeline.flows.screenshots.graph.models import ENTITIES, MENTIONS, NODES, THREADS
from pipeline.flows.screenshots.rules.batches import HistoryPack, HistorySegment, HistoryThread, history_pack
from pipeline.settings import ScreenshotSettings

SEGMENTS_READ = 10
"""Most open segments in a history: a prompt cannot hold all segments of a busy quarter of an hour."""
_MENTIONS_READ = 1000
"""Latest mentions to read for the names of entities."""


def pack(session: Session, at: datetime, settings: ScreenshotSettings) -> HistoryPack:
    """Return the history for the prompt of a batch: recent threads, segments and entities before `at`, the time of its
    first frame.

    After a clock went backwards, a batch may have no history; nothing else changes.
    """
    return history_pack(
        _threads(session, at, settings),
        _segments(session, at, settings),
        _entities(session, at),
        since_ms=_ms(at) - int(settings.history_minutes * 60_000),
        max_threads=settings.history_threads,
        max_entities=settings.history_entities,
    )


def _threads(session: Session, at: datetime, settings: ScreenshotSettings) -> list[HistoryThread]:
    late = select(THREADS).where(THREADS.c.first_at <= at).order_by(THREADS.c.last_at.desc(), THREADS.c.id)
    return [
        HistoryThread(thread_id=row.id, title=row.title, last_active_ms=_ms(row.last_at))
        for row in session.execute(late.limit(settings.history_threads))
    ]


def _segments(session: Session, at: datetime, settings: ScreenshotSettings) -> list[HistorySegment]:
    since = at - timedelta(minutes=settings.history_minutes)
    late = (
        select(NODES.c.thread_id, NODES.c.title, NODES.c.summary, NODES.c.event_time)
        .where(
            NODES.c.kind == "event",
            NODES.c.merged_into_id.is_(None),
            NODES.c.thread_id.is_not(None),
            NODES.c.event_time.between(since, at),
        )
        .order_by(NODES.c.event_time.desc(), NODES.c.id.desc())
        .limit(SEGMENTS_READ)
    )
    return [
        HistorySegment(thread_id=row.thread_id, title=row.title, summary=row.summary, event_time_ms=_ms(row.event_time))
        for row in session.execute(late)
    ]


def _entities(session: Session, at: datetime) -> list[str]:
    """Return names of entities, with repeats, the most recently mentioned first."""
    late = (
        select(ENTITIES.c.name)
        .join(MENTIONS, MENTIONS.c.entity_id == ENTITIES.c.id)
        .join(NODES, NODES.c.id == MENTIONS.c.node_id)
        .where(NODES.c.event_time <= at)
        .order_by(NODES.c.event_time.desc(), NODES.c.id.desc(), ENTITIES.c.id)
        .limit(_MENTIONS_READ)
    )
    return list(session.execute(late).scalars())


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
