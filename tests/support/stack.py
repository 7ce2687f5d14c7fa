"""Celery processes as users start them (except for their imports, see `preloaded`). Tests may kill and replace them.

Processes have names such as `ai-1`: the part before the dash is the role, and a worker's node is called by its name.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from pipeline.storage.context import Context
from tests.support.preloaded import Forked, preloaded
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
ROLES = {
    "cpu": ["worker", "-Q", "cpu", "-P", "prefork", "-c", "2"],
    "single": ["worker", "-Q", "cpu", "-P", "prefork", "-c", "1"],
    "control": ["worker", "-Q", "control", "-P", "threads", "-c", "4"],
    "ai": ["worker", "-Q", "vision.test", "-P", "threads", "-c", "4"],
    "forked": ["worker", "-Q", "vision.test", "-P", "prefork", "-c", "4"],
    "pair": ["worker", "-Q", "vision.test", "-P", "prefork", "-c", "2"],
    "both": ["worker", "-Q", "vision.test,vision.other", "-P", "threads", "-c", "2"],
    "knowledge": ["worker", "-Q", "io,control,cpu,knowledge.test", "-P", "threads", "-c", "8"],
    "beat": ["beat", "--pidfile="],
}
"""Arguments of `celery -A tasks`. `single`: a `cpu` worker with one pool process, so that a claim names the process."""
FLEET = ("cpu-1", "control-1", "ai-1", "beat-1")
_TAIL_BYTES = 6000
_STOP_S = 120


@dataclass(frozen=True)
class Running:
    """One process, and the log that it writes."""

    process: subprocess.Popen[bytes] | Forked
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return not self._has_ended(os.WNOHANG)

    def _has_ended(self, options: int = 0) -> bool:
        """Return whether it has ended, without reaping it: then the system gives its number to no other process."""
        if self.process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | options) is not None

    def kill(self) -> None:
        """SIGKILL the main process alone, like the system's OOM killer."""
        os.kill(self.pid, signal.SIGKILL)
        self._has_ended()

    def kill_group(self) -> None:
        """SIGKILL the process and its descendants, even if it has ended itself."""
        if self.process.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.process.wait()

    def pause(self) -> None:
        """SIGSTOP: the process keeps its connections and does nothing, like a sleeping machine."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Tell the process to end after its current work, and wait for its end."""
        os.kill(self.pid, signal.SIGTERM)
        wait_until(lambda: not self.alive, _STOP_S, f"process {self.pid} has ended")

    def kill_pool(self) -> None:
        """SIGKILL the processes of a prefork pool; the main process lives on and starts others."""
        for child in psutil.Process(self.pid).children():
            with suppress(psutil.NoSuchProcess):
                child.kill()

    @contextmanager
    def pool_stopped(self) -> Iterator[None]:
        """Suspend the processes of a prefork pool during the block, so that tests can read their claims."""
        children = psutil.Process(self.pid).children()
        for child in children:
            child.suspend()
        try:
            yield
        finally:
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.resume()

    def says(self, text: str) -> int:
        """Count the occurrences of `text` in its log."""
        return self.log.read_text(errors="replace").count(text)


class Stack:
    """Processes over one database and one Redis. A context manager: leaving it kills all of them, also after errors."""

    def __init__(self, folder: Path, database_url: str, redis_url: str, **settings: str) -> None:
        """`settings`: further variables, named as in the environment."""
        self._folder = folder / "logs"
        self._env = _environment(folder, database_url, redis_url) | settings
        self._running: dict[str, Running] = {}
        self._ended: list[Running] = []

    def start(self, *names: str, **settings: str) -> None:
        """Start processes, with further variables; they are ready some seconds later.

        A name whose process was killed can be used again."""
        for name in names:
            self._start(name, ["celery", "-A", "tasks", *self._arguments(name)], settings)

    def run(self, name: str, module: str, *arguments: str, **settings: str) -> None:
        """Start `python -m module` under this name, with further variables."""
        self._start(name, [module, *arguments], settings)

    def _start(self, name: str, command: list[str], settings: Mapping[str, str]) -> None:
        if name in self._running:
            assert not self._running[name].alive, f"{name} runs already"
            self._ended.append(self._running[name])
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{name}.log"
        self._running[name] = Running(_module(command, {**self._env, **settings}, path), path)

    def _arguments(self, name: str) -> list[str]:
        role = name.rpartition("-")[0]
        arguments = list(ROLES[role])
        if arguments[0] == "worker":
            arguments += ["-n", f"{name}@%h", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        else:
            arguments += ["-s", str(self._folder / f"{name}.schedule")]
        return arguments

    def __getitem__(self, name: str) -> Running:
        return self._running[name]

    @property
    def running(self) -> list[Running]:
        """Return every process that was started and not replaced."""
        return list(self._running.values())

    def holder(self, worker_id: str) -> str:
        """Return the name of the worker whose process has `worker_id` in its claim (`node@host:pid:nonce`)."""
        return worker_id.partition("@")[0]

    def kill_all(self) -> None:
        """SIGKILL everything at once."""
        for running in self._running.values():
            running.kill_group()

    def tails(self) -> str:
        """Return the end of each log."""
        return "\n".join(f"--- {name}\n{_tail(running.log)}" for name, running in self._running.items())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for running in [*self._running.values(), *self._ended]:
            running.kill_group()
        # Captured by pytest, and shown if the test failed.
        sys.stdout.write(self.tails())


def _environment(folder: Path, database_url: str, redis_url: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return inherited | {
        "PENSTOCK_DATA_DIR": str(folder),
        "PENSTOCK_DATABASE_URL": database_url,
        "PENSTOCK_REDIS_URL": redis_url,
    }


def _module(arguments: list[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes] | Forked:
    """Start `python -m` with these arguments, in a session of its own."""
    with log.open("ab") as output:
        if sys.platform == "linux":
            with open(os.devnull, "rb") as nothing:  # noqa: PTH123
                return preloaded().start("python", arguments, env, ROOT, nothing, output, output)
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            env=env,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


@contextmanager
def python(
    module: str, folder: Path, context: Context, settings: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes] | Forked]:
    """Run `python -m module` over the database and Redis of `context`. At the end, kill it and show its log."""
    own = context.settings
    assert own.database_url
    assert own.redis_url
    log = folder / f"{module}.log"
    env = {**_environment(folder, own.database_url, own.redis_url), **settings}
    running = Running(_module([module], env, log), log)
    try:
        yield running.process
    finally:
        running.kill_group()
        sys.stdout.write(_tail(log))


def _tail(path: Path) -> str:
    return path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip() if path.exists() else "(no log)"
