"""Runs the sync of a run under a claim, which it renews page by page."""

import json
from dataclasses import asdict
from typing import Any

from sqlalchemy import update

from pipeline.engine import work
from pipeline.engine.claims import Owner
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


def _after(tx: Tx, run: Any, changes: Changes) -> None:
    """End a run whose sync failed, so that the next one may start."""
    if changes.failed:
        tx.execute(update(RUNS).where(RUNS.c.id == run.id).values(active=None, outcome="failed"))


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
    """The run was stopped or paused, or another worker claimed it. The songs that were read stay."""


def sync_run(context: Context, run_id: str, owner: Owner) -> None:
    """Sync for a run if it waits for that. Failures go to the row."""
    run = claim(context, run_id, owner)
    if run is None:
        return
    try:
        report = sync_libraries(context, lambda seen, total: _renew(context, run))  # noqa: ARG005
        values = {"synced": True, "attempts": 0, "sync_report": json.dumps(asdict(report))}
        ended = Outcome(run, values=values)
    except ClaimLost:
        return
    except UserError as error:
        passes = isinstance(error, LibraryError) and error.transient
        kind = ErrorKind.TRANSIENT if passes else ErrorKind.PERMANENT
        ended = Outcome(run, UnitError(str(error), kind=kind, code=error.code))
    _settle(context, ended)


def claim(context: Context, run_id: str, owner: Owner) -> Any | None:
    """Claim a run that waits for its sync, and return its row; None if it does not, with a launch of its next stage."""

    def act(tx: Tx) -> Any | None:
        run = runs.lock(tx, run_id)
        if run is None:
            return None
        claimed = work.claim_next(tx, SYNC_WORK, run, owner)
        if claimed is None:
            tx.launch("music", run_id)  # another stage may be due
        return claimed

    return context.db.run(act)


def _renew(context: Context, run: Any) -> None:
    def act(tx: Tx) -> bool:
        holds = work.renew(tx, SYNC_WORK, run)
        if not holds:
            tx.launch("music", run.id)  # a resume could not launch it while this message held the place
        return holds

    if not context.db.run(act):
        raise ClaimLost


def _settle(context: Context, outcome: Outcome) -> None:
    """Write the sync's outcome if its claim still holds, then launch the run or plan a wake-up for its retry."""

    def act(tx: Tx) -> None:
        run = runs.lock(tx, outcome.unit.id)
        if run is not None:
            changes = work.settle(tx, SYNC_WORK, run, outcome)
            tx.launch("music", run.id)
            tx.wake_in("music", changes.retry_in_s)

    context.db.run(act)
