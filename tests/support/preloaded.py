"""Python programs forked from a process with all their imports, which take each a second of a processor.

    process = preloaded().start("python", ["celery", "-A", "tasks", "worker"], env, cwd, stdin, stdout, stderr)

A forked program behaves like a separately started one: with a session, an environment and standard streams of
its own, also in the process table; settings, contexts, consoles and Celery's configuration are created anew.
It is a child of this process: the process between them ends at once, and this one adopts its children
(`PR_SET_CHILD_SUBREAPER`). Linux only.

Commands that start a stack have its supervisor forked, too: see `forked_stack`.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Self

from pipeline.standalone.program import SHARED
from tests.support import forked_stack, title

ROOT = Path(__file__).resolve().parents[2]
_SET_CHILD_SUBREAPER = 36
_STEP_S = 0.02
_MESSAGE_BYTES = 1 << 17
ROOM_BYTES = 1 << 14
"""The space for a forked program's arguments and environment, where the system keeps its own."""
PERSONAL = ("PENSTOCK_", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM")
"""Variables of the tests' caller that programs under test must not see."""
_MODULES = (
    *SHARED,
    "celery.bin.celery",
    "celery.app.events",
    "celery.app.control",
    "celery.app.amqp",
    "celery.app.log",
    "celery.fixups.django",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlite3",
    "typer",
    "typer.rich_utils",
    "rich.console",
    "rich.live",
    "rich.progress",
    "rich.table",
    "rich.markup",
    "rich.panel",
    "rich.traceback",
)
"""Modules that programs import late, too."""
_NOT_IMPORTED = ("pipeline.interfaces", "pipeline.storage.migrations", "pipeline.reading.text.hypertext")


class Forked:
    """A child of this process, as `subprocess.Popen` has it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None

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

    def send_signal(self, number: int) -> None:
        """Send the signal. Harmless if the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forker:
    """A client of the process that forks programs."""

    def __init__(self, channel: socket.socket) -> None:
        self._lock = threading.Lock()
        self._channel = channel

    def start(
        self,
        program: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        stdin: IO[Any] | int,
        stdout: IO[Any] | int,
        stderr: IO[Any] | int,
    ) -> Forked:
        """Start one of `PROGRAMS` (`python`: a module with its arguments) with these arguments and standard streams."""
        request = {"program": program, "arguments": list(arguments), "env": dict(env), "cwd": str(cwd)}
        streams = [stream if isinstance(stream, int) else stream.fileno() for stream in (stdin, stdout, stderr)]
        with self._lock:
            _adopt_orphans(True)
            try:
                socket.send_fds(self._channel, [json.dumps(request).encode()], streams)
                answer = self._channel.recv(64)
            finally:
                _adopt_orphans(False)
        assert answer, "the preloaded process has ended"
        return Forked(int(answer))


class Preloaded(Forker):
    """The process with all imports. A context manager: leaving it ends that process, but not its forks."""

    def __init__(self) -> None:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(near)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(PERSONAL)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(far.fileno()), "-" * ROOM_BYTES],
            env=inherited | {"ROOM": "-" * ROOM_BYTES},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            pass_fds=[far.fileno()],
        )
        far.close()

    def close(self) -> None:
        self._channel.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_shared: list[Preloaded] = []


def preloaded() -> Preloaded:
    """Return this session's preloaded process. The first call starts it."""
    if not _shared:
        _shared.append(Preloaded())
    return _shared[0]


def close_preloaded() -> None:
    """End the process, if it runs."""
    while _shared:
        _shared.pop().close()


def _adopt_orphans(on: bool) -> None:
    """Set whether descendants that lose their parent become children of this process."""
    assert ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) == 0


def _import_all() -> None:
    """Import the modules of programs, except for those that read settings or the terminal at import, and for
    markitdown, whose threads of C++ do not survive a fork."""
    for name in (*_MODULES, "tests.support.preloaded"):
        importlib.import_module(name)
    for path in sorted((ROOT / "pipeline").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if not name.startswith(_NOT_IMPORTED):
            importlib.import_module(name)
    assert not any(name.startswith(_NOT_IMPORTED) for name in sys.modules), "a module imports the terminal"
    settings = sys.modules["pipeline.settings"]
    assert settings.get_settings.cache_info().currsize == 0, "a module reads settings when it is imported"
    assert threading.active_count() == 1, "a module starts threads when it is imported"


Request = tuple[dict[str, Any], list[int]]
"""A program to become, with its standard streams."""


def serve(channel: socket.socket) -> Request | None:
    """Fork for each request and answer with the process. Returns the request in the fork, and None at the end."""
    while True:
        message, streams, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 3)
        if not message:
            return None
        from_child, to_server = os.pipe()
        between = os.fork()
        if between == 0:
            if os.fork():
                os._exit(0)
            os.setsid()
            os.write(to_server, str(os.getpid()).encode())
            os.close(to_server)
            os.close(from_child)
            channel.close()
            return json.loads(message), streams
        for descriptor in (to_server, *streams):
            os.close(descriptor)
        os.waitpid(between, 0)
        with os.fdopen(from_child, "rb") as pipe:
            channel.send(pipe.read())


def _become(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Take the environment, the folder, the arguments and the streams of the request."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = [request["program"], *request["arguments"]]
    title.show(sys.argv, request["env"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False, buffering=_buffering(1))  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115


def _buffering(descriptor: int) -> int:
    return 1 if os.isatty(descriptor) else -1


def _python() -> None:
    """`python -m MODULE …`"""
    sys.path[0] = str(Path.cwd())
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _script() -> None:
    """`python -c PROGRAM …`"""
    sys.path[0] = ""
    program = sys.argv.pop(1)
    sys.argv[0] = "-c"
    sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(program, "<string>", "exec"), vars(sys.modules["__main__"]))


def _penstock() -> None:
    from pipeline.interfaces.cli import main as penstock

    sys.exit(penstock())


def _supervisor() -> None:
    from pipeline.standalone.serve import main as supervise

    sys.exit(supervise())


PROGRAMS: dict[str, Callable[[], None]] = {
    "python": _python,
    "script": _script,
    "penstock": _penstock,
    forked_stack.SUPERVISOR: _supervisor,
}


def main() -> None:
    _import_all()
    # Freeze the present objects: collecting them would only copy pages in every process.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a Ctrl-C for pytest ends it, too
    wanted = serve(socket.socket(fileno=int(sys.argv[1])))
    while wanted is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        program = wanted[0]["program"]
        _become(*wanted)
        wanted = forked_stack.prepare(program)
        if wanted is None:
            PROGRAMS[program]()


if __name__ == "__main__":
    main()
