"""Turns buffers into batches. A buffer is a source's frames without a batch; the source's row is its lock.

When several workers batch the same buffer, the second finds it empty: one conditional UPDATE assigns a frame to its
batch, and the idempotency key rejects a batch of the same frames.
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

from pipeline.engine import accounts
from pipeline.engine.states import StaleClaim
from pipeline.engine.tables import insert_if_absent
from pipeline.engine.transaction import Tx
from pipeline.flows.screenshots import costs, history
from pipeline.flows.screenshots.live_settings import screenshots_in_force
from pipeline.flows.screenshots.models import BATCHES, SHOTS, SOURCES
from pipeline.flows.screenshots.rules.batches import Shot, due_at, idempotency_key, ready, shot_of
from pipeline.flows.screenshots.scopes import FLOW, Scope, buffer_of
from pipeline.flows.screenshots.states import CLAIMABLE, Step, WorkStatus
from pipeline.settings import ScreenshotSettings
from pipeline.storage.context import Context

ORPHAN_GRACE_S = 5.0


@dataclass(frozen=True)
class Pressure:
    """The rules of judging and batching now. `level` 0: the settings; 1: a wider threshold; 2: larger batches too."""

    level: int
    threshold: int
    batch_size: int
    batch_timeout_s: float


def pressure(waiting: int, level: int, rules: ScreenshotSettings) -> Pressure:
    """Return the pressure by the number of `waiting` batches that have not started, after `level`, the level before.

    A level ends at half of the number that started it, so that it does not change with every batch. Pressure drops no
    frame unrecorded: the ledger names the wider threshold.
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
    """Return the pressure on a source now, by the waiting batches of all sources."""
    return pressure(_waiting_batches(session, rules), source.pressure, rules)


def _waiting_batches(session: Session, rules: ScreenshotSettings) -> int:
    """Count batches that wait for analysis or its retry, and full batches that buffered frames would make."""
    waits = and_(BATCHES.c.step == Step.ANALYSE, BATCHES.c.status.in_(CLAIMABLE))
    waiting_batches = session.execute(select(func.count()).where(waits)).scalar_one()
    frames = select(func.count()).where(buffered()).group_by(SHOTS.c.source_key)
    # Count the largest batches, so that a filling buffer alone adds no pressure.
    size = rules.batch_size * rules.pressed_batch_factor
    return waiting_batches + sum(count // size for count in session.execute(frames).scalars())


def lock_source(session: Session, key: str) -> Row[Any]:
    """Lock and return the source's row; the lock holds until the transaction ends."""
    return session.execute(select(SOURCES).where(SOURCES.c.key == key).with_for_update()).one()


def buffered() -> ColumnElement[bool]:
    """Return the condition that a frame is in the buffer of its source."""
    return and_(SHOTS.c.batch_id.is_(None), SHOTS.c.status.in_(CLAIMABLE), SHOTS.c.storage_state == "stored")


def _older(now: datetime, age_s: float) -> ColumnElement[bool]:
    """Return the condition that a frame arrived at least `age_s` ago, or that far in the future: after our clock went
    back it would wait forever."""
    age = timedelta(seconds=age_s)
    return or_(SHOTS.c.created_at <= now - age, SHOTS.c.created_at > now + age)


def make(
    tx: Tx, source: str, shots: Sequence[Shot], times: Sequence[datetime], rules: ScreenshotSettings
) -> int | None:
    """Create a batch of these frames, in the order of `shots`; `times`: their times of capture, in the same order.

    The caller's transaction has locked the source. Returns the batch's id; None if a batch of the same frames exists,
    which then takes them. Raises `StaleClaim` if a frame is in a batch already, also in that one.
    """
    ids = [shot.id for shot in shots]
    key = idempotency_key(source, shots)
    row = {
        "correlation_id": f"batch_{time.time_ns() // 1_000_000}_{uuid4().hex[:8]}",
        "source_key": source,
        "shot_ids": json.dumps(ids),
        "ts_start": min(times),
        "ts_end": max(times),
        "idempotency_key": key,
        "history_pack": history.pack(tx, min(times), rules).model_dump_json(),
        "status": WorkStatus.PENDING,
        "step": Step.ANALYSE,
        "attempts": 0,
        "created_at": tx.now,
        "updated_at": tx.now,
    }
    is_new = insert_if_absent(tx, BATCHES, row, "idempotency_key")
    batch_id = tx.execute(select(BATCHES.c.id).where(BATCHES.c.idempotency_key == key)).scalar_one()
    free = and_(SHOTS.c.id.in_(ids), SHOTS.c.batch_id.is_(None))
    put = update(SHOTS).where(free).values(batch_id=batch_id, updated_at=tx.now).returning(SHOTS.c.id)
    if len(tx.execute(put).all()) != len(ids):
        raise StaleClaim(f"{source}: another batch took frames, so the source was not locked")
    frames = [costs.frame(shot_id) for shot_id in ids]
    accounts.carry(tx, FLOW, frames, str(batch_id))
    return batch_id if is_new else None


@dataclass(frozen=True)
class BufferState:
    """The state of a source's buffer. `wait_s`: seconds until it makes a batch."""

    source: str
    wait_s: float

    @property
    def ready(self) -> bool:
        """Whether the buffer makes a batch now."""
        return not self.wait_s


def waiting(context: Context) -> list[BufferState]:
    """Return the states of all buffers with frames, ready or not, sorted by source."""
    now, rules = context.db.now(), screenshots_in_force(context)
    first, frames = func.min(SHOTS.c.created_at).label("first"), func.count().label("frames")
    sources = select(SOURCES.c.key, SOURCES.c.pressure, first, frames).join(SHOTS, SHOTS.c.source_key == SOURCES.c.key)
    with context.db.read() as session:
        rows = session.execute(sources.where(buffered()).group_by(SOURCES.c.key, SOURCES.c.pressure)).all()
        behind = _waiting_batches(session, rules) if rows else 0
    states = []
    for row in sorted(rows, key=lambda row: row.key):
        pressed = pressure(behind, row.pressure, rules)
        left_s = (due_at(row.first, pressed.batch_timeout_s, now) - now).total_seconds()
        states.append(BufferState(row.key, max(0.0, left_s) if row.frames < pressed.batch_size else 0.0))
    return states


def ask_for_batch(tx: Tx, source: str, pressed: Pressure) -> bool:
    """Launch the batching of a source's frames after the commit, or at their timeout if they are too few.

    Returns whether they fill a batch.
    """
    frames = select(SHOTS.c.created_at).where(buffered(), SHOTS.c.source_key == source).limit(pressed.batch_size)
    arrivals = tx.execute(frames).scalars().all()
    if len(arrivals) == pressed.batch_size:
        tx.launch(FLOW, buffer_of(source))
        return True
    if arrivals:
        tx.wake_in(FLOW, (due_at(min(arrivals), pressed.batch_timeout_s, tx.now) - tx.now).total_seconds())
    return False


def batch(context: Context, key: str, *, all_at_once: bool = False) -> list[int]:
    """Put a source's frames into batches: full ones, the rest at its timeout, and frames that missed their batch.
    Return the ids of new batches.

    `all_at_once`: batch all frames, however few, because the source has ended.
    """
    rules = screenshots_in_force(context)
    created = _batch(context, key, rules, all_at_once=all_at_once)
    return created + _batch(context, key, rules, orphans=True)


def _batch(
    context: Context, key: str, rules: ScreenshotSettings, *, orphans: bool = False, all_at_once: bool = False
) -> list[int]:
    """Put a source's frames into batches until none are ready, one portion a transaction, so that other processes can
    write in between; return the ids of new batches.

    `orphans`: only frames that missed their batch.
    """

    def portion(tx: Tx) -> list[int]:
        source, now = lock_source(tx, key), tx.now
        pressed = pressure_on(tx, source, rules)
        size, timeout_s = pressed.batch_size, 0 if orphans or all_at_once else pressed.batch_timeout_s
        which = and_(buffered(), SHOTS.c.source_key == key)
        if orphans:
            which = and_(which, _older(now, pressed.batch_timeout_s + ORPHAN_GRACE_S))
        # In the order of arrival, up to as many whole batches as `scan_limit` allows.
        # `+ 0`: to sort by the plain column, SQLite would read every frame that the source ever had.
        waiting = select(SHOTS).where(which).order_by(SHOTS.c.id + 0).limit(size * max(1, rules.scan_limit // size))
        by_id = {row.id: row for row in tx.execute(waiting)}
        batches = ready([shot_of(row) for row in by_id.values()], size, timeout_s, now)
        created = [make(tx, key, shots, [by_id[shot.id].ts for shot in shots], rules) for shots in batches]
        new = [batch_id for batch_id in created if batch_id is not None]
        if new:
            # Launch the buffer too: this message held its place when more frames arrived.
            tx.launch(FLOW, Scope.BATCHES, buffer_of(key))
        else:
            ask_for_batch(tx, key, pressed)
        return new

    total: list[int] = []
    while created := context.db.run(portion):
        total += created
    return total


def next_batch_s(context: Context) -> float | None:
    """Return the seconds until the timeout of the next buffer that is not ready; None without such a buffer."""
    return min((state.wait_s for state in waiting(context) if not state.ready), default=None)
