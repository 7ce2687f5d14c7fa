"""Deletes original frames some days after their analysis, or at once. Their texts and nodes stay."""

from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, and_, func, select, update

from pipeline.engine.errors import UnitError
from pipeline.engine.transaction import Tx
from pipeline.flows.screenshots.frames import files
from pipeline.flows.screenshots.models import REJECTIONS, SHOTS
from pipeline.flows.screenshots.states import SCREENSHOT, WorkEvent, WorkStatus
from pipeline.storage.context import Context
from pipeline.storage.retention import Retention, Rule, rows

PORTION = 200
MISSING = "its file was deleted before its analysis"


def retained(context: Context) -> list[Retention]:
    """Return the rules of retention for original frames and for the ledger of rejections."""
    duration = f"{context.settings.screenshots.retention_days:g} days after their analysis"
    return [Retention("frames", duration, count_due, expire), ledger(context)]


def ledger(context: Context) -> Retention:
    """Return the rule of retention for the ledger of rejections: `ledger_days`."""
    rule = Rule(days=context.settings.screenshots.ledger_days)
    return rows("rejections", rule, REJECTIONS.c.id, REJECTIONS.c.created_at)


def expire(context: Context) -> int:
    """Delete the files of original frames whose time of retention is over; return how many.

    Their rows stay, and change first, so that none claims a missing file.
    """
    total = 0
    while True:
        expired = context.db.run(_due)
        files.discard(context.settings, expired)
        total += len(expired)
        if len(expired) < PORTION:
            return total


def count_due(context: Context) -> int:
    """Count the original frames whose time of retention is over, but whose files exist."""
    with context.db.read() as session:
        return session.execute(select(func.count(SHOTS.c.id)).where(_is_due(context.db.now()))).scalar_one()


def _is_due(now: datetime) -> ColumnElement[bool]:
    stored, over = SHOTS.c.storage_state == "stored", SHOTS.c.retention_expires_at <= now
    return and_(stored, over, SHOTS.c.status == WorkStatus.SUCCEEDED)


def _due(tx: Tx) -> list[str]:
    due = select(SHOTS.c.id).where(_is_due(tx.now)).order_by(SHOTS.c.retention_expires_at).limit(PORTION)
    ids = list(tx.execute(due).scalars())
    expired = update(SHOTS).where(SHOTS.c.id.in_(ids), SHOTS.c.storage_state == "stored")
    values = {"storage_state": "deleted", "updated_at": tx.now}
    return list(tx.execute(expired.values(**values).returning(SHOTS.c.file)).scalars())


def image_of(context: Context, shot: Any) -> Path | None:
    """Return the file of a frame (its row); if it is missing, give the frame up and return None.

    Raises `UnitError` (transient) if the whole folder is missing: its disk is not mounted, or is on another host.
    """
    path = files.path_of(context.settings, shot.file)
    if path.is_file():
        return path
    if shot.storage_state == "stored" and not path.parent.is_dir():
        raise UnitError(f"the folder of screenshots is missing: {path.parent}", code="no_folder")
    give_up(context, shot, MISSING)
    return None


def give_up(context: Context, shot: Any, why: str) -> None:
    """Make a frame's analysis a permanent failure, and record its file as missing; its batch continues without it."""

    def work(tx: Tx) -> None:
        this_frame = SHOTS.c.id == shot.id
        stored = update(SHOTS).where(this_frame, SHOTS.c.storage_state == "stored")
        tx.execute(stored.values(storage_state="missing", updated_at=tx.now))
        SCREENSHOT.move(tx, SHOTS, WorkEvent.FAIL, this_frame, error=why, vlm_next_run_at=None, updated_at=tx.now)

    context.db.run(work)
