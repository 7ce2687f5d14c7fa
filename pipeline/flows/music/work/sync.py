"""The sync stage of a run: claimed, so that one worker does it, and renewed page by page."""

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from pipeline.engine import claims
from pipeline.engine.claims import FREE, Claim, Owner, held_by, new_claim
from pipeline.engine.errors import PenstockError, UserError
from pipeline.flows.music import recovery, runs
from pipeline.flows.music.library import sync
from pipeline.flows.music.library.songs import LibraryError, SyncReport
from pipeline.flows.music.models import RUNS
from pipeline.flows.music.states import PIPELINE, PipelineEvent
from pipeline.storage.context import Context


class ClaimLost(PenstockError):
    """The run was stopped, paused or taken over meanwhile. The songs that were read stay."""


def sync_run(context: Context, run_id: str, owner: Owner) -> float | None:
    """Sync for a run if it waits for that. Seconds until another try, if one is needed. Failures end on the row."""
    claim = _claim(context, run_id, owner)
    if claim is None:
        return None
    try:
        report = sync.sync(context, lambda seen, total: _renew(context, run_id, claim))  # noqa: ARG005
        context.db.run(lambda session: _commit(session, run_id, claim, report))
    except ClaimLost:
        return None
    except UserError as error:
        failure = error if isinstance(error, LibraryError) else LibraryError(str(error), code=error.code)
        return recovery.fail_sync(context, run_id, claim.id, failure)
    return None


def _claim(context: Context, run_id: str, owner: Owner) -> Claim | None:
    def work(session: Session) -> Claim | None:
        now = datetime.now(UTC)
        if runs.lock(session, run_id) is None:
            return None
        # The same message once more: its worker died.
        mine = (RUNS.c.id == run_id, RUNS.c.request_id == owner.request_id)
        session.execute(update(RUNS).where(*mine).values(**FREE))
        claim = new_claim(owner, now, context.settings.music.lease_s)
        rows = claims.take(
            session, RUNS, PIPELINE, PipelineEvent.CLAIM, RUNS.c.id == run_id, RUNS.c.claim_id.is_(None),
            claim=claim, order_by=RUNS.c.id, limit=1, now=now, updated_at=now,
        )  # fmt: skip
        return claim if rows else None

    return context.db.run(work)


def _renew(context: Context, run_id: str, claim: Claim) -> None:
    until = datetime.now(UTC) + timedelta(seconds=context.settings.music.lease_s)
    held = (
        update(RUNS)
        .where(RUNS.c.id == run_id, held_by(RUNS, claim))
        .values(lease_until=until)
        .returning(RUNS.c.id)
    )  # fmt: skip
    if context.db.run(lambda session: session.execute(held).one_or_none()) is None:
        raise ClaimLost


def _commit(session: Session, run_id: str, claim: Claim, report: SyncReport) -> None:
    run = session.execute(select(RUNS).where(RUNS.c.id == run_id, held_by(RUNS, claim)).with_for_update()).one_or_none()
    if run is None:
        raise ClaimLost
    done = {**FREE, "synced": True, "attempts": 0, "error": None, "sync_report": json.dumps(asdict(report))}
    runs.move(session, run, PipelineEvent.SYNC_COMPLETE, datetime.now(UTC), **done)
