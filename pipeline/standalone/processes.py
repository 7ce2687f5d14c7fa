"""The supervisor's child processes: restarted when they die, ended in order."""

import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog

from pipeline.engine import search_path
from pipeline.reading.sandbox import child_process
from pipeline.reading.sandbox.child_process import FORKS
from pipeline.settings import Settings
from pipeline.standalone.program import Process, Program, Started
from pipeline.standalone.roles import arguments, needed

log = structlog.get_logger(__name__)
CELERY = "pipeline.standalone.child"
BEAT_AFTER_S = 3.0
LONGEST_BACKOFF_S = 30.0
STEADY_AFTER_S = 20.0
"""A child that ran at least this long is restarted at once when it dies."""


@dataclass
class Child:
    """A program to keep running."""

    name: str
    launch: Callable[[], Process]
    process: Process | None = None
    started_at: float = 0.0
    backoff_s: float = 0.0
    not_before: float = 0.0

    def start(self, now: float) -> None:
        self.process = self.launch()
        self.started_at = now

    def tend(self, now: float) -> None:
        """Start the child if it is down and its wait is over, which lengthens while it keeps dying soon. Never waits:
        call it again and again. `now`: monotonic time."""
        if self.process is not None:
            code = self.process.poll()
            if code is None:
                return
            steady = now - self.started_at > STEADY_AFTER_S
            self.backoff_s = 0.0 if steady else min(max(self.backoff_s * 2, 0.25), LONGEST_BACKOFF_S)
            self.not_before = now + self.backoff_s
            log.warning("child.died", child=self.name, exit=code, again_in_s=self.backoff_s)
            self.kill_session()
            self.close()
        if now >= self.not_before:
            self.start(now)

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def kill_session(self) -> None:
        """Kill the child if it still runs, and all processes of its session, such as those of its pool."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Forget an ended process, so that `tend` starts another."""
        if self.process is not None:
            self.process.close()
        self.process = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


def children(settings: Settings, servers: Collection[str], *, on_demand: bool) -> list[Child]:
    """Return the children for workers by role, beat, and `servers`; none is started yet.

    `on_demand`: for a command, which needs none of beat's first tasks, so beat starts later; no screens are captured.
    """
    quiet = ("--without-gossip", "--without-mingle", *(() if settings.worker_events else ("--without-heartbeat",)))
    # Saves a process: reading for knowledge bases mostly waits.
    roles = [role for role in needed(settings) if role != "io" and not (role == "capture" and on_demand)]
    programs = {
        **{f"worker-{role}": Program(CELERY, (*arguments(settings, role, with_io=True), *quiet)) for role in roles},
        **{name: Program(server_module(name)) for name in servers},
        "beat": Program(CELERY, ("beat", "--pidfile=")),
    }
    result = [Child(name, partial(program.start, name)) for name, program in programs.items()]
    result[-1].not_before = time.monotonic() + (BEAT_AFTER_S if on_demand else 0)
    return result


def readers(settings: Settings) -> list[Child]:
    """Return the process that forks readers, not started yet, and make this process use it; empty where readers are
    started as programs."""
    path = settings.readers_socket
    if path is None or not FORKS:
        return []
    child_process.use_server(path)
    command = search_path.program("pipeline.reading.sandbox.child_server", str(path))
    return [Child("readers", lambda: Started(command, child_process.environment()))]


def server_module(name: str) -> str:
    """Return the module of `api` or `gateway`, by name: interfaces are above this layer, which only starts them."""
    return f"pipeline.interfaces.{name}.__main__"


def end(children: Sequence[Child], grace_s: float, in_a_hurry: Callable[[], bool] = lambda: False) -> None:
    """End children: SIGTERM (they finish their work), then SIGQUIT (they return it), then SIGKILL.

    `in_a_hurry` returns true to cut the first wait short.
    """
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGQUIT, 3.0), (signal.SIGKILL, 5.0)):
        for child in children:
            child.signal(number)
        deadline = time.monotonic() + patience_s
        while any(child.running for child in children) and time.monotonic() < deadline:
            if number == signal.SIGTERM and in_a_hurry():
                break
            time.sleep(0.02)
        if not any(child.running for child in children):
            break
    kill(children)


def kill(children: Sequence[Child]) -> None:
    """End children at once, with all their processes."""
    for child in children:
        child.kill_session()
        child.close()
