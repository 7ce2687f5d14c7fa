"""Pictures of frames for models, some made ahead, because a message holds a provider's slot from its start.

Work before the call wastes the slot. So after each message starts, a thread of this process makes the pictures of the
shards that are due next. It keeps a few in memory for a short time. They only save time: a message makes a missing
picture itself.
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
"""Seconds to keep pictures after messages stop. Until then, the next message drops pictures of deleted frames."""

log = structlog.get_logger(__name__)


class Pictures:
    """The pictures that this process makes ahead, by the frames' files. Its threads make no picture twice."""

    def __init__(self, keep_s: float = KEEP_S) -> None:
        self._keep_s = keep_s
        self._context: Context | None = None
        """The context of the next request; None without one."""
        self._ready: dict[Path, bytes] = {}
        self._missing: list[Path] = []
        self._making: Path | None = None
        self._claimed: set[Path] = set()
        """Files that messages took since the thread's latest query."""
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()

    def take(self, path: Path) -> bytes:
        """Return the JPEG of a stored frame, made ahead or now.

        Raises `UnitError` if the picture or a child process fails.
        """
        with self._changed:
            self._claimed.add(path)
            if path in self._missing:
                self._missing.remove(path)
            self._changed.wait_for(lambda: self._making != path)
            picture = self._ready.pop(path, None)
        return picture if picture is not None else jpeg_of(path)

    def make_ahead(self, context: Context) -> None:
        """Let a thread of this process make the pictures of the shards that are due next. Returns at once."""
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
                self._claimed.clear()
                if context is None:
                    self._ready.clear()
                    self._thread = None
                    return
            try:
                self._list_missing(context)
                while self._make_next():
                    pass
            except Exception as error:  # noqa: BLE001  # messages make missing pictures themselves
                log.warning("pictures.not_made", error=type(error).__name__)

    def _list_missing(self, context: Context) -> None:
        due = list(_next_files(context))
        with self._changed:
            self._ready = {path: picture for path, picture in self._ready.items() if path in due and path.is_file()}
            self._missing = [path for path in due if path not in self._ready and path not in self._claimed]

    def _make_next(self) -> bool:
        with self._changed:
            if not self._missing or sum(map(len, self._ready.values())) >= MAX_BYTES:
                return False
            path = self._making = self._missing.pop(0)
        picture = None
        try:
            picture = jpeg_of(path)
        except UnitError:
            pass  # the message that needs it reports the error
        finally:
            with self._changed:
                self._making = None
                if picture is not None:
                    self._ready[path] = picture
                self._changed.notify_all()
        return True


def _next_files(context: Context) -> Iterator[Path]:
    """Yield the files of the next waiting shards, those of the earliest batch first."""
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
