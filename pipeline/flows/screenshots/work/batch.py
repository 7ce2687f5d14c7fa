"""A batch as a unit of work. Its shards are claimed one by one; becoming nodes is claimed as a whole.

Every transaction here locks the batch's row first, so that exactly one counts the last shard.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import and_, insert, or_, select, update
from sqlalchemy.orm import Session

from pipeline.engine import claims, traces
from pipeline.engine.claims import FREE, Claim, Owner, held_by, is_due, new_claim
from pipeline.engine.errors import UnitError
from pipeline.engine.relaunch import RELAUNCH_AFTER_S
from pipeline.engine.tables import insert_if_absent
from pipeline.engine.traces import MAX_ERROR_CHARS
from pipeline.flows.screenshots.graph import nodes
from pipeline.flows.screenshots.graph.models import CALLS, THREADS
from pipeline.flows.screenshots.live import screenshots_in_force
from pipeline.flows.screenshots.models import BATCHES, SHARDS, SHOTS
from pipeline.flows.screenshots.rules.batches import portions
from pipeline.flows.screenshots.rules.expansion import Expansion
from pipeline.flows.screenshots.rules.provenance import Operation
from pipeline.flows.screenshots.rules.schemas import VlmIndex
from pipeline.flows.screenshots.states import (
    BATCH,
    CLAIMABLE,
    SCREENSHOT,
    SHARD,
    Ask,
    Origin,
    Step,
    WorkEvent,
    WorkStatus,
)
from pipeline.flows.screenshots.work import outcome, retry
from pipeline.flows.screenshots.work.outcome import Failed
from pipeline.storage.context import Context

FLOW = "screenshots"
MAX_NOTES = 50


@dataclass(frozen=True)
class Begun:
    """A batch whose shards are looked at. `due`: how many of them wait for a message; 0 with `all_done`: none will."""

    row: Any = field(repr=False)
    due: int
    all_done: bool
    is_new: bool
    """Claimed now, not found running."""


@dataclass(frozen=True)
class BatchUnit:
    """A batch that is claimed to become nodes, and the claim to commit them with."""

    id: int
    attempts: int
    claim: Claim
    shots: list[Any] = field(repr=False)
    row: Any = field(repr=False)

    @property
    def index(self) -> VlmIndex:
        return VlmIndex.model_validate_json(self.row.index_json)


@dataclass(frozen=True)
class UsedCall:
    """A call whose result is stored: where a node comes from."""

    operation: Operation
    provider: str
    model: str
    prompt_hash: str
    attempt: int
    ask: Ask
    shot_ids: Sequence[int]


def lock(session: Session, batch_id: int) -> Any | None:
    """The batch's row, locked until the transaction ends; None if there is none (any more)."""
    return session.execute(select(BATCHES).where(BATCHES.c.id == batch_id).with_for_update()).one_or_none()


def lease_s(context: Context) -> float:
    """How long a claim holds: longer than any call takes, or recognising the text of a shard's frames here."""
    settings = context.settings
    own = settings.screenshots
    calls_s = [one.timeout_s + 60 for one in settings.providers.values()]
    return max([own.stale_running_s, own.shard_size * settings.documents.page_timeout_s, *calls_s])


def begin(context: Context, batch_id: int) -> Begun | None:
    """Claim a batch for its analysis, and plan its shards, once; those that failed wait again. None if it is not due.

    A batch that is being analysed is found as it is, for whoever sends messages for its shards again. What its shards
    found earlier stays.
    """
    shard_size = screenshots_in_force(context).shard_size

    def work(session: Session) -> Begun | None:
        now = datetime.now(UTC)
        batch = lock(session, batch_id)
        if batch is None or batch.step != Step.ANALYSE:
            return None
        mine = BATCHES.c.id == batch_id
        # The shards have claims of their own: nobody holds the batch while they are looked at.
        claimed = BATCH.move_returning(
            session, BATCHES, WorkEvent.CLAIM, mine, is_due(BATCHES, now), attempts=BATCHES.c.attempts + 1,
            next_run_at=None, error=None, started_at=batch.started_at or now, updated_at=now,
            launch_due_at=now + timedelta(seconds=RELAUNCH_AFTER_S), launches=0,
        )  # fmt: skip
        if not claimed and batch.status != WorkStatus.RUNNING:
            return None
        if claimed:
            SCREENSHOT.move(session, SHOTS, WorkEvent.CLAIM, SHOTS.c.batch_id == batch_id, updated_at=now, error=None)
            _plan(session, batch, shard_size, now)
        shards = session.execute(select(SHARDS).where(SHARDS.c.batch_id == batch_id)).all()
        due = sum(
            shard.status in CLAIMABLE and (shard.next_run_at is None or shard.next_run_at <= now) for shard in shards
        )  # fmt: skip
        done = all(shard.status == WorkStatus.SUCCEEDED for shard in shards)
        return Begun(claimed[0] if claimed else batch, due, done, bool(claimed))

    return context.db.run(work)


def _plan(session: Session, batch: Any, size: int, now: datetime) -> None:
    begun = select(SHARDS.c.id).where(SHARDS.c.batch_id == batch.id).limit(1)
    if session.execute(begun).first() is None:
        for number, part in enumerate(portions(json.loads(batch.shot_ids), size)):
            row = {
                "batch_id": batch.id, "number": number, "shot_ids": json.dumps(part), "status": WorkStatus.PENDING,
                "attempts": 0, "ask": Ask.FIRST, "notes": "[]", "model": "", "created_at": now, "updated_at": now,
            }  # fmt: skip
            insert_if_absent(session, SHARDS, row, "batch_id", "number")
    mine = SHARDS.c.batch_id == batch.id
    # Given up before: somebody wants the batch tried again.
    SHARD.move(session, SHARDS, WorkEvent.RETRY, mine, attempts=0, ask=Ask.FIRST, next_run_at=None, updated_at=now)
    waits = and_(mine, SHARDS.c.status == WorkStatus.FAILED)
    session.execute(update(SHARDS).where(waits).values(next_run_at=None))


def claim(context: Context, batch_id: int, owner: Owner) -> BatchUnit | None:
    """Claim a batch that is analysed and due, to make its nodes; None if it is not.

    A message that comes again first gives back what its earlier delivery held in this worker, whose process has died.
    """

    def work(session: Session) -> BatchUnit | None:
        now = datetime.now(UTC)
        batch = lock(session, batch_id)
        if batch is None or batch.step != Step.EXPAND:
            return None
        mine = BATCHES.c.id == batch_id
        earlier = and_(mine, BATCHES.c.request_id == owner.request_id, BATCHES.c.worker_id == owner.worker_id)
        outcome.free_lost(session, BATCH, BATCHES, earlier, retry.policy(context.settings.screenshots), now)
        held = new_claim(owner, now, lease_s(context))
        rows = claims.take(
            session, BATCHES, BATCH, WorkEvent.CLAIM, mine, claim=held, order_by=BATCHES.c.id, limit=1, now=now,
            updated_at=now, error=None, launches=0, launch_due_at=None,
        )  # fmt: skip
        if not rows:
            return None
        return BatchUnit(batch_id, rows[0].attempts, held, shots_of(session, rows[0].shot_ids), rows[0])

    return context.db.run(work)


def shots_of(session: Session, shot_ids: str) -> list[Any]:
    """The frames of a JSON list of ids that are still there, in its order."""
    ids = ids_of(shot_ids)
    found = {row.id: row for row in session.execute(select(SHOTS).where(SHOTS.c.id.in_(ids)))}
    return [found[shot_id] for shot_id in ids if shot_id in found]


def ids_of(shot_ids: str) -> list[int]:
    """A stored JSON list of ids."""
    found: list[int] = json.loads(shot_ids)
    return found


def late_threads(context: Context, unit: BatchUnit, titles: Sequence[str]) -> dict[str, str]:
    """The latest thread of each of these titles that was active within a day of the batch; by title."""
    wanted = {title[: nodes.MAX_TITLE]: title for title in titles if title}
    day = timedelta(days=1)
    near = THREADS.c.last_at.between(unit.row.ts_start - day, unit.row.ts_end + day)
    query = select(THREADS.c.title, THREADS.c.id).where(THREADS.c.title.in_(wanted), near).order_by(THREADS.c.last_at)
    with context.db.read() as session:
        return {wanted[row.title]: row.id for row in session.execute(query)}


def keep_reply(
    context: Context, unit: BatchUnit, reply: str, trace: dict[str, Any] | None, call: UsedCall | None
) -> bool:
    """Store what the text model was paid for, before anything is made of it; False if the claim was taken away.

    Without `call` the reply is no use and to be repaired: the batch goes back for another message of the same attempt.
    """

    def work(session: Session) -> bool:
        now = datetime.now(UTC)
        batch = lock(session, unit.id)
        traces.record(session, FLOW, unit.id, "expand", trace, gone=batch is None)
        mine = and_(BATCHES.c.id == unit.id, held_by(BATCHES, unit.claim))
        values: dict[str, Any] = {"reply": reply, "updated_at": now}
        if call is None:
            back = {**FREE, "attempts": BATCHES.c.attempts - 1, "next_run_at": None, "ask": Ask.REPAIR}
            return bool(BATCH.move(session, BATCHES, WorkEvent.STEP_DONE, mine, **back, **values, **launched(now)))
        kept = update(BATCHES).where(mine).values(**values, ask=Ask.FIRST).returning(BATCHES.c.id)
        if session.execute(kept).first() is None:
            return False
        record_used(session, call, now, batch_id=unit.id)
        return True

    return context.db.run(work)


def launched(now: datetime) -> dict[str, Any]:
    """Columns of a batch whose next message is under way already."""
    return {"launches": 1, "launch_due_at": now + timedelta(seconds=RELAUNCH_AFTER_S)}


def finish(
    context: Context, unit: BatchUnit, expansion: Expansion, made_by: Origin, *, text_ms: int = 0,
    trace: dict[str, Any] | None = None,
) -> list[int] | None:  # fmt: skip
    """The batch is done: its nodes are written. The ids of new ones; None if the claim was taken away."""

    def work(session: Session) -> list[int] | None:
        now = datetime.now(UTC)
        batch = lock(session, unit.id)
        traces.record(session, FLOW, unit.id, "expand", trace, gone=batch is None)
        if batch is None or batch.claim_id != unit.claim.id:
            return None
        asked = and_(CALLS.c.batch_id == unit.id, CALLS.c.operation == Operation.EXPAND)
        model = session.execute(select(CALLS.c.model).where(asked).order_by(CALLS.c.id.desc()).limit(1)).scalar()
        made = nodes.write(session, unit.id, expansion, model or "", now)
        said = [*json.loads(batch.notes), *expansion.notes]
        BATCH.move(
            session, BATCHES, WorkEvent.DONE, BATCHES.c.id == unit.id, held_by(BATCHES, unit.claim), **FREE,
            text_ms=BATCHES.c.text_ms + text_ms, made_by=made_by, notes=as_notes(said), error=None, next_run_at=None,
            launch_due_at=None, finished_at=now, updated_at=now,
        )  # fmt: skip
        return made

    return context.db.run(work)


def fail(context: Context, unit: BatchUnit, error: UnitError, trace: dict[str, Any] | None = None) -> Failed:
    """Making nodes ended in an error: the batch waits, goes back, or is a dead letter."""

    def work(session: Session) -> Failed:
        now = datetime.now(UTC)
        batch = lock(session, unit.id)
        traces.record(session, FLOW, unit.id, "expand", trace, gone=batch is None)
        rules = retry.policy(context.settings.screenshots)
        # What the gate refused takes its place in the queue again: its message is under way.
        sent = launched(now) if error.kind in outcome.RELEASED else {"launches": 0, "launch_due_at": None}
        return outcome.fail(session, BATCH, BATCHES, unit, unit.claim, error, rules, now, **sent)

    return context.db.run(work)


def follow(session: Session, batch_ids: Sequence[int], event: WorkEvent, error: str, now: datetime) -> None:
    """The frames of batches go where their batch went, so that none is stuck in `running`."""
    mine = SHOTS.c.batch_id.in_(batch_ids)
    SCREENSHOT.move(session, SHOTS, event, mine, error=error[:MAX_ERROR_CHARS] or None, updated_at=now)


def record_used(
    session: Session, call: UsedCall, now: datetime, *, batch_id: int | None = None, node_id: int | None = None
) -> None:
    """Write that a result is used: what nodes rest on."""
    row = {
        "batch_id": batch_id, "node_id": node_id, "operation": call.operation, "provider": call.provider,
        "model": call.model[:120], "prompt_hash": call.prompt_hash, "attempt": call.attempt, "ask": call.ask,
        "shot_ids": json.dumps(list(call.shot_ids)), "created_at": now,
    }  # fmt: skip
    session.execute(insert(CALLS).values(**row))


def as_notes(said: Sequence[str]) -> str:
    """Notes as they are stored: each once, not too many."""
    kept = list(dict.fromkeys(said))
    more = [f"and {len(kept) - MAX_NOTES} more"] if len(kept) > MAX_NOTES else []
    return json.dumps([*kept[:MAX_NOTES], *more], ensure_ascii=False)


def unlaunched(now: datetime) -> Any:
    """Batches that no message is waited for."""
    return or_(BATCHES.c.launch_due_at.is_(None), BATCHES.c.launch_due_at <= now)
