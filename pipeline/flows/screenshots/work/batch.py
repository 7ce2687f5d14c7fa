"""Shared by both steps of a batch, analysis and expansion: its lock, lease, notes and events.

Every transaction on a batch locks its row first, so that exactly one of them counts its last shard.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import structlog
from redis import RedisError
from sqlalchemy import ColumnElement, Table, select
from sqlalchemy.orm import Session

from pipeline.engine import events
from pipeline.engine import work as units
from pipeline.engine.states import Machine
from pipeline.engine.work import Unit, Work
from pipeline.flows.screenshots.models import BATCHES, SHOTS
from pipeline.flows.screenshots.rules.batches import run_ms, total_attempts
from pipeline.flows.screenshots.scopes import FLOW
from pipeline.flows.screenshots.states import WorkEvent, WorkStatus
from pipeline.flows.screenshots.work import retry
from pipeline.settings import Settings
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
MAX_NOTES = 50
LEASE_MARGIN_S = 60
ENDED = (WorkStatus.SUCCEEDED, WorkStatus.FAILED, WorkStatus.FAILED_PERMANENT)


def lock(session: Session, batch_id: int) -> Any | None:
    """Lock and return the batch's row until the transaction ends; None if it does not exist."""
    return session.execute(select(BATCHES).where(BATCHES.c.id == batch_id).with_for_update()).one_or_none()


def lease_s(settings: Settings) -> float:
    """Return the lease of a claim in seconds. `outlast` extends it for a longer call."""
    return settings.screenshots.stale_running_s


def outlast(context: Context, work: Work, claimed: Iterable[Unit], provider: str = "") -> None:
    """Let claims last as long as their next call of `provider` may take, or without one, as long as reading a shard's
    text on this machine: the sweep must not give back a running call."""
    settings = context.settings
    profile = settings.providers.get(provider)
    reading_s = settings.screenshots.shard_size * settings.documents.page_timeout_s
    limit_s = LEASE_MARGIN_S + (profile.timeout_s if profile else reading_s)
    if limit_s > lease_s(settings):
        context.db.run(lambda tx: [units.renew(tx, work, unit, limit_s) for unit in claimed])


def kind(
    name: str,
    table: Table,
    machine: Machine[WorkStatus, WorkEvent],
    scope: ColumnElement[Any],
    lock: Callable[[Session, Any], Any | None],
    order: tuple[ColumnElement[Any], ...],
    *where: ColumnElement[bool],
) -> Work:
    """Define a kind of work of this flow; all have the same events, waits and lease."""
    return Work(
        name,
        table,
        machine,
        claim=WorkEvent.CLAIM,
        done=WorkEvent.DONE,
        fail=WorkEvent.FAIL,
        wait=WorkEvent.WAIT,
        give_back=WorkEvent.GIVE_BACK,
        scope=scope,
        lock=lock,
        order=order,
        policy=retry.policy,
        lease_s=lease_s,
        lost=retry.LOST,
        where=where,
    )


def shots_of(session: Session, shot_ids: str) -> list[Any]:
    """Return the frames of a JSON list of ids, in its order, without deleted ones."""
    ids = json.loads(shot_ids)
    by_id = {row.id: row for row in session.execute(select(SHOTS).where(SHOTS.c.id.in_(ids)))}
    return [by_id[shot_id] for shot_id in ids if shot_id in by_id]


def as_notes(notes: Sequence[str]) -> str:
    """Serialise notes for their column, without repeats, at most `MAX_NOTES`."""
    kept = list(dict.fromkeys(notes))
    more = [f"and {len(kept) - MAX_NOTES} more"] if len(kept) > MAX_NOTES else []
    return json.dumps([*kept[:MAX_NOTES], *more], ensure_ascii=False)


def started(context: Context, batch: Any) -> None:
    """Publish `pipeline:batch:started`. Rules: docs/sources/screenshots.md#events."""
    _publish(context, "pipeline:batch:started", batch)


def finished(context: Context, batch_id: int) -> None:
    """Publish `pipeline:batch:finished` with durations, by the batch's state: succeeded, failed (a retry follows) or
    failed_permanent.

    Publishes nothing for a batch in another state: the caller lost its claim, and the batch continues elsewhere.
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
    # Logs redact fields by name: a field called `key` would be hidden.
    log.info(kind, **{("source" if name == "sourceKey" else name): value for name, value in known.items()})
    if context.online:
        # Watchers miss the event while Redis is down; the rows have all data.
        with suppress(RedisError):
            events.publish(context.redis, FLOW, kind, **known)
