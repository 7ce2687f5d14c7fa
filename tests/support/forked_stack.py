"""Stacks whose processes are forked, as `preloaded` does: a stack takes nine seconds of a processor to start, most of
it for imports.

A program that may start a stack forks a helper while it is still as it was forked itself. That helper forks the
supervisor or the workers when the program asks `subprocess` for them. Stacks that are started for real are those of
`Cli.real`: the one that most tests share, and some that end theirs.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.preloaded import Forked, Forker, Request

SUPERVISOR, CHILD = "pipeline.standalone.serve", "pipeline.standalone.child"
_STARTERS = ("penstock", SUPERVISOR)
"""Programs that start others of a stack."""


def prepare(program: str) -> "Request | None":
    """Have what `program` starts of a stack forked. None in the program itself; what to become, in what was forked."""
    if program not in _STARTERS:
        return None
    from tests.support.preloaded import Forker, serve

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        wanted = serve(theirs)
        if wanted is None:
            os._exit(0)  # the program has ended
        return wanted
    theirs.close()
    _patch(Forker(ours))
    return None


def _patch(forker: "Forker") -> None:
    from pipeline.standalone import processes, stack

    modules: tuple[ModuleType, ...] = (processes, stack)
    for module in modules:
        instead = SimpleNamespace(Popen=_Starter(forker), PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
        setattr(module, "subprocess", instead)  # noqa: B010


class _Starter:
    """As `subprocess.Popen`, for processes of a stack."""

    def __init__(self, forker: "Forker") -> None:
        self._forker = forker

    def __call__(
        self, command: Sequence[str], *, env: Mapping[str, str], stdin: int, stdout: IO[bytes] | None,
        stderr: IO[bytes] | None, start_new_session: bool,
    ) -> "subprocess.Popen[bytes] | Forked":  # fmt: skip
        module = command[command.index("-m") + 1] if "-m" in command else ""
        if module not in {SUPERVISOR, CHILD}:
            return subprocess.Popen(
                command, env=env, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=start_new_session
            )
        given, kept = os.pipe()
        streams: tuple[Any, ...] = (given, 1 if stdout is None else stdout, 2 if stderr is None else stderr)
        process = self._forker.start(module, command[command.index(module) + 1 :], env, Path.cwd(), *streams)
        os.close(given)
        if stdin == subprocess.PIPE:
            process.stdin = os.fdopen(kept, "wb")
        else:
            os.close(kept)  # what it reads is at its end
        return process
