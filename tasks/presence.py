"""The identity of a worker and its processes, and the thread that renews their presence every few seconds."""

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import structlog
from celery.signals import worker_init
from redis import RedisError
from sqlalchemy.exc import SQLAlchemyError

from pipeline.engine.connection import connect
from pipeline.engine.logs import sign
from pipeline.engine.presence import Presence
from pipeline.flows import flows
from pipeline.process import get_context, new_context
from pipeline.providers import registry
from pipeline.settings import get_settings
from pipeline.storage import installation
from pipeline.storage.installation import ForeignFolder
from tasks.gates import keep_synced

log = structlog.get_logger(__name__)
_JOIN_S = 2.0
"""How long an ending worker waits for the thread that renews its presence, so that its lease is not renewed later."""


class Identity:
    """The identity of this worker, for all processes and threads of its pool, and of this process.

    A separate thread and client renew the presence: the consumer's timer stands still while the broker
    connection is being restored, and a live worker must not count as dead then.
    """

    def __init__(self) -> None:
        self.worker_id = f"none:{os.getpid()}:{uuid4().hex[:6]}"
        """The worker: `hostname:pid:nonce` of its main process."""
        self._stopped = threading.Event()
        self._renewing: threading.Thread | None = None

    @property
    def process_id(self) -> str:
        """This process, which holds claims: the worker's id with its own pid."""
        return self._process_id(os.getpid())

    def _process_id(self, pid: int) -> str:
        hostname, _, nonce = self.worker_id.rsplit(":", 2)
        return f"{hostname}:{pid}:{nonce}"

    def has(self, process_id: str) -> bool:
        """Whether this is, or was, a process of this worker."""
        pid = process_id.split(":")[-2:][0]
        return pid.isdecimal() and process_id == self._process_id(int(pid))

    def has_ended(self, process_id: str) -> bool:
        """Whether this process has certainly ended. False for processes of other workers, whose state is unknown."""
        return self.has(process_id) and not _runs(int(process_id.split(":")[-2]))

    def begin(self, hostname: str, facts: Callable[[], Mapping[str, Any]] = dict) -> None:
        """Give this worker its id, and start the threads that renew its presence and sync gates; at exit, give back its
        claims. Call it before the worker's pool forks. `facts`: what people see of the worker."""
        self.worker_id = f"{hostname}:{os.getpid()}:{uuid4().hex[:6]}"
        sign(lambda: {"worker": self.process_id})
        self._renewing = threading.Thread(target=self._renew, args=(facts,), name="presence", daemon=True)
        self._renewing.start()
        threading.Thread(target=keep_synced, args=(self._stopped,), name="gates", daemon=True).start()
        atexit.register(self._end, os.getpid())

    def _end(self, pid: int) -> None:
        # At exit the pool has ended, after a warm or a cold shutdown: give back its remaining claims.
        if os.getpid() != pid:
            return
        self._stopped.set()
        ended = {self.worker_id}
        for flow in flows():
            try:
                held = {holder for holder in flow.holders(get_context()) if self.has(holder)}
                if held:
                    flow.release_all(get_context(), held)
                    ended |= held
            except SQLAlchemyError as error:
                log.warning("worker.claims_left", worker=self.worker_id, flow=flow.name, error=type(error).__name__)
        if self._renewing is not None:
            self._renewing.join(_JOIN_S)
        with suppress(RedisError):
            Presence(get_context().redis).leave(*ended)

    def _renew(self, facts: Callable[[], Mapping[str, Any]]) -> None:
        began_ms = int(time.time() * 1000)
        settings = get_settings()
        presence = Presence(connect(settings.effective_redis_url))
        before: set[str] = set()
        while not self._stopped.is_set():
            try:
                pool = {self._process_id(pid) for pid in _children()}
                presence.renew(self.worker_id, settings.presence_ttl_s, pool, {"since_ms": began_ms, **facts()})
                presence.leave(*before - pool)
                before = pool
            except (RedisError, psutil.Error) as error:
                log.debug("presence.not_renewed", error=type(error).__name__)
            except Exception as error:  # without this thread the worker would count as dead
                log.exception("presence.not_renewed", error=type(error).__name__)
            self._stopped.wait(settings.presence_interval_s)


def _children() -> list[int]:
    """The live children of this process: those of a pool, whenever they were forked."""
    try:
        # Without these files, psutil reads every process of the machine.
        lists = [task.read_text() for task in Path("/proc/self/task").glob("*/children")]
    except OSError:
        lists = []  # a thread has just ended
    pids = [int(pid) for pid in " ".join(lists).split()] if lists else [c.pid for c in psutil.Process().children()]
    return [pid for pid in pids if _runs(pid)]


def _runs(pid: int) -> bool:
    """Whether a process with this pid runs."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


identity = Identity()


def _refuse_foreign_folder() -> None:
    """End this process if the data folder belongs to another database."""
    context = new_context(get_settings())  # before the pool forks: no connection may stay open
    try:
        installation.check(context.db, context.settings)
    except ForeignFolder as error:
        sys.exit(f"penstock: {error}")
    except SQLAlchemyError as error:
        log.warning("worker.installation_unknown", error=type(error).__name__)
    finally:
        context.db.dispose()


def holder_of(request_id: str) -> str:
    """Return the holder of a message at a gate: the worker with the message's id, so that a second delivery to another
    worker is another holder."""
    return f"{identity.worker_id}/{request_id}"


@worker_init.connect
def _begin(sender: Any, **_: Any) -> None:
    _refuse_foreign_folder()
    identity.begin(
        str(sender.hostname),
        lambda: {
            "slots": sender.concurrency,
            "queues": sorted(sender.app.amqp.queues.consume_from),
            "providers": registry.names(get_settings()),
        },
    )
