"""The supervisor of a data folder: starts the stack, keeps it up, ends it."""

import json
import os
import select
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import structlog

from pipeline.engine import search_path
from pipeline.engine.errors import UserError
from pipeline.flows import flows
from pipeline.process import new_context
from pipeline.settings import Settings
from pipeline.standalone import redis_server
from pipeline.standalone.demand import log_file
from pipeline.standalone.locks import FileLock, is_supervised, users_lock
from pipeline.standalone.processes import Child, children, end, kill, readers, server_module
from pipeline.standalone.program import Started, load
from pipeline.storage import installation
from pipeline.storage.schema import migrate

log = structlog.get_logger(__name__)
REDIS_START_S = 30.0
GRACE_S = 10.0
"""How long workers may take to finish their work when the stack ends."""
RELEASE_S = 5.0
"""How long the claims of killed workers may take to be released when the stack ends."""
_TICK_S, _CALM_TICK_S = 0.25, 1.0
_CALM_AFTER_S = 30.0


@dataclass(frozen=True)
class StackInfo:
    """The supervisor of a data folder."""

    pid: int
    mode: str


def info_path(settings: Settings) -> Path:
    return settings.data_dir / "stack.json"


def read_info(settings: Settings) -> StackInfo | None:
    """Return the supervisor that the data folder's file names; None if none is ready. A killed supervisor leaves the
    file behind: see `locks.is_supervised`."""
    try:
        return StackInfo(**json.loads(info_path(settings).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def ask_for_restart(settings: Settings) -> bool:
    """Ask the supervisor to restart its workers and servers with the current settings; return without waiting for that.

    Returns False without a supervisor: restart the workers by the command that started them.
    """
    if not is_supervised(settings):
        return False
    _restart_path(settings).touch(mode=0o600)
    return True


def _restart_path(settings: Settings) -> Path:
    return settings.data_dir / "restart"


class Supervisor:
    """Runs the stack of one data folder."""

    def __init__(self, settings: Settings, mode: str, lock: FileLock, servers: Collection[str] = ()) -> None:
        """`lock`: the folder's supervisor lock, held. `servers`: those of `api` and `gateway` to run as well."""
        self._settings = settings
        self._mode = mode
        self._lock = lock
        self._servers = servers
        self._redis = Child("redis", self._start_redis) if settings.embedded_redis else None
        self._readers = readers(settings)
        self._children = self._all_children()
        self._signals = 0

    def _all_children(self) -> list[Child]:
        return children(self._settings, self._servers, on_demand=self._mode != "up")

    def run(
        self,
        unused: Callable[[], bool],
        ready: Callable[[], None] = lambda: None,
        ending: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep the stack up until a signal arrives or `unused` returns true. Returns when everything has ended.

        Calls `ready` when the stack is up, and `ending` when it starts to end. A second signal ends it at once.
        Raises `UserError` after the deletion of the data folder, when it has killed the stack.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        try:
            self._begin()
            if not self._signals:
                ready()
            calm_at = time.monotonic() + _CALM_AFTER_S
            while not self._signals and self._lock.is_in_place() and not unused():
                if _restart_path(self._settings).exists():
                    self._restart()
                now = time.monotonic()
                for child in (*self._readers, *self._children):
                    child.tend(now)
                self._tend_redis(now)
                if select.select([woken], [], [], _TICK_S if now < calm_at else _CALM_TICK_S)[0]:
                    os.read(woken, 4096)  # a child has ended, or a signal arrived
            ending()
        finally:
            if self._lock.is_in_place():
                self._end()
            else:
                # The next stack may be starting here: write nothing; children that end in order would remove its files.
                kill([*self._children, *self._readers, *([self._redis] if self._redis else [])])
                folder = self._settings.data_dir
                raise UserError(f"{folder} was deleted while the stack ran on it: the stack has ended", code="deleted")

    def _start_redis(self) -> Started:
        return Started(redis_server.command(self._settings), search_path.environment_without_keys())

    def _on_signal(self, number: int, frame: Any) -> None:  # noqa: ARG002
        self._signals += 1

    def _begin(self) -> None:
        for folder in (self._settings.upload_dir, self._settings.temp_dir, self._settings.output_dir):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _restart_path(self._settings).unlink(missing_ok=True)
        deadline = time.monotonic() + REDIS_START_S
        self._tend_redis(time.monotonic())
        for child in self._readers:
            child.start(time.monotonic())
        load([server_module(name) for name in self._servers])
        db = new_context(self._settings).db
        migrate(db)
        installation.check(db, self._settings)
        db.dispose()
        for child in self._children:
            child.tend(time.monotonic())
        while self._redis is not None and not redis_server.is_up(self._settings) and not self._signals:
            if time.monotonic() > deadline:
                raise UserError(f"the embedded Redis did not start; see {log_file(self._settings)}", code="redis_down")
            self._tend_redis(time.monotonic())
            time.sleep(0.02)
        info_path(self._settings).write_text(json.dumps({"pid": os.getpid(), "mode": self._mode}))

    def _restart(self) -> None:
        """Restart workers, beat and servers, but neither Redis nor readers, with the current settings. If the settings
        are invalid, change nothing."""
        _restart_path(self._settings).unlink(missing_ok=True)
        try:
            self._settings = Settings()
        except ValueError as error:
            log.warning("stack.restart_refused", reason=type(error).__name__, advice="run `penstock doctor`")
            return
        log.info("stack.restarts")
        end(self._children, GRACE_S, in_a_hurry=lambda: self._signals > 0)
        self._children = self._all_children()  # `run` starts them

    def _tend_redis(self, now: float) -> None:
        # Adopt a Redis that a killed supervisor left running: it holds this folder's data.
        if self._redis is not None and (self._redis.process is not None or not redis_server.is_up(self._settings)):
            self._redis.tend(now)

    def _end(self) -> None:
        end([*self._children, *self._readers], GRACE_S, in_a_hurry=lambda: self._signals > 1)
        # A daemon thread: a locked database does not delay the end. Sweeps release the remaining claims.
        released = Thread(target=self._release, daemon=True)
        released.start()
        released.join(RELEASE_S)
        if self._redis is not None and self._redis.running:
            end([self._redis], 5.0)  # SIGTERM: it saves its data
        elif self._redis is not None:
            redis_server.shut_down(self._settings)  # an adopted one
        info = read_info(self._settings)
        if info is not None and info.pid == os.getpid():
            info_path(self._settings).unlink(missing_ok=True)

    def _release(self) -> None:
        """Release the claims of killed workers in an embedded database, now that no worker runs."""
        if not self._settings.embedded_database:
            return
        context = new_context(self._settings)
        for flow in flows():
            with suppress(Exception):  # an error of one flow does not stop the others
                flow.release_all(context, flow.holders(context))
        context.db.dispose()


class Idleness:
    """Notices when no command has used the stack for `linger_s` seconds, and then makes new ones wait."""

    def __init__(self, settings: Settings) -> None:
        self._lock: FileLock = users_lock(settings)
        self._linger_s = settings.stack_linger_s
        self._since: float | None = None

    def __call__(self) -> bool:
        """Return True once no command has used the stack for `linger_s` seconds: then the lock stays held, so that a
        new command waits until the stack is down."""
        if not self._lock.acquire():
            self._since = None
            return False
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since >= self._linger_s:
            return True
        self._lock.release()
        return False
