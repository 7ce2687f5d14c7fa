"""A batch of songs as a unit of work: claimed for a step, and settled with its result, in one transaction each."""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from pipeline.engine import claims, traces
from pipeline.engine.claims import FREE, Claim, Owner, held_by, left_behind, new_claim
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.relaunch import RELAUNCH_AFTER_S
from pipeline.engine.retry import Drop, GiveUp, Policy, Release, RetryAt, decide
from pipeline.engine.settled import Settled
from pipeline.flows.music import runs
from pipeline.flows.music.models import BATCHES, SONGS
from pipeline.flows.music.routes import fallback_of
from pipeline.flows.music.rules.prompts import SongFacts
from pipeline.flows.music.states import BATCH, LIVE, SONG, BatchEvent, BatchStatus, Mode, SongEvent, Step, chain_goes_on
from pipeline.flows.music.work import result
from pipeline.storage.context import Context

LONGEST_RELEASE_S = 1.0
"""A batch that the gate refused goes back into its queue at once: the gate makes it wait there."""
LOST = "the worker was lost while it worked on this batch"
UNLAUNCHED: dict[str, Any] = {**FREE, "launches": 0, "launch_due_at": None}
"""Column values of a row that nobody holds, and that no message is on its way for."""


@dataclass(frozen=True)
class BatchUnit:
    """A claimed batch: what its step needs, and the claim to settle it with."""

    id: int
    run_id: str
    mode: Mode
    step: Step
    attempt: int
    songs: list[SongFacts]
    claim: Claim
    row: Any = field(repr=False)

    @property
    def held(self) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
        """Its row, as long as the claim holds."""
        return BATCHES.c.id == self.id, held_by(BATCHES, self.claim)


def policy(context: Context) -> Policy:
    """When a step is tried again. Section 2.D: three attempts, exponential from 5 s."""
    return Policy(tuple(context.settings.music.backoff_s))


def lease_s(context: Context) -> float:
    """How long a batch is held: longer than any call takes."""
    settings = context.settings
    used = {settings.music.provider, settings.music.embeddings_provider, fallback_of(settings)} - {""}
    return max([settings.music.lease_s, *(settings.providers[name].timeout_s + 60 for name in used)])


def claim(context: Context, batch_id: int, steps: tuple[Step, ...], owner: Owner) -> BatchUnit | None:
    """Claim a batch that waits for one of these steps; None if it does not, or if its run does not work now.

    A message that comes again first gives back what its earlier delivery left behind.
    """

    def work(session: Session) -> BatchUnit | None:
        now = datetime.now(UTC)
        mine = BATCHES.c.id == batch_id
        run_id = session.execute(select(BATCHES.c.run_id).where(mine)).scalar()
        run = runs.lock(session, run_id) if run_id else None
        if run is None:
            return None
        if left := left_behind(session, BATCHES, owner):
            release_lost(session, run, BATCHES.c.claim_id.in_(left), policy(context), now, requeue=True)
        if run.status not in LIVE:
            return None
        held = new_claim(owner, now, lease_s(context))
        rows = claims.take(
            session, BATCHES, BATCH, BatchEvent.CLAIM, mine, BATCHES.c.step.in_(steps),
            claim=held, order_by=BATCHES.c.id, limit=1, now=now, updated_at=now,
        )  # fmt: skip
        if not rows:
            return None
        SONG.move(session, SONGS, SongEvent.BEGIN, SONGS.c.batch_id == batch_id, updated_at=now)
        songs = result.song_facts(session, batch_id)
        row = rows[0]
        return BatchUnit(batch_id, row.run_id, Mode(row.mode), Step(row.step), row.attempts, songs, held, row)

    return context.db.run(work)


def settle(
    context: Context, unit: BatchUnit, after: Step | None, trace: dict[str, Any] | None = None, **values: Any
) -> Settled:
    """Store what a step was paid for, and put the batch before its next step, `after`; None: its songs get all of it.

    `Settled.again`: the chain may go on with that step.
    """

    def work(session: Session) -> Settled:
        now = datetime.now(UTC)
        run = _begin(session, unit, trace)
        if after is None:
            return _complete(session, unit, now)
        # A reply that needs a repair takes its place in the queue again: one message, one call.
        go_on = run is not None and run.status in LIVE and chain_goes_on(unit.mode, unit.step, after)
        moved = BATCH.move(
            session, BATCHES, BatchEvent.STEP_DONE if go_on else BatchEvent.GIVE_BACK, *unit.held, **FREE,
            **{"error": None, **values}, step=after, attempts=0, launches=0, next_run_at=None, updated_at=now,
            launch_due_at=now + timedelta(seconds=RELAUNCH_AFTER_S),
        )  # fmt: skip
        if not moved:
            return Settled()
        status = BatchStatus.QUEUED if go_on else _cancelled_with(session, run, unit.id, now)
        return Settled(done=1, again=go_on, status=status)

    return context.db.run(work)


def _complete(session: Session, unit: BatchUnit, now: datetime) -> Settled:
    if session.execute(select(BATCHES.c.id).where(*unit.held)).first() is None:
        return Settled()
    counts = result.save(session, unit.id, now)
    BATCH.move(
        session, BATCHES, BatchEvent.DONE, *unit.held, **FREE, **result.EMPTIED, **counts, error=None,
        finished_at=now, updated_at=now,
    )  # fmt: skip
    return Settled(done=1, status=BatchStatus.COMPLETED)


def fail(context: Context, unit: BatchUnit, error: UnitError, trace: dict[str, Any] | None, **values: Any) -> Settled:
    """A step ended in an error: the batch waits, goes back, or fails with its songs. What was paid for stays."""

    def work(session: Session) -> Settled:
        now = datetime.now(UTC)
        run = _begin(session, unit, trace)
        event, changes, wait_s = _consequence(error, unit.attempt, now, policy(context))
        if not BATCH.move(session, BATCHES, event, *unit.held, **FREE, **changes, **values, updated_at=now):
            return Settled()
        if event is BatchEvent.FAIL:
            result.fail_songs(session, unit.id, changes["error"], now)
            return Settled(status=BatchStatus.FAILED)
        return Settled(retry_in_s=wait_s, status=_cancelled_with(session, run, unit.id, now))

    return context.db.run(work)


def _begin(session: Session, unit: BatchUnit, trace: dict[str, Any] | None) -> Any | None:
    """The unit's run, locked. The call is on record even if its result is discarded: it was paid for."""
    run = runs.lock(session, unit.run_id)
    traces.record(session, "music", unit.run_id, unit.id, trace)
    return run


def _cancelled_with(session: Session, run: Any | None, batch_id: int, now: datetime) -> BatchStatus:
    """Cancel a batch that has just gone back if its run has ended meanwhile; its state."""
    if run is None or run.active:
        return BatchStatus.PENDING
    result.cancel(session, [batch_id], now)
    return BatchStatus.CANCELLED


def _consequence(
    error: UnitError, attempt: int, now: datetime, rules: Policy
) -> tuple[BatchEvent, dict[str, Any], float | None]:
    """The event, the columns, and how many seconds the batch waits."""
    text = traces.message_of(error)
    retried = BATCHES.c.retry_count + 1
    match decide(error, attempt, now, rules):
        case RetryAt(at=at):
            wait_s = max(0.0, (at - now).total_seconds())
            return BatchEvent.WAIT, {"next_run_at": at, "error": text, "retry_count": retried}, wait_s
        case Release(at=at):
            wait_s = min(max(0.0, (at - now).total_seconds()), LONGEST_RELEASE_S)
            due = now + timedelta(seconds=wait_s)
            return BatchEvent.GIVE_BACK, {"next_run_at": due, "error": text, "attempts": BATCHES.c.attempts - 1}, wait_s
        case GiveUp():
            tries = f" (after {attempt} attempts)" if error.kind is ErrorKind.TRANSIENT else ""
            return BatchEvent.FAIL, {"error": text + tries, "retry_count": retried, "finished_at": now}, None
        case Drop():
            return BatchEvent.GIVE_BACK, {"next_run_at": None, "error": None}, None


def release_lost(
    session: Session, run: Any, which: ColumnElement[bool], rules: Policy, now: datetime, *, requeue: bool = False
) -> int:
    """Give back claimed batches of a locked run that match `which`, or fail them when their attempts are used up.

    With `requeue`, the caller's message takes a batch up again at once. How many batches it were.
    """
    rows = session.execute(select(BATCHES).where(BATCHES.c.run_id == run.id, BATCHES.c.claim_id.is_not(None), which))
    found = rows.all()
    for row in found:
        mine = BATCHES.c.id == row.id
        if row.attempts >= rules.max_attempts:
            error = f"{LOST} (after {row.attempts} attempts)"
            BATCH.move(session, BATCHES, BatchEvent.FAIL, mine, **FREE, error=error, finished_at=now, updated_at=now)
            result.fail_songs(session, row.id, error, now)
            continue
        BATCH.move(
            session, BATCHES, BatchEvent.STEP_DONE if requeue else BatchEvent.GIVE_BACK, mine, **UNLAUNCHED,
            error=LOST, retry_count=BATCHES.c.retry_count + 1, next_run_at=None, updated_at=now,
        )  # fmt: skip
        if not run.active:
            result.cancel(session, [row.id], now)
    return len(found)


def release(session: Session, worker_ids: Collection[str], now: datetime) -> None:
    """Give back the batches that these workers, which are ending, still hold; no attempt is counted."""
    held = (BATCHES.c.worker_id.in_(worker_ids), BATCHES.c.claim_id.is_not(None))
    for run_id in sorted(session.execute(select(BATCHES.c.run_id).distinct().where(*held)).scalars()):
        run = runs.lock(session, run_id)
        found = list(session.execute(select(BATCHES.c.id).where(BATCHES.c.run_id == run_id, *held)).scalars())
        BATCH.move(
            session, BATCHES, BatchEvent.GIVE_BACK, BATCHES.c.id.in_(found), **UNLAUNCHED,
            attempts=BATCHES.c.attempts - 1, updated_at=now,
        )  # fmt: skip
        if run is not None and not run.active:
            result.cancel(session, found, now)
