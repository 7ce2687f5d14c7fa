"""From the buffer to batches. The buffer is the frames without a batch; a source's row is its lock.

Both adding a frame and the beat look at it, and whoever comes second finds it empty: a frame gets its batch by one
UPDATE that compares, and a batch of the same frames meets the idempotency key.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import ColumnElement, Row, and_, func, or_, select, update
from sqlalchemy.orm import Session

from pipeline.engine.states import StaleClaim
from pipeline.engine.tables import insert_if_absent
from pipeline.flows.screenshots import history
from pipeline.flows.screenshots.live_settings import screenshots_in_force
from pipeline.flows.screenshots.models import BATCHES, SHOTS, SOURCES
from pipeline.flows.screenshots.rules.batches import Shot, due_at, idempotency_key, ready, shot_of
from pipeline.flows.screenshots.states import CLAIMABLE, Step, WorkStatus
from pipeline.settings import ScreenshotSettings
from pipeline.storage.context import Context

ORPHAN_GRACE_S = 5.0


@dataclass(frozen=True)
class Pressure:
    """How frames are judged and batched now. `level` 0: as set; 1: wider threshold; 2: longer batches too."""

    level: int
    threshold: int
    batch_size: int
    batch_timeout_s: float


def pressure(waiting: int, level: int, rules: ScreenshotSettings) -> Pressure:
    """The pressure of `waiting` batches not yet begun, when it was at `level` before.

    A level ends at half of what began it, so that it does not change with every batch. It drops no frame unrecorded:
    each is judged, and the ledger names the wider threshold.
    """
    begins = (rules.pressure_batches, 2 * rules.pressure_batches)
    new = sum(waiting >= begin for begin in begins)
    while new < min(level, len(begins)) and waiting > begins[new] // 2:
        new += 1
    factor = rules.pressed_batch_factor if new == 2 else 1
    return Pressure(
        level=new,
        threshold=rules.dedup_threshold_pressed if new else rules.dedup_threshold,
        batch_size=rules.batch_size * factor,
        batch_timeout_s=rules.batch_timeout_s * factor,
    )


def pressure_on(session: Session, source: Row[Any], rules: ScreenshotSettings) -> Pressure:
    """How a source's frames are judged and batched now."""
    return pressure(_waiting_batches(session), source.pressure, rules)


def _waiting_batches(session: Session) -> int:
    """Batches that the vision model has not begun, or must be asked about again."""
    waits = and_(BATCHES.c.step == Step.ANALYSE, BATCHES.c.status.in_(CLAIMABLE))
    return session.execute(select(func.count()).where(waits)).scalar_one()


def lock_source(session: Session, key: str) -> Row[Any]:
    """The source's row, locked until the transaction ends."""
    return session.execute(select(SOURCES).where(SOURCES.c.key == key).with_for_update()).one()


def buffered() -> ColumnElement[bool]:
    """The frame is in the buffer."""
    return and_(SHOTS.c.batch_id.is_(None), SHOTS.c.status.in_(CLAIMABLE), SHOTS.c.storage_state == "stored")


def _older(now: datetime, age_s: float) -> ColumnElement[bool]:
    """The frame came this long ago; or later than now: our clock went back, and the frame would wait for ever."""
    age = timedelta(seconds=age_s)
    return or_(SHOTS.c.created_at <= now - age, SHOTS.c.created_at > now + age)


def batch_source(
    session: Session, source: Row[Any], rules: ScreenshotSettings, now: datetime, *,
    orphans: bool = False, all_at_once: bool = False,
) -> list[int]:  # fmt: skip
    """Put frames of a source, which the caller has locked, into batches; the new ones.

    Full batches, and the rest once it is due. `orphans`: only frames that should have been batched, `all_at_once`: all
    frames, however few.
    """
    pressed = pressure_on(session, source, rules)
    size, timeout_s = pressed.batch_size, 0 if orphans or all_at_once else pressed.batch_timeout_s
    which = and_(buffered(), SHOTS.c.source_key == source.key)
    if orphans:
        which = and_(which, _older(now, pressed.batch_timeout_s + ORPHAN_GRACE_S))
    # In the order they came; of very many, as many whole batches as one search reads.
    waiting = select(SHOTS).where(which).order_by(SHOTS.c.id).limit(size * max(1, rules.scan_limit // size))
    by_id = {row.id: row for row in session.execute(waiting)}
    batches = ready([shot_of(row) for row in by_id.values()], size, timeout_s, now)
    made = [make(session, source.key, shots, [by_id[shot.id].ts for shot in shots], now, rules) for shots in batches]
    return [batch_id for batch_id in made if batch_id is not None]


def make(
    session: Session, source: str, shots: Sequence[Shot], times: Sequence[datetime], now: datetime,
    rules: ScreenshotSettings,
) -> int | None:  # fmt: skip
    """A batch of these frames, in the order of `shots`; `times`: when they were taken.

    In the caller's transaction, which has locked the source. None if the very same batch exists.
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
    """What the beat does: batch every source with enough frames, or one that waits too long. The new batches."""
    now = context.db.now()
    rules = screenshots_in_force(context)
    late = select(SHOTS.c.source_key).where(buffered(), _older(now, rules.batch_timeout_s)).distinct()
    full = select(SHOTS.c.source_key).where(buffered()).group_by(SHOTS.c.source_key)
    with context.db.read() as session:
        keys = set(session.execute(late).scalars())
        keys |= set(session.execute(full.having(func.count() >= rules.batch_size)).scalars())
    return [made for key in sorted(keys) for made in _batch(context, key, rules)]


def batch_orphans(context: Context) -> list[int]:
    """Batch what was left behind: frames older than the time-out and 5 s, of any source. The new batches."""
    rules = screenshots_in_force(context)
    old = and_(buffered(), _older(context.db.now(), rules.batch_timeout_s + ORPHAN_GRACE_S))
    with context.db.read() as session:
        keys = sorted(session.execute(select(SHOTS.c.source_key).where(old).distinct()).scalars())
    return [made for key in keys for made in _batch(context, key, rules, orphans=True)]


def batch_now(context: Context, key: str) -> list[int]:
    """Batch what a source has in its buffer, however little: no more is to come. The new batches."""
    with context.db.read() as session:
        if session.execute(select(SHOTS.c.id).where(buffered(), SHOTS.c.source_key == key).limit(1)).first() is None:
            return []
    return _batch(context, key, screenshots_in_force(context), all_at_once=True)


def _batch(
    context: Context, key: str, rules: ScreenshotSettings, *, orphans: bool = False, all_at_once: bool = False
) -> list[int]:
    """Until nothing is ready, one portion a transaction: others must be able to write in between."""

    def portion(session: Session) -> list[int]:
        source, now = lock_source(session, key), context.db.now()
        return batch_source(session, source, rules, now, orphans=orphans, all_at_once=all_at_once)

    total: list[int] = []
    while made := context.db.run(portion):
        total += made
    return total


def next_look_s(context: Context) -> float | None:
    """Seconds until some source's oldest frame makes a batch; None if no frame waits."""
    now, rules = context.db.now(), screenshots_in_force(context)
    first = func.min(SHOTS.c.created_at).label("first")
    sources = select(SOURCES.c.pressure, first).join(SHOTS, SHOTS.c.source_key == SOURCES.c.key)
    with context.db.read() as session:
        rows = session.execute(sources.where(buffered()).group_by(SOURCES.c.key, SOURCES.c.pressure)).all()
        waiting = _waiting_batches(session) if rows else 0
    due = [due_at(row.first, pressure(waiting, row.pressure, rules).batch_timeout_s, now) for row in rows]
    return max(0.0, (min(due) - now).total_seconds()) if due else None
