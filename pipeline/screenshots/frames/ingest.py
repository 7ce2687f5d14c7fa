"""Taking a frame in: its file is copied first, its row and its batch come in one transaction, messages after that."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from pipeline.engine.errors import UserError
from pipeline.engine.tables import insert_if_absent
from pipeline.screenshots.frames import buffering, storage
from pipeline.screenshots.models import MAX_SOURCE, REJECTIONS, SHOTS, SOURCES
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
Fingerprint = Callable[[Path], str]
"""A file's perceptual hash: 256 bits, hexadecimal. Raises `UserError` for what is no picture."""

_SOURCE = re.compile(r"(screen|window):[^\s:/\\]{1,100}")


@dataclass(frozen=True)
class Frame:
    """What is known of a frame when it is captured. `ts` by the clock of whoever captured it."""

    source: str
    ts: datetime
    app: str = ""
    window_title: str = ""


@dataclass(frozen=True)
class Taken:
    """What became of a frame. `batches`: made by it, to be launched. A frame that is known is not taken again."""

    accepted: bool
    shot_id: int | None = None
    reason: str = ""
    """`duplicate`, `inactive`, or `known`; empty if it was accepted now."""
    distance: int | None = None
    nearest_id: int | None = None
    batches: list[int] = field(default_factory=list)


def check_source(key: str) -> str:
    """`screen:ID` or `window:ID`. Raises `UserError` for anything else."""
    if not _SOURCE.fullmatch(key) or len(key) > MAX_SOURCE:
        raise UserError(f"{key!r} is no source: screen:ID or window:ID", code="bad_source")
    return key


def ingest(context: Context, path: Path, frame: Frame, fingerprint: Fingerprint) -> Taken:
    """Take a copy of the file, and a row for it if it is neither known nor a duplicate, and its source is active."""
    check_source(frame.source)
    settings = context.settings
    file = storage.take_in(settings, path)
    stored = storage.path_of(settings, file)
    kept = False
    try:
        # Everything is decided on the copy: the original may change under our hands.
        with stored.open("rb") as opened:
            sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
        row = {
            "source_key": frame.source, "ts": frame.ts, "file": file, "sha256": sha256, "phash": fingerprint(stored),
            "size_bytes": stored.stat().st_size, "app": frame.app[:200], "window_title": frame.window_title[:500],
        }  # fmt: skip
        taken = context.db.run(lambda session: _decide(context, session, row))
        kept = taken.accepted
    finally:
        if not kept:
            storage.discard(settings, [file])
    log.info("screenshot.taken", source=frame.source, shot=taken.shot_id, reason=taken.reason, batches=taken.batches)
    return taken


def _decide(context: Context, session: Session, row: dict[str, Any]) -> Taken:
    now = datetime.now(UTC)
    source = _lock_source(session, row["source_key"], now)
    same = select(SHOTS).where(
        SHOTS.c.source_key == source.key, SHOTS.c.ts == row["ts"], SHOTS.c.sha256 == row["sha256"]
    )
    known = session.execute(same).one_or_none()
    if known is not None:
        # Our own row, if the transaction is repeated after a commit whose answer was lost: then the file is wanted.
        made = known.file == row["file"]
        found = [known.batch_id] if made and known.batch_id else []
        return Taken(made, known.id, "" if made else "known", batches=found)
    if not source.active:
        return _refuse(session, row, "inactive", None, None, now)
    rules = context.settings.screenshots
    distance, nearest = _nearest(session, row, rules.dedup_frames)
    if distance is not None and distance <= rules.dedup_threshold:
        return _refuse(session, row, "duplicate", distance, nearest, now)
    values = {**row, "created_at": now, "updated_at": now}
    shot_id = session.execute(insert(SHOTS).values(**values).returning(SHOTS.c.id)).scalar_one()
    made_batches = buffering.batch_source(session, source.key, rules, now)
    return Taken(True, shot_id, distance=distance, nearest_id=nearest, batches=made_batches)


def _lock_source(session: Session, key: str, now: datetime) -> Any:
    insert_if_absent(session, SOURCES, {"key": key, "active": True, "created_at": now, "seen_at": now})
    source = buffering.lock_source(session, key)
    session.execute(update(SOURCES).where(SOURCES.c.key == key).values(seen_at=now))
    return source


def _nearest(session: Session, row: dict[str, Any], frames: int) -> tuple[int | None, int | None]:
    """(bits that differ, id) of the late frame that is most like this one. Late by arrival: clocks go backwards."""
    late = select(SHOTS.c.id, SHOTS.c.phash).where(SHOTS.c.source_key == row["source_key"])
    bits = int(row["phash"], 16)
    found = [
        ((bits ^ int(shot.phash, 16)).bit_count(), shot.id)
        for shot in session.execute(late.order_by(SHOTS.c.id.desc()).limit(frames))
    ]
    return min(found) if found else (None, None)


def _refuse(
    session: Session, row: dict[str, Any], reason: str, distance: int | None, nearest: int | None, now: datetime
) -> Taken:
    kept = {name: row[name] for name in ("source_key", "ts", "sha256", "phash")}
    ledger = {**kept, "reason": reason, "distance": distance, "nearest_id": nearest, "created_at": now}
    session.execute(insert(REJECTIONS).values(**ledger))
    return Taken(False, None, reason, distance, nearest)


def set_active(context: Context, key: str, active: bool) -> None:
    """From now on, frames of this source are taken, or refused. What it has in its buffer is batched either way."""
    check_source(key)

    def work(session: Session) -> None:
        now = datetime.now(UTC)
        insert_if_absent(session, SOURCES, {"key": key, "active": active, "created_at": now, "seen_at": now})
        session.execute(update(SOURCES).where(SOURCES.c.key == key).values(active=active))

    context.db.run(work)
