"""From the buffer to batches. The buffer is rows without a batch; a source's row is its lock.

Adding a frame and the beat both look, and whoever looks second finds the buffer empty: a frame gets its batch by one
UPDATE that compares, and a batch of the same frames meets the idempotency key.
"""

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import ColumnElement, Row, and_, func, or_, select, update
from sqlalchemy.orm import Session

from pipeline.engine.states import StaleClaim
from pipeline.engine.tables import insert_if_absent
from pipeline.flows.screenshots import history
from pipeline.flows.screenshots.live import screenshots_in_force
from pipeline.flows.screenshots.models import BATCHES, SHOTS, SOURCES
from pipeline.flows.screenshots.rules.batches import Shot, due_at, idempotency_key, ready, shot_of
from pipeline.flows.screenshots.rules.duplicates import Pressure, pressure
from pipeline.flows.screenshots.states import CLAIMABLE, Step, WorkStatus
from pipeline.settings import ScreenshotSettings
from pipeline.storage.context import Context

ORPHAN_GRACE_S = 5.0


def lock_source(session: Session, key: str) -> Row[Any]:
    """The source's row, locked until the transaction ends."""
    return session.execute(select(SOURCES).where(SOURCES.c.key == key).with_for_update()).one()


def waiting_batches(session: Session) -> int:
    """Batches that the vision model has not begun with, or must be asked about again."""
    waits = and_(BATCHES.c.step == Step.ANALYSE, BATCHES.c.status.in_(CLAIMABLE))
    return session.execute(select(func.count()).where(waits)).scalar_one()


def pressure_on(session: Session, source: Row[Any], rules: ScreenshotSettings) -> Pressure:
    """How a source's frames are judged and batched now: by what waits, and by how it was before."""
    return pressure(waiting_batches(session), source.pressure, rules)


def batch_source(session: Session, source: Row[Any], rules: ScreenshotSettings, now: datetime) -> list[int]:
    """Batches of a source that the caller has locked: full ones, and the rest once it is due. Those that are new."""
    pressed = pressure_on(session, source, rules)
    found = _buffer_of(session, source.key, pressed.batch_size, rules)
    return _make_all(session, source.key, found, pressed.batch_size, pressed.batch_timeout_s, now, rules)


def _batch_left(session: Session, source: Row[Any], rules: ScreenshotSettings, now: datetime) -> list[int]:
    pressed = pressure_on(session, source, rules)
    old = overdue(now, pressed.batch_timeout_s + ORPHAN_GRACE_S)
    found = _buffer_of(session, source.key, pressed.batch_size, rules, old)
    return _make_all(session, source.key, found, pressed.batch_size, 0, now, rules)


def _batch_all(session: Session, source: Row[Any], rules: ScreenshotSettings, now: datetime) -> list[int]:
    size = pressure_on(session, source, rules).batch_size
    return _make_all(session, source.key, _buffer_of(session, source.key, size, rules), size, 0, now, rules)


def _buffered() -> ColumnElement[bool]:
    return and_(SHOTS.c.batch_id.is_(None), SHOTS.c.status.in_(CLAIMABLE), SHOTS.c.storage_state == "stored")


def overdue(now: datetime, age_s: float) -> ColumnElement[bool]:
    """The frame came here so long ago; or later than now: our clock went back, and would let it wait for ever."""
    age = timedelta(seconds=age_s)
    return or_(SHOTS.c.created_at <= now - age, SHOTS.c.created_at > now + age)


def _buffer_of(
    session: Session, key: str, size: int, rules: ScreenshotSettings, *which: ColumnElement[bool]
) -> list[Row[Any]]:
    """Frames in the order they came; of very many, as many whole batches as one look reads."""
    waiting = select(SHOTS).where(_buffered(), SHOTS.c.source_key == key, *which).order_by(SHOTS.c.id)
    return list(session.execute(waiting.limit(size * max(1, rules.scan_limit // size))))


def _make_all(
    session: Session, key: str, rows: Sequence[Row[Any]], size: int, timeout_s: float, now: datetime,
    rules: ScreenshotSettings,
) -> list[int]:  # fmt: skip
    by_id = {row.id: row for row in rows}
    batches = ready([shot_of(row) for row in rows], size, timeout_s, now)
    made = [make(session, key, shots, [by_id[shot.id].ts for shot in shots], now, rules) for shots in batches]
    return [batch_id for batch_id in made if batch_id is not None]


def make(
    session: Session, source: str, shots: Sequence[Shot], times: Sequence[datetime], now: datetime,
    rules: ScreenshotSettings,
) -> int | None:  # fmt: skip
    """A batch of these frames, in the order of `shots`; `times`: when they were taken.

    In the caller's transaction, which has locked the source. None if that very batch is there already.
    """
    ids = [shot.id for shot in shots]
    key = idempotency_key(source, shots)
    row = {
        "correlation_id": f"batch_{time.time_ns() // 1_000_000}_{uuid4().hex[:8]}", "source_key": source,
        "shot_ids": json.dumps(ids), "ts_start": min(times), "ts_end": max(times), "idempotency_key": key,
        "history_pack": history.pack(session, min(times), rules).model_dump_json(), "status": WorkStatus.PENDING,
        "step": Step.ANALYSE, "attempts": 0, "created_at": now, "updated_at": now,
    }  # fmt: skip
    is_new = insert_if_absent(session, BATCHES, row, "idempotency_key")
    batch_id = session.execute(select(BATCHES.c.id).where(BATCHES.c.idempotency_key == key)).scalar_one()
    free = and_(SHOTS.c.id.in_(ids), SHOTS.c.batch_id.is_(None))
    put = update(SHOTS).where(free).values(batch_id=batch_id, updated_at=now).returning(SHOTS.c.id)
    if len(session.execute(put).all()) != len(ids):
        raise StaleClaim(f"{source}: frames were put into another batch, so the source was not locked")
    return batch_id if is_new else None


def batch_ready(context: Context) -> list[int]:
    """What the beat does: look at every source with enough frames, or one that waits too long. The batches made."""
    now = datetime.now(UTC)
    rules = screenshots_in_force(context)
    late = select(SHOTS.c.source_key).where(_buffered(), overdue(now, rules.batch_timeout_s)).distinct()
    full = select(SHOTS.c.source_key).where(_buffered()).group_by(SHOTS.c.source_key)
    with context.db.read() as session:
        keys = set(session.execute(late).scalars())
        keys |= set(session.execute(full.having(func.count() >= rules.batch_size)).scalars())
    return [made for key in sorted(keys) for made in _look(context, key, batch_source, rules)]


def batch_orphans(context: Context) -> list[int]:
    """Batch what was left behind: frames older than the time-out and 5 s, whatever their source. The batches made."""
    rules = screenshots_in_force(context)
    old = and_(_buffered(), overdue(datetime.now(UTC), rules.batch_timeout_s + ORPHAN_GRACE_S))
    with context.db.read() as session:
        keys = sorted(session.execute(select(SHOTS.c.source_key).where(old).distinct()).scalars())
    return [made for key in keys for made in _look(context, key, _batch_left, rules)]


def _look(context: Context, key: str, batch: Any, rules: ScreenshotSettings) -> list[int]:
    """Until nothing is ready, a portion a transaction: others must be able to write in between."""

    def work(session: Session) -> list[int]:
        found: list[int] = batch(session, lock_source(session, key), rules, datetime.now(UTC))
        return found

    total: list[int] = []
    while made := context.db.run(work):
        total += made
    return total


def batch_now(context: Context, key: str) -> list[int]:
    """Batch what a source has in its buffer, however little: nothing is to follow. The batches made."""
    with context.db.read() as session:
        if session.execute(select(SHOTS.c.id).where(_buffered(), SHOTS.c.source_key == key).limit(1)).first() is None:
            return []
    return _look(context, key, _batch_all, screenshots_in_force(context))


def next_look_s(context: Context) -> float | None:
    """Seconds until some source's oldest frame makes a batch; None if no frame waits."""
    now, rules = datetime.now(UTC), screenshots_in_force(context)
    first = func.min(SHOTS.c.created_at).label("first")
    sources = select(SOURCES.c.key, SOURCES.c.pressure, first).join(SHOTS, SHOTS.c.source_key == SOURCES.c.key)
    with context.db.read() as session:
        rows = session.execute(sources.where(_buffered()).group_by(SOURCES.c.key, SOURCES.c.pressure)).all()
        waiting = waiting_batches(session) if rows else 0
    waits = [pressure(waiting, row.pressure, rules).batch_timeout_s for row in rows]
    due = [due_at(row.first, wait_s, now) for row, wait_s in zip(rows, waits, strict=True)]
    return max(0.0, (min(due) - now).total_seconds()) if due else None
