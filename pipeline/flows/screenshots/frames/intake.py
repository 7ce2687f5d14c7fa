"""Taking a frame in: judged, its file written, then its row and its batch in one transaction; messages after that."""

import hashlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import Row, insert, select, update
from sqlalchemy.orm import Session

from pipeline.engine.errors import UnitError, UserError
from pipeline.engine.tables import insert_if_absent
from pipeline.flows.screenshots.frames import buffer, files, fingerprint, rejections
from pipeline.flows.screenshots.frames.fingerprint import Fingerprint
from pipeline.flows.screenshots.frames.sketches import Recent, differs
from pipeline.flows.screenshots.live import screenshots_in_force
from pipeline.flows.screenshots.models import SHOTS, SOURCES
from pipeline.flows.screenshots.rules.batches import is_source_key
from pipeline.flows.screenshots.rules.duplicates import Judgement, Pressure, Seen, judge, recent
from pipeline.flows.screenshots.rules.exclusions import excluded_by
from pipeline.flows.screenshots.states import Verdict
from pipeline.settings import ScreenshotSettings
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
MAX_APP, MAX_TITLE = 200, 500
_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)
_sketches = Recent()


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
    """`duplicate`, `inactive`, `excluded` or `known`; empty if it was accepted now."""
    distance: int | None = None
    nearest_id: int | None = None
    threshold: int | None = None
    """Bits that it was judged by: wider while analysis is behind."""
    batches: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Candidate:
    """A frame that was read: its picture is sound."""

    frame: Frame
    data: bytes = field(repr=False)
    sha256: str
    seen: Fingerprint


def check_source(key: str) -> str:
    """`screen:ID` or `window:ID`. Raises `UserError` for anything else."""
    if not is_source_key(key):
        raise UserError(f"{key!r} is no source: screen:ID or window:ID", code="bad_source")
    return key


def ingest(context: Context, picture: Path | bytes, frame: Frame) -> Taken:
    """Take a frame if its source is active and it is neither excluded, known, nor a duplicate; we keep a copy.

    Raises `UserError`: `bad_source`, `bad_time`, `not_found`, `not_a_file`, `io_error`; and, with a row in the ledger,
    `not_an_image`, `corrupt`, `too_many_pixels`, `too_large`.
    """
    check_source(frame.source)
    if frame.ts.tzinfo is None:
        raise UserError("the time of a frame needs its zone", code="bad_time")
    if not _EARLIEST <= frame.ts < _LATEST:
        # Near the calendar's ends no time can be counted back from it: its source could never be batched again.
        raise UserError("the time of a frame must be from 1970 to 2999", code="bad_time")
    rule = excluded_by(frame.app, frame.window_title, context.settings.screenshots)
    taken = _exclude(context, frame, rule) if rule else _take(context, _read(context, picture, frame))
    log.info("screenshot.taken", source=frame.source, shot=taken.shot_id, reason=taken.reason, batches=taken.batches)
    return taken


def _exclude(context: Context, frame: Frame, rule: str) -> Taken:
    """Nothing of the frame is kept, nor even looked at: a hash tells whether two were alike."""
    now = datetime.now(UTC)
    context.db.run(lambda session: rejections.note(session, frame.source, frame.ts, "excluded", now, detail=rule))
    return Taken(False, reason="excluded")


def _read(context: Context, picture: Path | bytes, frame: Frame) -> _Candidate:
    data, sha256 = b"", ""
    try:
        data = files.read(picture, context.settings.screenshots.max_image_mb)
        sha256 = hashlib.sha256(data).hexdigest()
        seen = fingerprint.read_frame(data)
    except UnitError as error:
        now, why = datetime.now(UTC), str(error)
        context.db.run(
            lambda session: rejections.note(
                session, frame.source, frame.ts, Verdict.REFUSED, now, sha256=sha256, detail=why
            )
        )
        log.info("screenshot.refused", source=frame.source, code=error.code)
        name = str(picture) if isinstance(picture, Path) else f"the frame of {frame.source}"
        raise UserError(f"{name}: {error}", code=error.code) from error
    named = replace(frame, app=_plain(frame.app)[:MAX_APP], window_title=_plain(frame.window_title)[:MAX_TITLE])
    return _Candidate(named, data, sha256, seen)


def _plain(text: str) -> str:
    """Without what a database refuses (NUL, lone surrogates) and no window shows."""
    return text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)


def _take(context: Context, candidate: _Candidate) -> Taken:
    settings, rules = context.settings, screenshots_in_force(context)
    file = files.write(settings, candidate.data, candidate.seen.format) if _looks_new(context, candidate, rules) else ""
    taken = context.db.run(lambda session: _decide(context, session, candidate, file, rules))
    if taken is None:
        # In between, what it was like became too old, or its source active again.
        file = files.write(settings, candidate.data, candidate.seen.format)
        taken = context.db.run(lambda session: _decide(context, session, candidate, file, rules))
    assert taken is not None
    # After an error the file stays: the row may have been committed. If not, `remove_orphans` finds the file.
    if taken.accepted:
        _sketches.keep(file, candidate.seen.sketch)
    elif file:
        files.discard(settings, [file])
    return taken


def _looks_new(context: Context, candidate: _Candidate, rules: ScreenshotSettings) -> bool:
    """Whether it will be accepted, as far as one can see without the lock: so a duplicate writes no file."""
    with context.db.read() as session:
        source = session.execute(select(SOURCES).where(SOURCES.c.key == candidate.frame.source)).one_or_none()
        if source is None:
            return True
        if not source.active or _known(session, candidate) is not None:
            return False
        pressed = buffer.pressure_on(session, source, rules)
        return _judge(context, session, candidate, pressed, rules, datetime.now(UTC)).verdict is Verdict.ACCEPTED


def _decide(
    context: Context, session: Session, candidate: _Candidate, file: str, rules: ScreenshotSettings
) -> Taken | None:
    """What becomes of it, under the source's lock. None: it is to be accepted, but there is no file yet."""
    now = datetime.now(UTC)
    frame = candidate.frame
    source = _lock_source(session, frame.source, now)
    known = _known(session, candidate)
    if known is not None:
        # Our own row, if the transaction is repeated after a commit whose answer was lost: then the file is wanted.
        made = bool(file) and known.file == file
        found = [known.batch_id] if made and known.batch_id else []
        return Taken(made, known.id, "" if made else "known", batches=found)
    pressed = buffer.pressure_on(session, source, rules)
    session.execute(update(SOURCES).where(SOURCES.c.key == source.key).values(seen_at=now, pressure=pressed.level))
    if not source.active:
        _note(session, candidate, "inactive", None, now)
        return Taken(False, reason="inactive")
    judged = _judge(context, session, candidate, pressed, rules, now)
    if judged.verdict is Verdict.DUPLICATE:
        _note(session, candidate, judged.verdict, judged, now)
        return Taken(False, None, "duplicate", judged.distance, judged.nearest, judged.threshold)
    if not file:
        return None
    shot_id = _insert(session, candidate, file, now)
    batches = buffer.batch_source(session, source, rules, now)
    return Taken(True, shot_id, "", judged.distance, judged.nearest, judged.threshold, batches)


def _lock_source(session: Session, key: str, now: datetime) -> Row[Any]:
    insert_if_absent(session, SOURCES, {"key": key, "active": True, "created_at": now, "seen_at": now})
    return buffer.lock_source(session, key)


def _known(session: Session, candidate: _Candidate) -> Any:
    same = select(SHOTS.c.id, SHOTS.c.file, SHOTS.c.batch_id).where(
        SHOTS.c.source_key == candidate.frame.source, SHOTS.c.ts == candidate.frame.ts,
        SHOTS.c.sha256 == candidate.sha256,
    )  # fmt: skip
    return session.execute(same).one_or_none()


def _judge(
    context: Context, session: Session, candidate: _Candidate, pressed: Pressure, rules: ScreenshotSettings,
    now: datetime,
) -> Judgement:  # fmt: skip
    columns = (SHOTS.c.id, SHOTS.c.phash, SHOTS.c.created_at, SHOTS.c.file, SHOTS.c.sha256)
    late = select(*columns).where(SHOTS.c.source_key == candidate.frame.source).order_by(SHOTS.c.id.desc())
    rows = {row.id: row for row in session.execute(late.limit(rules.dedup_frames))}
    frames = recent([Seen(row.id, row.phash, row.created_at) for row in rows.values()], now, rules)
    return judge(
        candidate.seen.phash, frames, pressed.threshold, lambda frame: _same(context, candidate, rows[frame.id])
    )


def _same(context: Context, candidate: _Candidate, row: Any) -> bool:
    """A closer look at a stored frame that hashes alike. Without its file, the hash is all there is."""
    if row.sha256 == candidate.sha256:
        return True
    path = files.path_of(context.settings, row.file)
    try:
        sketch = _sketches.get(row.file, lambda: fingerprint.read_frame(path.read_bytes()).sketch)
    except (OSError, UnitError):
        return True
    return not differs(candidate.seen.sketch, sketch)


def _insert(session: Session, candidate: _Candidate, file: str, now: datetime) -> int:
    frame = candidate.frame
    row = {
        "source_key": frame.source, "ts": frame.ts, "file": file, "sha256": candidate.sha256,
        "phash": candidate.seen.phash, "size_bytes": len(candidate.data), "app": frame.app,
        "window_title": frame.window_title, "created_at": now, "updated_at": now,
    }  # fmt: skip
    shot_id: int = session.execute(insert(SHOTS).values(**row).returning(SHOTS.c.id)).scalar_one()
    return shot_id


def _note(session: Session, candidate: _Candidate, reason: str, judged: Judgement | None, now: datetime) -> None:
    frame = candidate.frame
    rejections.note(
        session, frame.source, frame.ts, reason, now, sha256=candidate.sha256, phash=candidate.seen.phash, judged=judged
    )


def set_active(context: Context, key: str, active: bool) -> None:
    """From now on, frames of this source are taken, or refused. What it has in its buffer is batched either way."""
    check_source(key)

    def work(session: Session) -> None:
        now = datetime.now(UTC)
        insert_if_absent(session, SOURCES, {"key": key, "active": active, "created_at": now, "seen_at": now})
        session.execute(update(SOURCES).where(SOURCES.c.key == key).values(active=active))

    context.db.run(work)
