"""How a command uses the stack of a data folder: it shares a running one, or starts one."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from redis import RedisError

from pipeline.engine.connection import reach
from pipeline.engine.errors import UserError
from pipeline.engine.presence import NoWorker, Presence
from pipeline.process import get_context, new_context
from pipeline.settings import Settings
from pipeline.standalone import redis_server
from pipeline.standalone.demand import Demand, demand, log_file
from pipeline.standalone.locks import is_supervised
from pipeline.standalone.supervisor import read_info
from pipeline.storage import installation
from pipeline.storage.schema import current, ensure

START_S = 60.0
TROUBLED_S = 5.0
"""How long a stack may take to start while a known problem prevents it."""
FULL_DISK_BYTES = 1_000_000
_LOG_TAIL_BYTES = 2000


class Stack:
    """A command's hold on the stack."""

    def __init__(self, demanded: Demand) -> None:
        self._demanded = demanded
        self._settings = demanded.settings

    def ensure(self) -> None:
        """Wait until the embedded stack is up; restart a dead supervisor. Raises `UserError`, with the end of the log,
        if it cannot start."""
        if not self._settings.embedded_redis:
            return
        demanded = self._demanded
        if demanded.supervisor is not None and demanded.supervisor.poll() is not None:
            demanded.supervisor = None  # it was killed in service: start another
        began = time.monotonic()
        while not self._is_ready():
            if not is_supervised(self._settings):
                self._start_supervisor()
            waited_s = time.monotonic() - began
            trouble = self.trouble() if waited_s > TROUBLED_S else ""
            if trouble or waited_s > START_S:
                if demanded.supervisor is not None:
                    demanded.supervisor.terminate()
                why = trouble or f"See {log_file(self._settings)}"
                raise UserError(f"the stack did not start within {waited_s:.0f} s. {why}", code="stack_down")
            time.sleep(0.02)

    def trouble(self) -> str:
        """Return what stops work, as a sentence for the user; empty without a known problem."""
        if shutil.disk_usage(self._settings.data_dir).free < FULL_DISK_BYTES:
            return f"The disk that holds {self._settings.data_dir} is full: free some space."
        if self._settings.embedded_redis:
            return ""  # the supervisor takes care of its workers
        try:
            alive = Presence(get_context().redis).alive()
        except RedisError:
            return "Redis cannot be reached."
        return "" if alive else str(NoWorker())

    def _is_ready(self) -> bool:
        return (
            read_info(self._settings) is not None
            and is_supervised(self._settings)
            and redis_server.is_up(self._settings)
        )

    def _start_supervisor(self) -> None:
        started = self._demanded.supervisor
        code = started.poll() if started is not None else 0
        if code:
            reason = self.trouble() or _tail(log_file(self._settings), self._demanded.log_start)
            raise UserError(f"the stack did not start:\n{reason}", code="stack_down")
        if code == 0:
            self._demanded.start()


@contextmanager
def using_stack(settings: Settings, demanded: Demand | None = None) -> Iterator[Stack]:
    """Keep the stack up during the block, which starts once it is up. `demanded`: a demand that the caller already
    holds; None: make one.

    With the user's own Redis, start nothing; raises `RedisError` if it is unreachable. Raises `UserError` if the stack
    cannot start.
    """
    with demand(settings) if demanded is None else nullcontext(demanded) as held:
        stack = Stack(held)
        if not settings.embedded_redis:
            migrate_embedded(settings)
            reach(settings.effective_redis_url)
        elif not settings.embedded_database:
            _reach_database(settings)
        elif installation.mark(settings).exists():
            migrate_embedded(settings)  # reports a foreign folder in one sentence
        stack.ensure()
        yield stack


def migrate_embedded(settings: Settings) -> None:
    """Migrate an embedded database. Raises `UserError` if another database needs `penstock migrate`.

    Raises `ForeignFolder` if the data folder is not this database's.
    """
    context = new_context(settings)
    try:
        ensure(context)
        installation.check(context.db, settings)
    finally:
        context.db.dispose()


def _reach_database(settings: Settings) -> None:
    """Raise `DBAPIError` here, where the user sees it, not in the supervisor's log."""
    db = new_context(settings).db
    try:
        current(db)
    finally:
        db.dispose()


def _tail(path: Path, start: int) -> str:
    """Return the end of the log's content after its first `start` bytes."""
    try:
        return path.read_bytes()[start:][-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
    except OSError:
        return ""
