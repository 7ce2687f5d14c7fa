"""The supervisor's children: started again when they die, ended in order."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

import structlog

from pipeline.engine import search_path
from pipeline.settings import Settings
from pipeline.standalone.roles import arguments, needed

log = structlog.get_logger(__name__)
LONGEST_BACKOFF_S = 30.0
STEADY_AFTER_S = 20.0
"""A child that ran at least this long is restarted at once when it dies."""


@dataclass
class Child:
    """One program to keep running."""

    name: str
    command: Callable[[], Sequence[str]]
    output: IO[bytes] | None
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    backoff_s: float = 0.0
    not_before: float = field(default=0.0)

    def start(self, now: float) -> None:
        # In its own session, so that Ctrl-C reaches only the supervisor, which ends its children in order.
        self.process = subprocess.Popen(  # noqa: S603  # a fixed program with fixed arguments
            list(self.command()), env=search_path.environment(),
            stdin=subprocess.PIPE, stdout=self.output, stderr=self.output, start_new_session=True,
        )  # fmt: skip
        self.started_at = now

    def tend(self, now: float) -> None:
        """Start the child if it is down, after longer and longer waits if it keeps dying young."""
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
        """Kill what a dead child left running, such as the processes of its pool."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Forget a process that has ended."""
        if self.process is not None and self.process.stdin:
            self.process.stdin.close()
        self.process = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


def celery_children(settings: Settings, output: IO[bytes] | None, *, capture: bool) -> list[Child]:
    """Workers by role, and beat. `capture`: also one that captures the screens, if that is configured."""
    quiet = ["--without-gossip", "--without-mingle", *([] if settings.worker_events else ["--without-heartbeat"])]
    # A process less: reading for knowledge bases waits most of the time.
    roles = [role for role in needed(settings) if role != "io" and (role != "capture" or capture)]
    commands = {f"worker-{role}": [*arguments(settings, role, with_io=True), *quiet] for role in roles}
    commands["beat"] = ["beat", "--pidfile="]
    child = partial(search_path.program, "pipeline.standalone.child")
    return [Child(name, partial(child, *command), output) for name, command in commands.items()]


def server_child(name: str, output: IO[bytes] | None) -> Child:
    """`api` or `gateway`. By the name of its module: it stands above the stack, which only starts it."""
    return Child(name, partial(search_path.program, f"pipeline.interfaces.{name}"), output)


def end(children: Sequence[Child], grace_s: float, in_a_hurry: Callable[[], bool] = lambda: False) -> None:
    """End children: SIGTERM (they finish their work), then SIGQUIT (they give it back), then SIGKILL.

    `in_a_hurry` says when to cut the first wait short.
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
    for child in children:
        child.kill_session()
        child.close()


def log_file(settings: Settings) -> Path:
    """Where children without a terminal write their output."""
    return settings.data_dir / "penstock.log"
