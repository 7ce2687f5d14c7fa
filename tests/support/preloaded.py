"""Celery processes forked from one that has imported what they need: importing it takes a second of a processor each.

    with Preloaded() as celery:
        process = celery.start(["worker", "-Q", "cpu"], env, cwd, log)

What is forked is as if it had been started by `python -m celery -A tasks …`: a session and an environment of its own,
its output in `log`, and settings, database and Celery's configuration read anew. It is a child of this process: the one
between them ends at once, and this one adopts what it leaves (`PR_SET_CHILD_SUBREAPER`). Linux only.
"""

import ctypes
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

_SET_CHILD_SUBREAPER = 36
_STEP_S = 0.02
_CELERY = (
    "celery.__main__", "celery.bin.celery", "celery.bin.worker", "celery.bin.beat", "celery.apps.worker",
    "celery.apps.beat", "celery.worker.worker", "celery.worker.autoscale", "celery.concurrency.prefork",
    "celery.concurrency.thread", "celery.backends.redis", "celery.app.trace", "celery.app.events", "celery.app.control",
    "celery.app.amqp", "celery.app.log", "celery.fixups.django", "kombu.transport.redis", "psycopg",
    "sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql.psycopg",
)  # fmt: skip
"""What a worker imports late, too."""
_NOT_IMPORTED = ("pipeline.interfaces", "pipeline.storage.migrations")


class Forked:
    """A child of this process, as `subprocess.Popen` has it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, -N for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; `subprocess.TimeoutExpired` after `timeout` seconds."""
        deadline = time.monotonic() + timeout if timeout is not None else None
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            time.sleep(_STEP_S)
        return code


class Preloaded:
    """The process that has everything imported. A context manager: leaving it ends that process, not what it forked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        root = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            env=inherited, cwd=root, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
        )  # fmt: skip
        theirs.close()
        self._requests, self._answers = ours.makefile("w"), ours.makefile("r")
        ours.close()

    def start(self, arguments: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> Forked:
        """Start `celery -A tasks` with these arguments; its output is appended to `log`."""
        request = {"arguments": list(arguments), "env": dict(env), "cwd": str(cwd), "log": str(log)}
        with self._lock:
            _adopt_orphans(True)
            try:
                self._requests.write(json.dumps(request) + "\n")
                self._requests.flush()
                answer = self._answers.readline()
            finally:
                _adopt_orphans(False)
        assert answer, "the preloaded process has ended"
        return Forked(int(answer))

    def close(self) -> None:
        self._requests.close()
        self._answers.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_shared: list[Preloaded] = []


def preloaded() -> Preloaded:
    """The one of this session, made when it is first asked for."""
    if not _shared:
        _shared.append(Preloaded())
    return _shared[0]


def close_preloaded() -> None:
    """End it; harmless if there is none."""
    while _shared:
        _shared.pop().close()


def _adopt_orphans(on: bool) -> None:
    """Whether descendants that lose their parent become children of this process."""
    assert ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) == 0


def _import_all() -> None:
    """Import what workers import, and nothing that reads settings: `tasks` and `celeryconfig` are the forked ones'."""
    import pipeline

    for name in _CELERY:
        importlib.import_module(name)
    for module in pkgutil.walk_packages(pipeline.__path__, "pipeline."):
        if not module.name.startswith(_NOT_IMPORTED):
            importlib.import_module(module.name)
    settings = sys.modules["pipeline.settings"]
    assert settings.get_settings.cache_info().currsize == 0, "a module reads settings when it is imported"
    assert threading.active_count() == 1, "a module starts threads when it is imported"


def _serve(channel: int) -> dict[str, Any] | None:
    """Fork for each request and answer with the process; the request, in what was forked, and None at the end."""
    requests, answers = os.fdopen(channel, "r", closefd=False), os.fdopen(os.dup(channel), "w")
    for line in requests:
        from_child, to_server = os.pipe()
        between = os.fork()
        if between == 0:
            if os.fork():
                os._exit(0)
            os.setsid()
            os.write(to_server, f"{os.getpid()}\n".encode())
            os.close(to_server)
            os.close(from_child)
            answers.close()
            os.close(channel)
            request: dict[str, Any] = json.loads(line)
            return request
        os.close(to_server)
        os.waitpid(between, 0)
        with os.fdopen(from_child) as pipe:
            answers.write(pipe.read())
        answers.flush()
    return None


def _become(request: Mapping[str, Any]) -> None:
    """Take the environment, the folder, the arguments and the output of the request."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.path[0] = request["cwd"]
    sys.argv = ["celery", "-A", "tasks", *request["arguments"]]
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a Ctrl-C for pytest ends it, too
    _import_all()
    # What is there now stays: collecting it would only copy pages in every process.
    gc.collect()
    gc.freeze()
    request = _serve(int(sys.argv[1]))
    if request is None:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _become(request)
    from celery.__main__ import main as celery

    celery()


if __name__ == "__main__":
    main()
