"""The sync of a run as a unit of work: claimed, so that one worker does it, and renewed page by page."""

import json
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import update
from sqlalchemy.orm import Session

from pipeline.engine import work
from pipeline.engine.claims import Claim, Owner
from pipeline.engine.errors import ErrorKind, PenstockError, UnitError, UserError
from pipeline.engine.transaction import Tx
from pipeline.engine.work import Changes, Outcome, Work
from pipeline.flows.music import runs
from pipeline.flows.music.library.songs import LibraryError
from pipeline.flows.music.library.sync import sync_libraries
from pipeline.flows.music.models import RUNS
from pipeline.flows.music.states import PIPELINE, PipelineEvent
from pipeline.flows.music.work.batch import policy
from pipeline.settings import Settings
from pipeline.storage.context import Context


def _lease_s(settings: Settings) -> float:
    return settings.music.lease_s


def _after(session: Session, run: Any, changes: Changes, _now: datetime) -> None:
    """A run whose sync failed has ended: the next one may start."""
    if changes.failed:
        session.execute(update(RUNS).where(RUNS.c.id == run.id).values(active=None, outcome="failed"))


SYNC_WORK = Work(
    name="sync",
    table=RUNS,
    machine=PIPELINE,
    claim=PipelineEvent.CLAIM,
    done=PipelineEvent.SYNC_COMPLETE,
    fail=PipelineEvent.FAIL,
    wait=PipelineEvent.WAIT,
    give_back=PipelineEvent.GIVE_BACK,
    scope=RUNS.c.id,
    lock=runs.lock,
    order=(RUNS.c.id,),
    policy=policy,
    lease_s=_lease_s,
    lost="the worker was lost while it synced the library",
    after=_after,
)


class ClaimLost(PenstockError):
    """The run was stopped, paused or taken over meanwhile. The songs that were read stay."""


class SyncUnit(NamedTuple):
    """A run whose sync is claimed."""

    run_id: str
    attempt: int
    claim: Claim


def sync_run(context: Context, run_id: str, owner: Owner) -> None:
    """Sync for a run if it waits for that. Failures end on the row."""
    unit = claim(context, run_id, owner)
    if unit is None:
        return
    try:
        report = sync_libraries(context, lambda seen, total: _renew(context, unit))  # noqa: ARG005
        values = {"synced": True, "attempts": 0, "sync_report": json.dumps(asdict(report))}
        ended = Outcome(*unit, values=values)
    except ClaimLost:
        return
    except UserError as error:
        passes = isinstance(error, LibraryError) and error.transient
        kind = ErrorKind.TRANSIENT if passes else ErrorKind.PERMANENT
        ended = Outcome(*unit, UnitError(str(error), kind=kind, code=error.code))
    _settle(context, ended)


def claim(context: Context, run_id: str, owner: Owner) -> SyncUnit | None:
    """Claim a run that waits for its sync; None if it does not."""

    def act(session: Tx) -> SyncUnit | None:
        run = runs.lock(session, run_id)
        if run is None:
            return None
        now, settings = context.db.now(), context.settings
        work.give_back_earlier(session, SYNC_WORK, run, run_id, owner, settings, now)
        held = work.new_claim(SYNC_WORK, owner, settings, now)
        rows = work.claim(session, SYNC_WORK, run_id, held, now)
        if not rows:
            session.launch("music", run_id)  # something else may be due
        return SyncUnit(run_id, rows[0].attempts, held) if rows else None

    return context.db.run(act)


def _renew(context: Context, unit: SyncUnit) -> None:
    until = context.db.now() + timedelta(seconds=_lease_s(context.settings))

    def act(session: Tx) -> bool:
        holds = work.renew(session, SYNC_WORK, unit.run_id, unit.claim, until)
        if not holds:
            session.launch("music", unit.run_id)  # a resume could not launch it: this message held its place
        return holds

    if not context.db.run(act):
        raise ClaimLost


def _settle(context: Context, outcome: Outcome) -> None:
    """Write how the sync ended, if its claim still holds. The run goes on, or is woken for another try."""

    def act(session: Tx) -> None:
        run = runs.lock(session, outcome.id)
        if run is not None:
            changes = work.settle(session, SYNC_WORK, run, [outcome], context.settings, context.db.now())
            session.launch("music", run.id)
            session.wake_in("music", changes.retry_in_s)

    context.db.run(act)
