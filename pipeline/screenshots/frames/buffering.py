"""From the buffer to batches. The buffer is rows without a batch; a source's row is its lock.

Adding a frame and the beat both look, and whoever looks second finds the buffer empty: a frame gets its batch by one
UPDATE that compares, and a batch of the same frames meets the idempotency key.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import ColumnElement, Integer, and_, func, or_, select, update
from sqlalchemy.orm import Session

from pipeline.engine.states import StaleClaim
from pipeline.engine.tables import insert_if_absent
from pipeline.screenshots import history
from pipeline.screenshots.models import BATCHES, SHOTS, SOURCES
from pipeline.screenshots.states import WorkStatus
from pipeline.settings import ScreenshotSettings
from pipeline.storage.context import Context

ORPHAN_GRACE_S = 5.0
MAX_DRAIN = 4
"""Sizes of a batch that one batch may have at most, when a buffer filled faster than it was looked at."""


def lock_source(session: Session, key: str) -> Any:
    """The source's row, locked until the transaction ends."""
    return session.execute(select(SOURCES).where(SOURCES.c.key == key).with_for_update()).one()


def _buffered() -> ColumnElement[bool]:
    waits = SHOTS.c.status.in_([WorkStatus.PENDING, WorkStatus.FAILED])
    return and_(SHOTS.c.batch_id.is_(None), waits, SHOTS.c.storage_state == "stored")


def overdue(now: datetime, age_s: float) -> ColumnElement[bool]:
    """The frame came here so long ago; or later than now: our clock went back, and would let it wait for ever."""
    age = timedelta(seconds=age_s)
    return or_(SHOTS.c.created_at <= now - age, SHOTS.c.created_at > now + age)


def batch_source(session: Session, key: str, rules: ScreenshotSettings, now: datetime) -> list[int]:
    """Drain the buffer of a source that the caller has locked, if it is ready; the batches that were made."""
    ready = select(func.count(), func.max(overdue(now, rules.batch_timeout_s).cast(Integer)))
    count, late = session.execute(ready.where(_buffered(), SHOTS.c.source_key == key)).one()
    if count < rules.batch_size and not late:
        return []
    return _drain(session, key, rules.batch_size * MAX_DRAIN, now)


def _drain(session: Session, key: str, at_most: int, now: datetime) -> list[int]:
    buffered = select(SHOTS).where(_buffered(), SHOTS.c.source_key == key).order_by(SHOTS.c.id)
    shots = session.execute(buffered).all()
    made = [make(session, key, shots[i : i + at_most], now) for i in range(0, len(shots), at_most)]
    return [batch_id for batch_id in made if batch_id is not None]


def idempotency_key(source: str, shots: Sequence[Any]) -> str:
    """`vlm_batch:SOURCE:START-END:HASH`, for frames in the order of capture; times in ms."""
    start, end = (int(shot.ts.timestamp() * 1000) for shot in (shots[0], shots[-1]))
    members = ",".join(f"{shot.id}:{shot.sha256}" for shot in shots)
    return f"vlm_batch:{source}:{start}-{end}:{hashlib.sha256(members.encode()).hexdigest()[:16]}"


def make(session: Session, source: str, shots: Sequence[Any], now: datetime) -> int | None:
    """A batch of these frames, in the caller's transaction; None if that very batch is there already."""
    ordered = sorted(shots, key=lambda shot: (shot.ts, shot.id))
    ids = [shot.id for shot in ordered]
    key = idempotency_key(source, ordered)
    row = {
        "correlation_id": f"batch_{time.time_ns() // 1_000_000}_{uuid4().hex[:8]}", "source_key": source,
        "shot_ids": json.dumps(ids), "ts_start": ordered[0].ts, "ts_end": ordered[-1].ts, "idempotency_key": key,
        "history_pack": json.dumps(history.pack(session, ordered[0].ts), ensure_ascii=False),
        "status": WorkStatus.PENDING, "attempts": 0, "launches": 0, "vlm_ms": 0, "text_ms": 0,
        "created_at": now, "updated_at": now,
    }  # fmt: skip
    is_new = insert_if_absent(session, BATCHES, row, "idempotency_key")
    batch_id = session.execute(select(BATCHES.c.id).where(BATCHES.c.idempotency_key == key)).scalar_one()
    free = and_(SHOTS.c.id.in_(ids), SHOTS.c.batch_id.is_(None))
    put = update(SHOTS).where(free).values(batch_id=batch_id, updated_at=now).returning(SHOTS.c.id)
    if len(session.execute(put).all()) != len(ids):
        raise StaleClaim(f"{source}: frames were put into another batch, so the source was not locked")
    return batch_id if is_new else None


def batch_ready(context: Context) -> list[int]:
    """What the beat does: look at every source with frames that wait too long; the batches that were made."""
    now = datetime.now(UTC)
    rules = context.settings.screenshots
    waiting = select(SHOTS.c.source_key).where(_buffered(), overdue(now, rules.batch_timeout_s)).distinct()
    full = select(SHOTS.c.source_key).where(_buffered()).group_by(SHOTS.c.source_key)
    with context.db.read() as session:
        late = set(session.execute(waiting).scalars())
        late |= set(session.execute(full.having(func.count() >= rules.batch_size)).scalars())

    def work(session: Session, key: str) -> list[int]:
        lock_source(session, key)
        return batch_source(session, key, rules, datetime.now(UTC))

    return [made for key in sorted(late) for made in context.db.run(lambda session, key=key: work(session, key))]  # type: ignore[misc]


def batch_orphans(context: Context) -> list[int]:
    """Batch what was left behind: frames older than the time-out and 5 s, whatever their source."""
    now = datetime.now(UTC)
    rules = context.settings.screenshots
    old = and_(_buffered(), overdue(now, rules.batch_timeout_s + ORPHAN_GRACE_S))
    with context.db.read() as session:
        keys = sorted(session.execute(select(SHOTS.c.source_key).where(old).distinct()).scalars())

    def work(session: Session, key: str) -> list[int]:
        lock_source(session, key)
        query = select(SHOTS).where(old, SHOTS.c.source_key == key).order_by(SHOTS.c.ts, SHOTS.c.id)
        shots = session.execute(query).all()
        size = rules.batch_size
        made = [make(session, key, shots[i : i + size], now) for i in range(0, len(shots), size)]
        return [batch_id for batch_id in made if batch_id is not None]

    return [made for key in keys for made in context.db.run(lambda session, key=key: work(session, key))]  # type: ignore[misc]


def next_look_s(context: Context) -> float | None:
    """Seconds until the buffer's oldest frame makes a batch; None if it is empty."""
    with context.db.read() as session:
        oldest: datetime | None = session.execute(select(func.min(SHOTS.c.created_at)).where(_buffered())).scalar()
    if oldest is None:
        return None
    return max(0.0, context.settings.screenshots.batch_timeout_s - (datetime.now(UTC) - oldest).total_seconds())
