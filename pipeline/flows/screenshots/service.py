"""What one may ask of the flow, each in one transaction: take frames in, switch sources, try again, forget."""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import and_, update
from sqlalchemy.orm import Session

from pipeline.engine.errors import UserError
from pipeline.flows.screenshots.deletion import forget
from pipeline.flows.screenshots.frames import rejections
from pipeline.flows.screenshots.frames.buffer import batch_now
from pipeline.flows.screenshots.frames.intake import Frame, ingest, set_active
from pipeline.flows.screenshots.graph.models import NODES
from pipeline.flows.screenshots.models import BATCHES, SHARDS, SHOTS
from pipeline.flows.screenshots.states import BATCH, NODE, SCREENSHOT, WorkEvent, WorkStatus
from pipeline.storage.context import Context

__all__ = ["DEAD_LETTERS", "batch_now", "forget", "ingest", "leave_out", "replay", "set_active"]

DEAD_LETTERS = ("batch", "merge", "vector")
"""Kinds of dead letters; merges and vectors are named by their nodes."""


def leave_out(context: Context, frame: Frame) -> None:
    """Note in the ledger that a frame was not even captured, since a person excluded what it would have shown."""
    now = datetime.now(UTC)
    context.db.run(lambda session: rejections.note(session, frame.source, frame.ts, "excluded", now))


def replay(context: Context, kind: str, ids: Sequence[int] | None = None) -> list[int]:
    """Try dead letters again: these, or all of the kind; the ids of those that were. What was paid for stays.

    Raises `UserError`, with nothing changed, if one of `ids` is not a dead letter.
    """
    if kind not in DEAD_LETTERS:
        raise UserError(f"{kind} is not a kind of dead letter: {', '.join(DEAD_LETTERS)}", code="usage")

    def work(session: Session) -> list[int]:
        now = datetime.now(UTC)
        again = {"error": None, "attempts": 0, "next_run_at": None, "updated_at": now}
        table = BATCHES if kind == "batch" else NODES
        which = [table.c.id.in_(ids)] if ids is not None else []
        if kind == "vector":
            values = {"vector_status": "waiting", "vector_error": None, "updated_at": now}
            waits = update(NODES).where(NODES.c.vector_status == "failed", *which).values(**values)
            done = sorted(session.execute(waits.returning(NODES.c.id)).scalars())
        else:
            machine = BATCH if kind == "batch" else NODE
            done = sorted(row.id for row in machine.move_returning(session, table, WorkEvent.RETRY, *which, **again))
        missing = sorted(set(ids or ()) - set(done))
        if missing:
            raise UserError(f"not dead letters: {', '.join(map(str, missing))}", code="unknown_dead_letter")
        if kind == "batch":
            # Frames whose files are gone stay as they are: there is nothing to analyse.
            there = and_(SHOTS.c.batch_id.in_(done), SHOTS.c.storage_state == "stored")
            SCREENSHOT.move(session, SHOTS, WorkEvent.RETRY, there, error=None, updated_at=now)
            session.execute(update(BATCHES).where(BATCHES.c.id.in_(done)).values(launches=0, launch_due_at=None))
            unfinished = and_(SHARDS.c.batch_id.in_(done), SHARDS.c.status != WorkStatus.SUCCEEDED)
            session.execute(update(SHARDS).where(unfinished).values(attempts=0, next_run_at=None))
        return done

    return context.db.run(work)
