"""Batches as units of work: claimed for a step, and settled with its result, in one transaction each."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import Session

from pipeline.engine import claims
from pipeline.engine.claims import FREE, Claim, Owner, held_by, new_claim
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.relaunch import RELAUNCH_AFTER_S
from pipeline.engine.retry import Drop, GiveUp, Policy, Release, RetryAt, decide
from pipeline.flows.music import runs
from pipeline.flows.music.models import BATCHES, SONGS
from pipeline.flows.music.routes import fallback_of
from pipeline.flows.music.rules.prompts import SongFacts
from pipeline.flows.music.states import BATCH, LIVE, SONG, BatchEvent, Mode, SongEvent, Step, chain_goes_on
from pipeline.flows.music.work import result
from pipeline.storage.context import Context

MAX_ERROR_CHARS = 2000
LONGEST_RELEASE_S = 1.0
"""A batch that was refused at the gate goes back into its queue at once: it is the gate that makes it wait there."""
LOST = "the worker was lost while it worked on this batch"


@dataclass(frozen=True)
class BatchUnit:
    """A claimed batch: what its step needs, and the claim to commit the result with."""

    id: int
    run_id: str
    mode: Mode
    step: Step
    attempt: int
    songs: list[SongFacts]
    claim: Claim
    row: Any = field(repr=False)


@dataclass(frozen=True)
class Settled:
    """What a commit did. `go_on`: the chain may go on with its next step. `retry_in_s`: the batch waits so long."""

    held: bool
    go_on: bool = False
    retry_in_s: float | None = None


def policy(context: Context) -> Policy:
    """When a step is tried again. 2.D: three attempts, exponential from 5 s."""
    return Policy(tuple(context.settings.music.backoff_s))


def lease_s(context: Context) -> float:
    """How long a batch is held: longer than any call takes."""
    settings = context.settings
    used = {settings.music.provider, settings.music.embeddings_provider, fallback_of(settings)} - {""}
    return max([settings.music.lease_s, *(settings.providers[name].timeout_s + 60 for name in used)])


def claim(context: Context, batch_id: int, steps: tuple[Step, ...], owner: Owner) -> BatchUnit | None:
    """Claim a batch that waits for one of these steps; None if it does not, or its run does not work now.

    A message that comes again first gives back what its earlier delivery held in this worker, whose process has died.
    What another worker holds is left alone: it may live and be in its call, which must not be paid for again. If it is
    dead, the sweeper notices.
    """

    def work(session: Session) -> BatchUnit | None:
        now = datetime.now(UTC)
        run = lock_of(session, batch_id)
        if run is None:
            return None
        mine = BATCHES.c.id == batch_id
        earlier = and_(BATCHES.c.request_id == owner.request_id, BATCHES.c.worker_id == owner.worker_id)
        free_lost(session, run, earlier, policy(context), now, requeue=True)
        if run.status not in LIVE:
            return None
        held = new_claim(owner, now, lease_s(context))
        rows = claims.take(
            session, BATCHES, BATCH, BatchEvent.CLAIM, mine, BATCHES.c.step.in_(steps),
            claim=held, order_by=BATCHES.c.id, limit=1, now=now, updated_at=now,
        )  # fmt: skip
        return _unit(session, rows[0], held, now) if rows else None

    return context.db.run(work)


def lock_of(session: Session, batch_id: int) -> Any | None:
    """The run of a batch, locked; None if there is no such batch."""
    run_id = session.execute(select(BATCHES.c.run_id).where(BATCHES.c.id == batch_id)).scalar()
    return runs.lock(session, run_id) if run_id else None


def _unit(session: Session, row: Any, held: Claim, now: datetime) -> BatchUnit:
    mine = SONGS.c.batch_id == row.id
    SONG.move(session, SONGS, SongEvent.BEGIN, mine, updated_at=now)
    songs = result.facts(session, row.id)
    return BatchUnit(row.id, row.run_id, Mode(row.mode), Step(row.step), row.attempts, songs, held, row)


def step_done(context: Context, unit: BatchUnit, step: Step, trace: dict[str, Any] | None, **values: Any) -> Settled:
    """Store what a step was paid for, and put the batch before the next one, `step`."""

    def work(session: Session) -> Settled:
        now = datetime.now(UTC)
        run = _begin(session, unit, trace)
        live = run is not None and run.status in LIVE
        # A reply that is to be mended takes its place in the queue again: one message, one call.
        go_on = live and chain_goes_on(unit.mode, unit.step, step)
        event = BatchEvent.STEP_DONE if go_on else BatchEvent.GIVE_BACK
        moved = BATCH.move(
            session, BATCHES, event, BATCHES.c.id == unit.id, held_by(BATCHES, unit.claim), **FREE,
            **{"error": None, **values}, step=step, attempts=0, launches=0, next_run_at=None, updated_at=now,
            launch_due_at=now + timedelta(seconds=RELAUNCH_AFTER_S),
        )  # fmt: skip
        if moved and run is not None and not run.active:
            result.release(session, [unit.id], now)
        return Settled(bool(moved), go_on=bool(moved) and go_on)

    return context.db.run(work)


def failed(context: Context, unit: BatchUnit, error: UnitError, trace: dict[str, Any] | None, **values: Any) -> Settled:
    """A step ended in an error: the batch waits, goes back, or fails with its songs. What was paid for stays."""

    def work(session: Session) -> Settled:
        now = datetime.now(UTC)
        run = _begin(session, unit, trace)
        mine = (BATCHES.c.id == unit.id, held_by(BATCHES, unit.claim))
        event, changes, wait_s = _decided(error, unit.attempt, now, policy(context))
        if not BATCH.move(session, BATCHES, event, *mine, **FREE, **changes, **values, updated_at=now):
            return Settled(held=False)
        if event is BatchEvent.FAIL:
            result.fail_songs(session, unit.id, str(changes["error"]), now)
        elif run is not None and not run.active:
            result.release(session, [unit.id], now)
        return Settled(held=True, retry_in_s=wait_s)

    return context.db.run(work)


def _begin(session: Session, unit: BatchUnit, trace: dict[str, Any] | None) -> Any | None:
    run = runs.lock(session, unit.run_id)
    result.record_call(session, unit.run_id, unit.id, trace)
    return run


def _decided(
    error: UnitError, attempt: int, now: datetime, rules: Policy
) -> tuple[BatchEvent, dict[str, Any], float | None]:
    """The event, the columns, and how long the batch waits."""
    text = message_of(error)
    retried = BATCHES.c.retry_count + 1
    match decide(error, attempt, now, rules):
        case RetryAt(at=at):
            return BatchEvent.WAIT, {"next_run_at": at, "error": text, "retry_count": retried}, _until(at, now)
        case Release(at=at):
            wait_s = min(_until(at, now), LONGEST_RELEASE_S)
            due = now + timedelta(seconds=wait_s)
            back = {"next_run_at": due, "error": text, "attempts": BATCHES.c.attempts - 1}
            return BatchEvent.GIVE_BACK, back, wait_s
        case GiveUp():
            tries = f" (after {attempt} attempts)" if error.kind is ErrorKind.TRANSIENT else ""
            return BatchEvent.FAIL, {"error": text + tries, "retry_count": retried, "finished_at": now}, None
        case Drop():
            return BatchEvent.GIVE_BACK, {"next_run_at": None, "error": None}, None


def _until(at: datetime, now: datetime) -> float:
    return max(0.0, (at - now).total_seconds())


def free_lost(
    session: Session, run: Any, which: ColumnElement[bool], rules: Policy, now: datetime, *, requeue: bool = False
) -> int:
    """Give back claimed batches of a locked run that match `which`, or fail them when attempts are used up.

    With `requeue`, the caller's message takes a batch up again at once.
    """
    lost = select(BATCHES).where(BATCHES.c.run_id == run.id, BATCHES.c.claim_id.is_not(None), which)
    rows = session.execute(lost).all()
    for row in rows:
        mine = BATCHES.c.id == row.id
        if row.attempts >= rules.max_attempts:
            error = f"{LOST} (after {row.attempts} attempts)"
            BATCH.move(session, BATCHES, BatchEvent.FAIL, mine, **FREE, error=error, finished_at=now, updated_at=now)
            result.fail_songs(session, row.id, error, now)
            continue
        event = BatchEvent.STEP_DONE if requeue else BatchEvent.GIVE_BACK
        retried = BATCHES.c.retry_count + 1
        BATCH.move(
            session, BATCHES, event, mine, **FREE, error=LOST, retry_count=retried, next_run_at=None,
            launches=0, launch_due_at=None, updated_at=now,
        )  # fmt: skip
        if not run.active:
            result.release(session, [row.id], now)
    return len(rows)


def message_of(error: Exception) -> str:
    """An error as it is stored: one text, cut."""
    return (str(error) or type(error).__name__)[:MAX_ERROR_CHARS]
