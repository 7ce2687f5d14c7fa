"""Frames as models get them, some made ahead: a place at a provider is taken before a message's work begins.

What a message does before its call wastes the place that it holds. So after each message a thread of this process makes
the pictures of the shards that are due next. They are kept in memory, few and not for long, and are only a saving: a
picture that is not there is made when it is needed.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import structlog
from sqlalchemy import select

from pipeline.engine.claims import in_states, is_due
from pipeline.engine.errors import UnitError
from pipeline.flows.screenshots.frames import files
from pipeline.flows.screenshots.models import BATCHES, SHARDS
from pipeline.flows.screenshots.states import CLAIMABLE, Step, WorkStatus
from pipeline.flows.screenshots.work import batch
from pipeline.reading.ocr.screen_frames import jpeg_of
from pipeline.storage.context import Context

SHARDS_AHEAD = 4
MAX_BYTES = 32 * 2**20
KEEP_S = 30.0
"""How long pictures are kept when messages stop. Until then, the next message drops those of deleted frames."""

log = structlog.get_logger(__name__)


class Pictures:
    """The pictures that this process has made ahead, by the frames' files. None is made twice by its own threads."""

    def __init__(self, keep_s: float = KEEP_S) -> None:
        self._keep_s = keep_s
        self._context: Context | None = None
        """Whose shards to look for next; None if nothing is asked for."""
        self._made: dict[Path, bytes] = {}
        self._missing: list[Path] = []
        self._making: Path | None = None
        self._taken: set[Path] = set()
        """Since the thread last looked which shards are due."""
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()

    def take(self, path: Path) -> bytes:
        """A stored frame as models get it, made ahead or now. Raises `UnitError` as `jpeg_of`."""
        with self._changed:
            self._taken.add(path)
            if path in self._missing:
                self._missing.remove(path)
            self._changed.wait_for(lambda: self._making != path)
            made = self._made.pop(path, None)
        return made if made is not None else jpeg_of(path)

    def make_ahead(self, context: Context) -> None:
        """Have a thread of this process make the pictures of the shards that are due next. Returns at once."""
        with self._changed:
            self._context = context
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pictures", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._context is not None, self._keep_s)
                context, self._context = self._context, None
                self._taken.clear()
                if context is None:
                    self._made.clear()
                    self._thread = None
                    return
            try:
                self._look(context)
                while self._make_next():
                    pass
            except Exception as error:  # noqa: BLE001  # pictures that are not there are made when they are needed
                log.warning("pictures.not_made", error=type(error).__name__)

    def _look(self, context: Context) -> None:
        due = list(_next_files(context))
        with self._changed:
            self._made = {path: made for path, made in self._made.items() if path in due and path.is_file()}
            self._missing = [path for path in due if path not in self._made and path not in self._taken]

    def _make_next(self) -> bool:
        with self._changed:
            if not self._missing or sum(map(len, self._made.values())) >= MAX_BYTES:
                return False
            path = self._making = self._missing.pop(0)
        made = None
        try:
            made = jpeg_of(path)
        except UnitError:
            pass  # whoever needs it says so
        finally:
            with self._changed:
                self._making = None
                if made is not None:
                    self._made[path] = made
                self._changed.notify_all()
        return True


def _next_files(context: Context) -> Iterator[Path]:
    """The files of the shards that wait for a message, of the batch that was begun first before the others'."""
    due = (
        select(SHARDS.c.shot_ids)
        .join(BATCHES, BATCHES.c.id == SHARDS.c.batch_id)
        .where(
            in_states(SHARDS, CLAIMABLE),
            is_due(SHARDS, context.db.now()),
            BATCHES.c.step == Step.ANALYSE,
            BATCHES.c.status == WorkStatus.RUNNING,
        )
        .order_by(BATCHES.c.updated_at, SHARDS.c.batch_id, SHARDS.c.number)
        .limit(SHARDS_AHEAD)
    )
    with context.db.read() as session:
        for shot_ids in session.execute(due).scalars().all():
            for shot in batch.shots_of(session, shot_ids):
                yield files.path_of(context.settings, shot.file)
