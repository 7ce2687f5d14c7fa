"""Stacks whose supervisors are forked, as `preloaded` does: a supervisor takes seconds of a processor for its imports.

A command that may start a stack forks a helper while it is still as it was forked itself. That helper forks the
supervisor when the command asks `subprocess` for it. Stacks that are started for real are those of `Cli.real`: the one
that most tests share, and some that end theirs.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.preloaded import Forked, Forker, Request

SUPERVISOR = "pipeline.standalone.serve"


def prepare(program: str) -> "Request | None":
    """Make `program` fork the supervisor that it starts. Returns None in the program, the request in the fork."""
    if program != "penstock":
        return None
    from tests.support.preloaded import Forker, serve

    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        near.close()
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        wanted = serve(far)
        if wanted is None:
            os._exit(0)  # the program has ended
        return wanted
    far.close()
    _patch(Forker(near))
    return None


def _patch(forker: "Forker") -> None:
    from pipeline.standalone import demand

    demand.subprocess = SimpleNamespace(Popen=_Starter(forker), DEVNULL=subprocess.DEVNULL)  # type: ignore[assignment, attr-defined]


class _Starter:
    """As `subprocess.Popen`, for supervisors."""

    def __init__(self, forker: "Forker") -> None:
        self._forker = forker

    def __call__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: int,
        stdout: IO[bytes],
        stderr: IO[bytes],
        start_new_session: bool,
    ) -> "Forked":
        assert command[-1] == SUPERVISOR
        assert start_new_session
        with Path(os.devnull).open("rb") as nothing:
            return self._forker.start(SUPERVISOR, [], env, Path.cwd(), nothing, stdout, stderr)
