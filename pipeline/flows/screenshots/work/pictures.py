"""Frames as models get them, some made ahead: a place at a provider is taken before a message's work begins.

What a message does before its call wastes the place that it holds. So after each message a thread of this process makes
the pictures of the shards that are due next. They are kept in memory, few and not for long, and are only a saving: a
picture that is not there is made when it is needed.
"""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import structlog
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from pipeline.engine.claims import is_due
from pipeline.engine.errors import UnitError
from pipeline.flows.screenshots.frames import files, fingerprint
from pipeline.flows.screenshots.models import BATCHES, SHARDS
from pipeline.flows.screenshots.states import CLAIMABLE, Step, WorkStatus
from pipeline.flows.screenshots.work import batch
from pipeline.storage.context import Context

SHARDS_AHEAD = 4
MAX_BYTES = 32 * 2**20
KEEP_S = 30.0
"""How long pictures are kept when messages stop. Until then, the next message drops those of deleted frames."""

log = structlog.get_logger(__name__)


def jpeg_of(path: Path) -> bytes:
    """A stored frame as models get it. Raises `UnitError` as `fingerprint.load_image`."""
    return fingerprint.as_jpeg(fingerprint.load_image(path))


class Pictures:
    """The pictures that this process has made ahead, by the frames' files."""

    def __init__(self, keep_s: float = KEEP_S) -> None:
        self._keep_s = keep_s
        self._made: dict[Path, bytes] = {}
        self._lock = threading.Lock()
        self._context: Context | None = None
        """Whose shards are to be looked for next; None if nothing is to be done."""
        self._asked = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None

    def take(self, path: Path) -> bytes:
        """A stored frame as models get it, made ahead or now. Raises `UnitError` as `fingerprint.load_image`."""
        with self._lock:
            made = self._made.pop(path, None)
        return made if made is not None else jpeg_of(path)

    def make_ahead(self, context: Context) -> None:
        """Have the pictures of the shards that are due next made, by a thread of this process. Returns at once."""
        with self._lock:
            self._context = context
            self._asked.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pictures", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._asked.wait_for(lambda: self._context is not None, self._keep_s)
                context, self._context = self._context, None
                if context is None:
                    self._made.clear()
                    self._thread = None
                    return
            try:
                self._make(context)
            except (SQLAlchemyError, OSError, MemoryError) as error:
                log.warning("pictures.not_made", error=type(error).__name__)

    def _make(self, context: Context) -> None:
        wanted = list(_next_files(context))
        with self._lock:
            self._made = {path: made for path, made in self._made.items() if path in wanted and path.is_file()}
            room = MAX_BYTES - sum(map(len, self._made.values()))
            missing = [path for path in wanted if path not in self._made]
        for path in missing:
            if room <= 0:
                return
            try:
                made = jpeg_of(path)
            except UnitError:
                continue  # whoever needs it says so
            room -= len(made)
            with self._lock:
                self._made[path] = made


def _next_files(context: Context) -> Iterator[Path]:
    """The files of the shards that wait for a message, of the batch that was begun first before the others'."""
    due = (
        select(SHARDS.c.shot_ids)
        .join(BATCHES, BATCHES.c.id == SHARDS.c.batch_id)
        .where(
            SHARDS.c.status.in_(CLAIMABLE), is_due(SHARDS, datetime.now(UTC)), BATCHES.c.step == Step.ANALYSE,
            BATCHES.c.status == WorkStatus.RUNNING,
        )
        .order_by(BATCHES.c.updated_at, SHARDS.c.batch_id, SHARDS.c.number)
        .limit(SHARDS_AHEAD)
    )  # fmt: skip
    with context.db.read() as session:
        for shot_ids in session.execute(due).scalars().all():
            for shot in batch.shots_of(session, shot_ids):
                yield files.path_of(context.settings, shot.file)
