"""Ends a run that waits for metadata after its provider was removed from the settings."""

import structlog
from sqlalchemy import select

from pipeline.engine.transaction import Tx
from pipeline.flows.music import runs
from pipeline.flows.music.models import BATCHES
from pipeline.flows.music.routes import METADATA_STEPS
from pipeline.flows.music.states import LIVE, OPEN, PipelineEvent
from pipeline.flows.music.work import result
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
ERROR = (
    "no provider writes metadata any more: set PENSTOCK_MUSIC__PROVIDER to one of PENSTOCK_PROVIDERS__…, and start "
    "again (`penstock music start`). Penstock keeps all results"
)


def fail_unserved(context: Context) -> list[str]:
    """End the active run as failed if it waits for metadata without a configured provider; return a list of its id,
    else an empty one."""
    if context.settings.music.provider:
        return []

    def work(tx: Tx) -> list[str]:
        run = runs.lock_active(tx)
        if run is None or run.status not in LIVE:
            return []
        waits = (BATCHES.c.run_id == run.id, BATCHES.c.status.in_(OPEN), BATCHES.c.step.in_(METADATA_STEPS))
        if tx.execute(select(BATCHES.c.id).where(*waits).limit(1)).first() is None:
            return []
        runs.end(tx, run, PipelineEvent.STOP, "failed", ERROR)
        result.cancel_idle(tx, run.id)
        return [run.id]

    ended = context.db.run(work)
    if ended:
        log.error("music.without_provider", run=ended[0])
    return ended
