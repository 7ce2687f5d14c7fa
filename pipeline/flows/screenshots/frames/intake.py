"""Ingests a frame: judges it, writes its file, then its row."""

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from pipeline.engine import accounts
from pipeline.engine.accounts import CALLER
from pipeline.engine.errors import ErrorKind, UnitError, UserError
from pipeline.engine.tables import insert_if_absent, storable
from pipeline.engine.transaction import ReadTx, Tx
from pipeline.flows.screenshots import costs
from pipeline.flows.screenshots.frames import buffer, files
from pipeline.flows.screenshots.frames.buffer import Pressure
from pipeline.flows.screenshots.live_settings import screenshots_in_force
from pipeline.flows.screenshots.models import REJECTIONS, SHOTS, SOURCES
from pipeline.flows.screenshots.rules.batches import is_source_key
from pipeline.flows.screenshots.rules.duplicates import Judgement, Seen, differs, judge, recent
from pipeline.flows.screenshots.rules.exposure import Placed, exposed
from pipeline.flows.screenshots.scopes import FLOW, Scope, buffer_of
from pipeline.flows.screenshots.states import Verdict
from pipeline.reading.ocr import screen_frames
from pipeline.reading.ocr.fingerprint import Fingerprint, Sketches
from pipeline.reading.sandbox.limits import Wanted
from pipeline.settings import ScreenshotSettings
from pipeline.storage import installation
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
MAX_APP, MAX_TITLE, MAX_DETAIL = 200, 500, 300
_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)
_sketches = Sketches()


@dataclass(frozen=True)
class Frame:
    """A frame's data at its capture. `ts`: by the clock of its source."""

    source: str
    ts: datetime
    app: str = ""
    window_title: str = ""
    original_path: str = ""
    """Path of an added file that stays where it is."""
    windows: tuple[Placed, ...] = ()
    """The windows in the picture, the front one first, if its capture knows them."""


@dataclass(frozen=True)
class Intake:
    """The outcome of an intake. Penstock stores a known frame only once."""

    accepted: bool
    shot_id: int | None = None
    reason: str = ""
    """`duplicate`, `inactive`, `excluded` or `known`; empty if this intake accepted it."""
    distance: int | None = None
    nearest_id: int | None = None
    threshold: int | None = None
    """The threshold in bits, which is higher while analysis lags."""
    ready: bool = False
    """Whether its source has enough frames for a batch."""


def check_source(key: str) -> str:
    """Return the key if it has the form `screen:ID` or `window:ID`. Raises `UserError` for other forms."""
    if not is_source_key(key):
        raise UserError(f"{key!r} is not a source: screen:ID or window:ID", code="bad_source")
    return key


def excluded_by(app: str, window_title: str, rules: ScreenshotSettings) -> str:
    """Return the setting that excludes such a frame, `excluded_apps` or `excluded_titles`; empty if none does."""
    for text, setting in ((app, "excluded_apps"), (window_title, "excluded_titles")):
        # Not `fnmatch`: its case sensitivity depends on the system.
        if any(fnmatchcase(text.casefold(), pattern.casefold()) for pattern in getattr(rules, setting)):
            return setting
    return ""


def _exclusion(frame: Frame, rules: ScreenshotSettings) -> str:
    """Return the setting that excludes a frame, also for a window that is visible behind the front one."""
    if rule := excluded_by(frame.app, frame.window_title, rules):
        return rule
    hits: list[str] = []

    def excludes(app: str, title: str) -> str:
        rule = excluded_by(app, title, rules)
        hits.extend([rule] if rule else [])
        return rule

    parts = exposed(frame.windows, excludes)
    return hits[0] if parts is None or parts else ""


def ingest(
    context: Context, picture: Path | bytes, frame: Frame, *, wanted: Wanted = lambda: True, name: str = ""
) -> Intake:
    """Store a copy of a frame if its source is active and the frame is not excluded, known or a duplicate; otherwise
    return an `Intake` with the reason.

    Only a child process decodes the picture; `wanted` is called twice a second until it ends. `name`: replaces the path
    in errors.

    Raises `UserError`: `bad_source`, `bad_time`, `not_found`, `not_a_file`, `io_error`, `installation` (the data folder
    of another database), `quota`; with a row in the ledger, the codes of a bad picture, such as `not_an_image` or
    `too_large`. `UnitError` (transient) if no child process can read it now; `Unwanted` if `wanted` returns False.
    """
    check_source(frame.source)
    if frame.ts.tzinfo is None:
        raise UserError("the time of a frame needs its zone", code="bad_time")
    if not _EARLIEST <= frame.ts < _LATEST:
        # Subtracting from a time at the calendar's ends fails, and would block the source's batches.
        raise UserError("the time of a frame must be from 1970 to 2999", code="bad_time")
    if rule := _exclusion(frame, screenshots_in_force(context)):
        # Do not even read the picture: a stored hash would reveal whether two pictures were equal.
        context.db.run(lambda tx: note_rejection(tx, frame.source, frame.ts, "excluded", detail=rule))
        intake = Intake(False, reason="excluded")
    else:
        intake = _judged(context, picture, frame, wanted, name)
    # Log duplicates as debug: they are most frames of a screen, and the ledger has them.
    write = log.info if intake.accepted else log.debug
    write("screenshot.taken", source=frame.source, shot=intake.shot_id, reason=intake.reason, ready=intake.ready)
    return intake


def leave_out(context: Context, frame: Frame) -> None:
    """Add to the ledger of rejections that the capture skipped a frame because of an exclusion."""
    context.db.run(lambda tx: note_rejection(tx, frame.source, frame.ts, "excluded"))


def _judged(context: Context, picture: Path | bytes, frame: Frame, wanted: Wanted, name: str) -> Intake:
    settings, sha256 = context.settings, ""
    try:
        installation.check(context.db, settings)
    except OSError as error:
        raise UserError(f"cannot use {settings.data_dir}: {error.strerror or error}", code="io_error") from error
    try:
        data = files.read(picture, settings.screenshots.max_image_mb)
        sha256 = hashlib.sha256(data).hexdigest()
        with files.incoming(settings, data) as copy:
            seen = screen_frames.read_frame(copy, wanted)
            named = replace(
                frame,
                app=_plain(frame.app)[:MAX_APP],
                window_title=_plain(frame.window_title)[:MAX_TITLE],
                original_path=storable(frame.original_path),
            )
            rules = screenshots_in_force(context)
            return Candidate(context, rules, named, copy, len(data), sha256, seen, wanted).take()
    except UnitError as error:
        if error.kind is not ErrorKind.PERMANENT:
            raise
        why = ": ".join(filter(None, (Path(frame.original_path).name, str(error))))
        context.db.run(
            lambda tx: note_rejection(tx, frame.source, frame.ts, Verdict.REFUSED, sha256=sha256, detail=why)
        )
        log.info("screenshot.refused", source=frame.source, code=error.code)
        name = name or (str(picture) if isinstance(picture, Path) else f"the frame of {frame.source}")
        raise UserError(f"{name}: {error}", code=error.code) from error


def note_rejection(
    tx: Tx,
    source: str,
    ts: datetime,
    reason: str,
    *,
    sha256: str = "",
    phash: str = "",
    detail: str = "",
    judged: Judgement | None = None,
) -> None:
    """Add a rejected frame to the ledger. Rejecting a capture twice for the same reason adds one row."""
    same = select(REJECTIONS.c.id).where(
        REJECTIONS.c.source_key == source,
        REJECTIONS.c.ts == ts,
        REJECTIONS.c.sha256 == sha256,
        REJECTIONS.c.reason == reason,
    )
    if tx.execute(same.limit(1)).first() is not None:
        return
    row: dict[str, Any] = {
        "source_key": source,
        "ts": ts,
        "reason": reason,
        "detail": detail[:MAX_DETAIL],
        "sha256": sha256,
        "phash": phash,
        "created_at": tx.now,
    }
    if judged is not None:
        row |= {"threshold": judged.threshold, "distance": judged.distance, "nearest_id": judged.nearest}
    tx.execute(insert(REJECTIONS).values(**row))


def _plain(text: str) -> str:
    """Replace, by blanks, characters that databases refuse (NUL, lone surrogates) or that cannot be printed."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


@dataclass(frozen=True)
class Candidate:
    """A frame with a valid picture: `copy`, of `size` bytes."""

    context: Context
    rules: ScreenshotSettings
    frame: Frame
    copy: Path
    size: int
    sha256: str
    seen: Fingerprint
    wanted: Wanted

    def take(self) -> Intake:
        settings, db = self.context.settings, self.context.db
        file = files.place(self.copy, self.seen.format) if self._seems_new() else ""
        intake = db.run(lambda tx: self._decide(tx, file))
        if intake is None:
            # Since `_seems_new`, the frame that it resembled became too old, or its source active.
            file = files.place(self.copy, self.seen.format)
            intake = db.run(lambda tx: self._decide(tx, file))
        assert intake is not None
        # An error above leaves the file: the row may be committed. If not, `remove_orphans` removes the file.
        if intake.accepted:
            _sketches.keep(file, self.seen.sketch)
        elif file:
            files.discard(settings, [file])
        return intake

    def _seems_new(self) -> bool:
        """Predict without the lock whether `_decide` accepts the frame, so that duplicates write no file."""
        with self.context.db.read() as session:
            source = session.execute(select(SOURCES).where(SOURCES.c.key == self.frame.source)).one_or_none()
            if source is None:
                return True
            if not source.active or self._known(session) is not None:
                return False
            pressed = buffer.pressure_on(session, source, self.rules)
            return self._judge(session, pressed).verdict is Verdict.ACCEPTED

    def _decide(self, tx: Tx, file: str) -> Intake | None:
        """Accept or reject the frame under the source's lock. `file`: the stored copy, or empty. None: acceptable, but
        `file` is empty.

        An accepted frame joins a batch now, or at the buffer's timeout.
        """
        frame = self.frame
        _keep_source(tx, frame.source)
        source = buffer.lock_source(tx, frame.source)
        if (known := self._known(tx)) is not None:
            # The row is our own if the first commit's answer was lost and the transaction runs twice.
            is_own = bool(file) and known.file == file
            if frame.original_path:  # the file may have moved
                tx.execute(update(SHOTS).where(SHOTS.c.id == known.id).values(original_path=frame.original_path))
            tx.launch(FLOW, buffer_of(frame.source), Scope.BATCHES)
            return Intake(is_own, known.id, "" if is_own else "known", ready=True)
        pressed = buffer.pressure_on(tx, source, self.rules)
        tx.execute(update(SOURCES).where(SOURCES.c.key == source.key).values(seen_at=tx.now, pressure=pressed.level))
        if not source.active:
            self._reject(tx, "inactive", None)
            return Intake(False, reason="inactive")
        judged = self._judge(tx, pressed)
        if judged.verdict is Verdict.DUPLICATE:
            self._reject(tx, judged.verdict, judged)
            return Intake(False, None, "duplicate", judged.distance, judged.nearest, judged.threshold)
        if not file:
            return None
        row = {
            "source_key": frame.source,
            "ts": frame.ts,
            "file": file,
            "sha256": self.sha256,
            "phash": self.seen.phash,
            "size_bytes": self.size,
            "app": frame.app,
            "window_title": frame.window_title,
            "original_path": frame.original_path,
            "created_at": tx.now,
            "updated_at": tx.now,
        }
        shot_id: int = tx.execute(insert(SHOTS).values(**row).returning(SHOTS.c.id)).scalar_one()
        if CALLER.get():
            wanted = {costs.frame(shot_id): costs.of_frames(tx, 1)}
            accounts.admit(tx, FLOW, wanted)
        ready = buffer.ask_for_batch(tx, frame.source, pressed)
        return Intake(True, shot_id, "", judged.distance, judged.nearest, judged.threshold, ready)

    def _known(self, session: Session) -> Any:
        same = select(SHOTS.c.id, SHOTS.c.file).where(
            SHOTS.c.source_key == self.frame.source, SHOTS.c.ts == self.frame.ts, SHOTS.c.sha256 == self.sha256
        )
        return session.execute(same).one_or_none()

    def _reject(self, tx: Tx, reason: str, judged: Judgement | None) -> None:
        note_rejection(
            tx,
            self.frame.source,
            self.frame.ts,
            reason,
            sha256=self.sha256,
            phash=self.seen.phash,
            judged=judged,
        )

    def _judge(self, tx: ReadTx, pressed: Pressure) -> Judgement:
        columns = (SHOTS.c.id, SHOTS.c.phash, SHOTS.c.created_at, SHOTS.c.file, SHOTS.c.sha256)
        late = select(*columns).where(SHOTS.c.source_key == self.frame.source).order_by(SHOTS.c.id.desc())
        rows = {row.id: row for row in tx.execute(late.limit(self.rules.dedup_frames))}
        seen = [Seen(row.id, row.phash, row.created_at) for row in rows.values()]
        frames = recent(seen, tx.now, self.rules.dedup_window_s, self.rules.dedup_frames)
        return judge(self.seen.phash, frames, pressed.threshold, lambda frame: self._same(rows[frame.id]))

    def _same(self, row: Any) -> bool:
        """Whether a stored frame with a similar hash also has a similar sketch: then this frame is its duplicate.

        True if the other frame's file is unusable.
        """
        if row.sha256 == self.sha256:
            return True
        path = files.path_of(self.context.settings, row.file)
        try:
            sketch = _sketches.get(row.file, lambda: screen_frames.read_frame(path, self.wanted).sketch)
        except UnitError as error:
            if error.kind is not ErrorKind.PERMANENT:
                raise
            return True
        return not differs(self.seen.sketch, sketch)


def _keep_source(tx: Tx, key: str, *, active: bool = True) -> None:
    insert_if_absent(tx, SOURCES, {"key": key, "active": active, "created_at": tx.now, "seen_at": tx.now})


def set_active(context: Context, key: str, active: bool) -> None:
    """Accept or refuse further frames of this source. Frames in its buffer still join batches."""
    check_source(key)

    def work(tx: Tx) -> None:
        _keep_source(tx, key, active=active)
        tx.execute(update(SOURCES).where(SOURCES.c.key == key).values(active=active))

    context.db.run(work)
