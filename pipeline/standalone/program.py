"""How the supervisor runs its own programs: by a fork, or as new programs where a fork is unsafe."""

import gc
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Protocol

from pipeline.engine import linux, search_path
from pipeline.flows import FLOWS
from pipeline.process import forget_context
from pipeline.reading.sandbox.child_process import FORKS
from pipeline.settings import get_settings

SHARED = (
    "celery.app.trace",
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.bin.beat",
    "celery.bin.worker",
    "celery.concurrency.prefork",
    "celery.concurrency.thread",
    "celery.worker.autoscale",
    "celery.worker.control",
    "celery.worker.worker",
    "kombu.transport.redis",
    "sqlalchemy.dialects.sqlite",
    "tasks.consumer",
    "tasks.maintenance",
    "tasks.nodes",
    "tasks.presence",
    "tasks.telemetry",
    "tasks.watchdog",
    *(f"tasks.{name}.canvas" for name in FLOWS),
)
"""The modules that workers and beat import."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
"""Signals that the supervisor handles, and its programs handle in their own way."""


class Process(Protocol):
    """A running program, like `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Return the exit code, -N for signal N; None while it runs."""

    def send_signal(self, number: int, /) -> None: ...

    def close(self) -> None:
        """Close the program's standard input, whose end tells it that the supervisor has ended."""


@dataclass(frozen=True)
class Program:
    """A module of ours with a `main` that takes arguments."""

    module: str
    arguments: tuple[str, ...] = ()

    def start(self, name: str) -> Process:
        """Start it in its own session, so that Ctrl-C reaches only the supervisor."""
        return _Forked(self, name) if FORKS else Started(search_path.program(self.module, *self.arguments))


class Started(subprocess.Popen[bytes]):
    """A program started as a new process."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """`environment` replaces this process's environment."""
        env = environment or search_path.environment()
        super().__init__(command, env=env, stdin=subprocess.PIPE, start_new_session=True)

    def close(self) -> None:
        if self.stdin:
            self.stdin.close()


class _Forked:
    """A forked program, which shares this process's imports."""

    def __init__(self, program: Program, name: str) -> None:
        lifeline, self._supervisors_end = os.pipe()
        self._process = get_context("fork").Process(target=_become, args=(program, name, lifeline))
        try:
            with _blocked_signals():
                self._process.start()
        finally:
            os.close(lifeline)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int, /) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def close(self) -> None:
        os.close(self._supervisors_end)


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Block the supervisor's signals, since a child that still has the supervisor's handlers would lose them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _become(program: Program, name: str, lifeline: int) -> None:
    """Run the program; keep only the supervisor's modules and output streams."""
    os.setsid()
    os.dup2(lifeline, 0)
    signal.set_wakeup_fd(-1)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # other children's lifelines, and the locks of the data folder
    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    linux.set_name(name)  # the command line is the supervisor's
    sys.argv = [*search_path.program(program.module)[1:], *program.arguments]
    # The program reads settings anew and opens its own connections.
    get_settings.cache_clear()
    forget_context()
    importlib.import_module(program.module).main(list(program.arguments))


def load(modules: Sequence[str]) -> None:
    """Import the modules that forked programs share: those of workers and beat, and these. Where programs are not
    forked, import nothing.

    None of them reads settings or opens connections.
    """
    gc.disable()
    for module in (*SHARED, *modules) if FORKS else ():
        importlib.import_module(module)
    # Exempt these objects from collection: inspecting one would copy its page in each process.
    gc.freeze()
    gc.enable()
