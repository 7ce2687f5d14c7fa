"""Start the process of a child: a server that has loaded its libraries forks it, or a new program starts."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

from pipeline.engine import search_path

FORKS = sys.platform == "linux"
"""Whether a loaded process may fork children. The system libraries of macOS do not survive a fork."""
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH")
_ANSWER_S = 10.0
_servers: list[tuple[Path, float]] = []


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


def is_served() -> bool:
    """Whether `use_server` has named a server; asks no server whether it lives."""
    return bool(_servers)


def start(lifeline: int) -> Process:
    """Return a new child's process: forked by the server if that answers, otherwise a new program.

    `lifeline`: the reading end of the pipe whose closing ends the child. Raises `OSError` if no child can be started.
    """
    for path, until in _servers:
        while True:
            try:
                return _Forked(path, lifeline)
            except OSError:
                if time.monotonic() >= until:
                    break
            time.sleep(0.01)
    return _Started(lifeline)


def environment() -> dict[str, str]:
    """Return the environment of a child: no secrets, and variables that keep it small."""
    passed_on = {name: value for name, value in search_path.environment().items() if name in _PASSED_ON}
    return passed_on | {
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
            socket.send_fds(self._caller, [b"1"], [child_stdin, child_stdout, lifeline])
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
