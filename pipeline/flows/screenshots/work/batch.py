"""A batch's row, as both of its steps know it: the analysis of its shards, and their expansion into nodes.

Every transaction on a batch locks its row first, so that exactly one of them counts its last shard.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Table, select
from sqlalchemy.orm import Session

from pipeline.engine.states import Machine
from pipeline.engine.work import Work
from pipeline.flows.screenshots.models import BATCHES, SHOTS
from pipeline.flows.screenshots.states import WorkEvent, WorkStatus
from pipeline.flows.screenshots.work import retry
from pipeline.settings import Settings

MAX_NOTES = 50


def lock(session: Session, batch_id: int) -> Any | None:
    """The batch's row, locked until the transaction ends; None if there is none (any more)."""
    return session.execute(select(BATCHES).where(BATCHES.c.id == batch_id).with_for_update()).one_or_none()


def lease_s(settings: Settings) -> float:
    """How long a claim holds: longer than any call takes, or recognising the text of a shard's frames here."""
    own = settings.screenshots
    calls_s = [one.timeout_s + 60 for one in settings.providers.values()]
    return max([own.stale_running_s, own.shard_size * settings.documents.page_timeout_s, *calls_s])


def kind(
    name: str,
    table: Table,
    machine: Machine[WorkStatus, WorkEvent],
    scope: ColumnElement[Any],
    lock: Callable[[Session, Any], Any | None],
    order: tuple[ColumnElement[Any], ...],
    *where: ColumnElement[bool],
) -> Work:
    """A kind of work of this flow: all have the same events, waits and lease."""
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
    """The frames of a JSON list of ids that are still there, in its order."""
    ids = json.loads(shot_ids)
    found = {row.id: row for row in session.execute(select(SHOTS).where(SHOTS.c.id.in_(ids)))}
    return [found[shot_id] for shot_id in ids if shot_id in found]


def as_notes(notes: Sequence[str]) -> str:
    """Notes as they are stored: each once, and not too many."""
    kept = list(dict.fromkeys(notes))
    more = [f"and {len(kept) - MAX_NOTES} more"] if len(kept) > MAX_NOTES else []
    return json.dumps([*kept[:MAX_NOTES], *more], ensure_ascii=False)
