"""Events of batches: begun, and ended with how long each part took. Source 000, sections 7.1 and 7.2."""

import json
from contextlib import suppress
from typing import Any

import structlog
from redis import RedisError
from sqlalchemy import select

from pipeline.engine import events
from pipeline.flows.screenshots.models import BATCHES
from pipeline.flows.screenshots.rules.batches import run_ms, total_attempts
from pipeline.flows.screenshots.scopes import FLOW
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
ENDED = (WorkStatus.SUCCEEDED, WorkStatus.FAILED, WorkStatus.FAILED_PERMANENT)


def started(context: Context, batch: Any) -> None:
    """`pipeline:batch:started`."""
    _publish(context, "pipeline:batch:started", batch)


def finished(context: Context, batch_id: int) -> None:
    """`pipeline:batch:finished`: succeeded, failed (to be tried again), or failed_permanent.

    Publishes nothing about a batch that goes on elsewhere, after the caller's claim was taken away.
    """
    with context.db.read() as session:
        batch = session.execute(select(BATCHES).where(BATCHES.c.id == batch_id)).one_or_none()
    if batch is None or batch.status not in ENDED:
        return
    total_ms = run_ms(batch, context.db.now())
    fields = {"status": batch.status, "totalMs": total_ms, "vlmMs": batch.vlm_ms, "textLlmMs": batch.text_ms}
    if batch.error:
        fields["errorMessage"] = batch.error[:500]
    _publish(context, "pipeline:batch:finished", batch, **fields)


def _publish(context: Context, kind: str, batch: Any, **fields: Any) -> None:
    shots = len(json.loads(batch.shot_ids))
    known = {"batchDbId": batch.id, "batchId": batch.correlation_id, "sourceKey": batch.source_key}
    known |= {"attempts": total_attempts(batch), "screenshotCount": shots, **fields}
    # Fields of logs are redacted by name: one that is called a key would not be shown.
    log.info(kind, **{("source" if name == "sourceKey" else name): value for name, value in known.items()})
    if context.online:
        # Watchers miss it while Redis is away; the rows have everything.
        with suppress(RedisError):
            events.publish(context.redis, FLOW, kind, **known)
