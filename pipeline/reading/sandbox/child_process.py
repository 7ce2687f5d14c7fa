"""Start the process of a child: a server that has loaded its libraries forks it, or a new program starts.

The server is the stack's, or one that this process starts for itself and its forks with its first child.
"""

import atexit
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, Protocol

from pipeline.engine import search_path

FORKS = sys.platform == "linux"
"""Whether a loaded process may fork children. The system libraries of macOS do not survive a fork."""
LIBRARIES = (
    "bs4",
    "charset_normalizer",
    "cv2",
    "defusedxml.ElementTree",
    "imagehash",
    "markdown_it",
    "markitdown.converters",
    "mutagen",
    "pikepdf",
    "python_calamine",
    "rapidocr",
    "trafilatura",
)
"""Large modules that some tasks import. A child tells which it has imported, so that the server imports them before it
forks the next."""
_ANSWER_S, _START_S = 10.0, 30.0
_servers: list[tuple[Path, float]] = []
_own: "list[tuple[subprocess.Popen[bytes], Path]]" = []
"""The server that this process has started for itself, if any, and its folder."""
_own_sockets: set[Path] = set()
"""The sockets of servers that this process or its parent has started for itself."""
_own_lock = threading.Lock()
_inherited: list[object] = []  # kept, since dropping another process's pipe would close a number of ours
_loaded: set[str] = set()


class Process(Protocol):
    """A child's process, like `subprocess.Popen`."""

    stdin: IO[bytes]
    stdout: IO[bytes]

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Return the exit code, -N for signal N; None while it runs."""

    def wait(self) -> int:
        """Wait for the end and return the exit code."""

    def kill(self) -> None: ...

    def close(self) -> None:
        """Release what reports the exit code. Call it after `wait`, or in a process forked from the child's parent."""


def use_server(path: Path, patience_s: float = 0.0) -> None:
    """Let the `child_server` at this socket fork the children that `start` returns from now on, whenever it answers.
    Does nothing where `FORKS` is false.

    `patience_s`: for how long from now `start` waits for a new server to listen.
    """
    _servers[:] = [(path, time.monotonic() + patience_s)] if FORKS else []


def serve() -> bool:
    """Make sure that a server forks children for this process and its later forks, unless `FORKS` is false or none can
    be started; return whether one does. Asks no existing server whether it lives."""
    with _own_lock:
        if _servers or not FORKS:
            return bool(_servers)
        folder = Path(mkdtemp(prefix="penstock-readers-"))
        command = search_path.program("pipeline.reading.sandbox.child_server", str(folder / "socket"), "own")
        try:
            # In a session of its own: Ctrl-C is for this process, whose end ends the server.
            process = subprocess.Popen(  # noqa: S603  # our own program
                command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
            )
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            return False
        _own.append((process, folder))
        _own_sockets.add(folder / "socket")
        use_server(folder / "socket", _START_S)
        return True


def end_server() -> None:
    """End the server that this process has started for itself, and wait for its end; harmless without one."""
    while _own:
        process, folder = _own.pop()
        _servers.clear()
        if process.stdin:
            process.stdin.close()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)  # if it was killed


def _disown() -> None:
    """In a fork, leave the server to the process that has started it."""
    global _own_lock  # noqa: PLW0603  # another thread of the parent may have held it
    _own_lock = threading.Lock()
    _inherited.extend(_own)
    for process, _ in _own:
        process.returncode = 0
    _own.clear()


os.register_at_fork(after_in_child=_disown)
atexit.register(end_server)


def preload(modules: Iterable[str]) -> None:
    """Let servers import these of `LIBRARIES` before they fork the next child."""
    _loaded.update(set(LIBRARIES).intersection(modules))


def start(lifeline: int) -> Process:
    """Return a new child's process: forked by the server if that answers, otherwise a new program.

    `lifeline`: the reading end of the pipe whose closing ends the child. Raises `OSError` if no child can be started.
    """
    serve()
    for path, until in _servers:
        while True:
            try:
                return _Forked(path, lifeline)
            except OSError:
                if time.monotonic() >= until or any(server.poll() is not None for server, _ in _own):
                    break
            time.sleep(0.01)
    if any(path in _own_sockets for path, _ in _servers):
        end_server()
        _servers.clear()  # the next child gets a new one
    return _Started(lifeline)


def environment() -> dict[str, str]:
    """Return the environment of a child: no secrets, and variables that keep it small."""
    return search_path.environment_without_keys() | {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
        # Free memory returns to the system at once: an idle child takes 180 MB instead of 370 after recognition, and
        # 100 instead of 160 after the layout model, at the same speed.
        "MALLOC_TRIM_THRESHOLD_": "20000000",
        # Since 1.29, ONNX Runtime sends usage data to its makers, and keeps a file of it in the temporary folder.
        "ORT_DISABLE_TELEMETRY": "1",
    }


class _Started(subprocess.Popen[bytes]):
    """A child started as a new program."""

    stdin: IO[bytes]
    stdout: IO[bytes]

    def __init__(self, lifeline: int) -> None:
        # In the worker's process group: a signal to the group kills this process as well.
        super().__init__(
            search_path.program("pipeline.reading.sandbox.child_main", str(lifeline)),
            pass_fds=[lifeline],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            bufsize=0,
        )

    def close(self) -> None:
        """Nothing to release: the system reports the exit code."""


class _Forked:
    """A child forked by the server. Raises `OSError` if no server answers."""

    def __init__(self, server: Path, lifeline: int) -> None:
        self._caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        child_stdin, stdin = os.pipe()
        stdout, child_stdout = os.pipe()
        self.stdin: IO[bytes] = os.fdopen(stdin, "wb", buffering=0)
        self.stdout: IO[bytes] = os.fdopen(stdout, "rb", buffering=0)
        self._status: int | None = None
        try:
            self._caller.settimeout(_ANSWER_S)
            self._caller.connect(str(server))
            wanted = " ".join(sorted(_loaded))
            socket.send_fds(self._caller, [f"load {wanted}".encode()], [child_stdin, child_stdout, lifeline])
            answer, descriptors, _, _ = socket.recv_fds(self._caller, 16, 1, socket.MSG_CMSG_CLOEXEC)
            if not descriptors:
                raise ConnectionError("the server has ended")
        except OSError:
            self._caller.close()
            self.stdin.close()
            self.stdout.close()
            raise
        finally:
            os.close(child_stdin)
            os.close(child_stdout)
        self.pid, self._descriptor = int(answer), descriptors[0]

    def poll(self) -> int | None:
        if self._status is None and self._ended(0):
            self.wait()
        return self._status

    def wait(self) -> int:
        if self._status is None:
            self._ended(None)
            with suppress(OSError):
                # A killed server sends no status: its child's exit code is unknown.
                self._status = int(self._caller.recv(16) or -signal.SIGKILL)
            self._status = -signal.SIGKILL if self._status is None else self._status
        return self._status

    def _ended(self, timeout_s: float | None) -> bool:
        return bool(select.select([self._descriptor], [], [], timeout_s)[0])

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def close(self) -> None:
        self._caller.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
