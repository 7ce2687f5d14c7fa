"""Claims a batch of songs for a step, and settles it with the step's result, each in one transaction."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select

from pipeline.engine import traces, work
from pipeline.engine.claims import Owner
from pipeline.engine.errors import UnitError
from pipeline.engine.retry import Policy
from pipeline.engine.settled import Settled
from pipeline.engine.transaction import Tx
from pipeline.engine.views import view_of
from pipeline.engine.work import Changes, Outcome, Work
from pipeline.flows.music import runs
from pipeline.flows.music.models import BATCHES, SONGS
from pipeline.flows.music.routes import fallback_of
from pipeline.flows.music.rules.prompts import SongFacts
from pipeline.flows.music.states import BATCH, LIVE, SONG, BatchEvent, BatchStatus, Mode, SongEvent, Step, chain_goes_on
from pipeline.flows.music.work import result
from pipeline.settings import Settings
from pipeline.storage.context import Context


def policy(settings: Settings) -> Policy:
    """Return the settings' policy of retries. docs/sources/music.md#batches: three attempts, exponential from 5 s."""
    return Policy(tuple(settings.music.backoff_s))


def _lease_s(settings: Settings) -> float:
    """Return a lease longer than any call."""
    used = {settings.music.provider, settings.music.embeddings_provider, fallback_of(settings)}
    timeouts = [profile.timeout_s for name, profile in settings.providers.items() if name in used]
    return max([settings.music.lease_s, *(timeout_s + 60 for timeout_s in timeouts)])


def _after(tx: Tx, run: Any, changes: Changes) -> None:
    """Save or fail the songs of ended batches, and cancel batches that return to an ended run."""
    for batch_id in changes.done:
        result.save(tx, batch_id)
    for batch_id in changes.failed:
        result.fail_songs(tx, batch_id, changes.error)
    if not run.active:
        result.cancel(tx, [*changes.waiting, *changes.freed, *changes.moved])


BATCH_WORK = Work(
    name="batch",
    table=BATCHES,
    machine=BATCH,
    claim=BatchEvent.CLAIM,
    done=BatchEvent.DONE,
    fail=BatchEvent.FAIL,
    wait=BatchEvent.WAIT,
    give_back=BatchEvent.GIVE_BACK,
    scope=BATCHES.c.run_id,
    lock=runs.lock,
    order=(BATCHES.c.releases, BATCHES.c.id),
    policy=policy,
    lease_s=_lease_s,
    lost="the worker was lost while it worked on this batch",
    after=_after,
)


@dataclass(frozen=True)
class BatchUnit:
    """A claimed batch: the facts that its step and its settling need."""

    id: int
    run_id: str
    mode: Mode
    step: Step
    attempts: int
    claim_id: str
    songs: list[SongFacts]
    row: Any = field(repr=False)


def claim(context: Context, batch_id: int, steps: tuple[Step, ...], owner: Owner) -> BatchUnit | None:
    """Claim a batch that waits for one of these steps; None if it does not, or if its run is not at work.

    A redelivered message first gives back the claim of its earlier delivery, whose process died, and takes it over.
    """

    def act(tx: Tx) -> BatchUnit | None:
        run_id = tx.execute(select(BATCHES.c.run_id).where(BATCHES.c.id == batch_id)).scalar()
        run = runs.lock(tx, run_id) if run_id else None
        if run is None:
            return None
        back = work.give_back_earlier(tx, BATCH_WORK, run, owner)
        if run.status not in LIVE:
            return None
        conditions = [BATCHES.c.id == batch_id, BATCHES.c.step.in_(steps)]
        if not back.freed:
            # A surplus message must not start a batch that is not queued yet.
            conditions.append(BATCHES.c.status == BatchStatus.QUEUED)
        for row in work.claim(tx, BATCH_WORK, run, owner, *conditions):
            SONG.move(tx, SONGS, SongEvent.BEGIN, SONGS.c.batch_id == batch_id, updated_at=tx.now)
            songs = result.song_facts(tx, batch_id)
            return view_of(BatchUnit, row, songs=songs, row=row)
        return None

    return context.db.run(act)


def settle(
    context: Context, unit: BatchUnit, after: Step | None, trace: dict[str, Any] | None = None, **values: Any
) -> Settled:
    """Store a step's result, and move the batch to its next step, `after`; None: save all results to the songs.

    `Settled.requeue`: the chain continues with that step.
    """

    def ended(run: Any) -> Outcome:
        if after is None:
            return Outcome(unit, values={"finished_at": context.db.now()})
        # A repair needs a new message, since one message makes one call.
        continues = run.status in LIVE and chain_goes_on(unit.mode, unit.step, after)
        event = BatchEvent.STEP_DONE if continues else BatchEvent.GIVE_BACK
        return Outcome(unit, event=event, values={**values, "step": after, "attempts": 0})

    return _settle(context, unit, ended, trace)


def fail(context: Context, unit: BatchUnit, error: UnitError, trace: dict[str, Any] | None, **values: Any) -> Settled:
    """Settle a step that ended in an error: the batch waits for a retry, is released without counting an attempt, or
    fails with its songs. Paid results stay."""

    return _settle(context, unit, lambda _run: Outcome(unit, error, values=values), trace)


def _settle(
    context: Context, unit: BatchUnit, ended: Callable[[Any], Outcome], trace: dict[str, Any] | None
) -> Settled:
    """Write a step's outcome. If the chain does not continue, launch the run by its rows."""

    def act(tx: Tx) -> Settled:
        run = runs.lock(tx, unit.run_id)
        traces.record(tx, trace)  # even for a discarded result, which was paid for
        if run is None:
            return Settled()
        changes = work.settle(tx, BATCH_WORK, run, ended(run))
        current = select(BATCHES.c.status).where(BATCHES.c.id == unit.id)
        status = BatchStatus(tx.execute(current).scalar_one()) if changes else None
        continues = status is BatchStatus.QUEUED
        tx.wake_in("music", changes.retry_in_s)
        if not continues:
            tx.launch("music", run.id)
            tx.announce("music", run.id)
        return Settled(len(changes.done) + len(changes.moved), continues, changes.retry_in_s, status)

    return context.db.run(act)
