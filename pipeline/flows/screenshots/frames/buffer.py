"""From the buffer to batches. The buffer is the frames without a batch; a source's row is its lock.

However many look at it at once, whoever comes second finds it empty: a frame gets its batch by one UPDATE that
compares, and a batch of the same frames meets the idempotency key.
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
    return pressure(_waiting_batches(session, rules), source.pressure, rules)


def _waiting_batches(session: Session, rules: ScreenshotSettings) -> int:
    """Batches that the vision model has not begun, or must be asked about again; and those that frames would make."""
    waits = and_(BATCHES.c.step == Step.ANALYSE, BATCHES.c.status.in_(CLAIMABLE))
    made = session.execute(select(func.count()).where(waits)).scalar_one()
    frames = select(func.count()).where(buffered()).group_by(SHOTS.c.source_key)
    # Of the longest batches, so that a buffer that merely fills is no pressure.
    size = rules.batch_size * rules.pressed_batch_factor
    return made + sum(count // size for count in session.execute(frames).scalars())


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


def make(
    tx: Tx, source: str, shots: Sequence[Shot], times: Sequence[datetime], rules: ScreenshotSettings
) -> int | None:
    """A batch of these frames, in the order of `shots`; `times`: when they were taken.

    In the caller's transaction, which has locked the source. None if the very same batch exists.
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
        raise StaleClaim(f"{source}: frames were put into another batch, so the source was not locked")
    frames = [costs.frame(shot_id) for shot_id in ids]
    accounts.carry(tx, FLOW, frames, str(batch_id))
    return batch_id if is_new else None


@dataclass(frozen=True)
class Waiting:
    """A source's frames without a batch. `wait_s`: until they make one."""

    source: str
    wait_s: float

    @property
    def ready(self) -> bool:
        """They make one now."""
        return not self.wait_s


def waiting(context: Context) -> list[Waiting]:
    """The sources with frames in the buffer, by name."""
    now, rules = context.db.now(), screenshots_in_force(context)
    first, frames = func.min(SHOTS.c.created_at).label("first"), func.count().label("frames")
    sources = select(SOURCES.c.key, SOURCES.c.pressure, first, frames).join(SHOTS, SHOTS.c.source_key == SOURCES.c.key)
    with context.db.read() as session:
        rows = session.execute(sources.where(buffered()).group_by(SOURCES.c.key, SOURCES.c.pressure)).all()
        behind = _waiting_batches(session, rules) if rows else 0
    found = []
    for row in sorted(rows, key=lambda row: row.key):
        pressed = pressure(behind, row.pressure, rules)
        left_s = (due_at(row.first, pressed.batch_timeout_s, now) - now).total_seconds()
        found.append(Waiting(row.key, max(0.0, left_s) if row.frames < pressed.batch_size else 0.0))
    return found


def ask_for_batch(tx: Tx, source: str, pressed: Pressure) -> bool:
    """After the commit, have a source's frames batched: at once, or when they have waited long enough.

    Whether they are those of a whole batch.
    """
    mine = select(SHOTS.c.created_at).where(buffered(), SHOTS.c.source_key == source).limit(pressed.batch_size)
    came = tx.execute(mine).scalars().all()
    if len(came) == pressed.batch_size:
        tx.launch(FLOW, buffer_of(source))
        return True
    if came:
        tx.wake_in(FLOW, (due_at(min(came), pressed.batch_timeout_s, tx.now) - tx.now).total_seconds())
    return False


def batch(context: Context, key: str, *, all_at_once: bool = False) -> list[int]:
    """Batch a source's frames: full batches, the rest once it is due, and what was left behind. The new batches.

    `all_at_once`: all frames, however few, since no more are to come.
    """
    rules = screenshots_in_force(context)
    made = _batch(context, key, rules, all_at_once=all_at_once)
    return made + _batch(context, key, rules, orphans=True)


def _batch(
    context: Context, key: str, rules: ScreenshotSettings, *, orphans: bool = False, all_at_once: bool = False
) -> list[int]:
    """Until nothing is ready, one portion a transaction: others must be able to write in between.

    `orphans`: only frames that should have been batched.
    """

    def portion(tx: Tx) -> list[int]:
        source, now = lock_source(tx, key), tx.now
        pressed = pressure_on(tx, source, rules)
        size, timeout_s = pressed.batch_size, 0 if orphans or all_at_once else pressed.batch_timeout_s
        which = and_(buffered(), SHOTS.c.source_key == key)
        if orphans:
            which = and_(which, _older(now, pressed.batch_timeout_s + ORPHAN_GRACE_S))
        # In the order they came; of very many, as many whole batches as one search reads.
        # Not by the column alone: for that, SQLite would read every frame that the source ever had.
        waiting = select(SHOTS).where(which).order_by(SHOTS.c.id + 0).limit(size * max(1, rules.scan_limit // size))
        by_id = {row.id: row for row in tx.execute(waiting)}
        batches = ready([shot_of(row) for row in by_id.values()], size, timeout_s, now)
        made = [make(tx, key, shots, [by_id[shot.id].ts for shot in shots], rules) for shots in batches]
        new = [batch_id for batch_id in made if batch_id is not None]
        if new:
            # The buffer, too: frames that arrived during the batch found the place taken.
            tx.launch(FLOW, Scope.BATCHES, buffer_of(key))
        else:
            ask_for_batch(tx, key, pressed)
        return new

    total: list[int] = []
    while made := context.db.run(portion):
        total += made
    return total


def next_look_s(context: Context) -> float | None:
    """Seconds until some source's frames make a batch, if they do not yet; None if none waits for that."""
    return min((one.wait_s for one in waiting(context) if not one.ready), default=None)
