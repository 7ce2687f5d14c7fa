"""What the sweeper does for screenshots, and dead letters: listed with their reasons, and replayed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog
from sqlalchemy import Table, and_, func, or_, select, update
from sqlalchemy.orm import Session

from pipeline.engine.claims import FREE, lost
from pipeline.engine.errors import UserError
from pipeline.flows.screenshots.graph.models import NODES
from pipeline.flows.screenshots.models import BATCHES, SHARDS, SHOTS
from pipeline.flows.screenshots.states import BATCH, NODE, SCREENSHOT, SHARD, WorkEvent, WorkStatus
from pipeline.flows.screenshots.work import outcome, retry
from pipeline.flows.screenshots.work.outcome import WorkMachine
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
CLAIMED: dict[str, tuple[WorkMachine, Table]] = {
    "batch": (BATCH, BATCHES), "shard": (SHARD, SHARDS), "merge": (NODE, NODES),
}  # fmt: skip
KINDS = ("batch", "merge", "vector")
"""Kinds of dead letters; merges and vectors are named by their nodes."""
_BACK: dict[str, Any] = {"error": None, "attempts": 0, "next_run_at": None}


@dataclass(frozen=True)
class DeadLetter:
    """Work that was given up, and why. `kind`: one of `KINDS`; a shard's reason is in its batch's."""

    kind: str
    id: int
    reason: str
    attempts: int
    at: datetime


def free_lost(context: Context, absent: set[str]) -> int:
    """Give back what is held by absent workers or beyond its lease, or give it up when its attempts are used up."""
    now = datetime.now(UTC)
    with context.db.read() as session:
        if not any(outcome.any_lost(session, table, now, absent) for _, table in CLAIMED.values()):
            return 0
    freed = context.db.run(lambda session: _free(context, session, absent))
    log.warning("screenshots.given_back", claims=freed)
    return freed


def _free(context: Context, session: Session, absent: set[str]) -> int:
    now = datetime.now(UTC)
    rules = retry.policy(context.settings.screenshots)
    # The batches' rows first, in order, as everybody does who locks both.
    shards = select(SHARDS.c.batch_id).where(lost(SHARDS, now, absent))
    concerned = or_(lost(BATCHES, now, absent), BATCHES.c.id.in_(shards))
    ids = (
        session.execute(select(BATCHES.c.id).where(concerned).order_by(BATCHES.c.id).with_for_update()).scalars().all()
    )
    freed = 0
    for machine, table in CLAIMED.values():
        back, given_up = outcome.free_lost(session, machine, table, lost(table, now, absent), rules, now)
        freed += len(back) + len(given_up)
    # Their messages are gone with their workers.
    session.execute(update(BATCHES).where(BATCHES.c.id.in_(ids)).values(launches=0, launch_due_at=None))
    return freed


def release_worker(context: Context, worker_ids: Iterable[str]) -> None:
    """Give back everything that workers which are ending still hold; no attempt is counted."""
    ids = list(worker_ids)

    def work(session: Session) -> None:
        now = datetime.now(UTC)
        held = {
            name: and_(table.c.worker_id.in_(ids), table.c.claim_id.is_not(None))
            for name, (_, table) in CLAIMED.items()
        }
        shards = select(SHARDS.c.batch_id).where(held["shard"])
        concerned = or_(held["batch"], BATCHES.c.id.in_(shards))
        found = select(BATCHES.c.id).where(concerned).order_by(BATCHES.c.id).with_for_update()
        batches = session.execute(found).scalars().all()
        for name, (machine, table) in CLAIMED.items():
            values = {**FREE, "attempts": table.c.attempts - 1, "next_run_at": None, "updated_at": now}
            machine.move(session, table, WorkEvent.GIVE_BACK, held[name], **values)
        session.execute(update(BATCHES).where(BATCHES.c.id.in_(batches)).values(launches=0, launch_due_at=None))

    context.db.run(work, patience_s=5)


def dead_letters(context: Context, limit: int = 100) -> list[DeadLetter]:
    """What was given up, the latest first."""
    found: list[DeadLetter] = []
    with context.db.read() as session:
        for kind in ("batch", "merge"):
            table = CLAIMED[kind][1]
            query = select(table).where(table.c.status == WorkStatus.FAILED_PERMANENT)
            rows = session.execute(query.order_by(table.c.updated_at.desc()).limit(limit))
            found += [DeadLetter(kind, row.id, row.error or "", row.attempts, row.updated_at) for row in rows]
        failed = select(NODES).where(NODES.c.vector_status == "failed").order_by(NODES.c.updated_at.desc()).limit(limit)
        found += [
            DeadLetter("vector", row.id, row.vector_error or "", 1, row.updated_at) for row in session.execute(failed)
        ]
    return sorted(found, key=lambda letter: letter.at, reverse=True)[:limit]


def replay(context: Context, kind: str, ids: Sequence[int] | None = None) -> list[int]:
    """Try dead letters again: these, or all of the kind; the ids of those that were. What was paid for stays.

    Raises `UserError`, with nothing changed, if one of `ids` is no dead letter.
    """
    if kind not in KINDS:
        raise UserError(f"{kind} is no kind of dead letter: {', '.join(KINDS)}", code="usage")

    def work(session: Session) -> list[int]:
        now = datetime.now(UTC)
        done = _wait_again(session, kind, ids, now)
        missing = sorted(set(ids or ()) - set(done))
        if missing:
            raise UserError(f"no dead letters: {', '.join(map(str, missing))}", code="unknown_dead_letter")
        if kind == "batch":
            # Frames whose files are gone stay as they are: nothing can be looked at.
            there = and_(SHOTS.c.batch_id.in_(done), SHOTS.c.storage_state == "stored")
            SCREENSHOT.move(session, SHOTS, WorkEvent.RETRY, there, error=None, updated_at=now)
            session.execute(update(BATCHES).where(BATCHES.c.id.in_(done)).values(launches=0, launch_due_at=None))
            unfinished = and_(SHARDS.c.batch_id.in_(done), SHARDS.c.status != WorkStatus.SUCCEEDED)
            session.execute(update(SHARDS).where(unfinished).values(attempts=0, next_run_at=None))
        return done

    return context.db.run(work)


def _wait_again(session: Session, kind: str, ids: Sequence[int] | None, now: datetime) -> list[int]:
    if kind == "vector":
        mine = [NODES.c.vector_status == "failed", *([NODES.c.id.in_(ids)] if ids is not None else [])]
        again = update(NODES).where(*mine).values(vector_status="waiting", vector_error=None, updated_at=now)
        return sorted(session.execute(again.returning(NODES.c.id)).scalars())
    machine, table = CLAIMED[kind]
    which = [table.c.id.in_(ids)] if ids is not None else []
    rows = machine.move_returning(session, table, WorkEvent.RETRY, *which, **_BACK, updated_at=now)
    return sorted(row.id for row in rows)


def next_wait_s(context: Context) -> float | None:
    """Seconds until the next batch or merge is due, if one waits."""
    now = datetime.now(UTC)
    with context.db.read() as session:
        due = [
            at
            for table in (BATCHES, NODES)
            if (at := session.execute(select(func.min(table.c.next_run_at)).where(table.c.next_run_at > now)).scalar())
        ]
    return (min(due) - now).total_seconds() if due else None
