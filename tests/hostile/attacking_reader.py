"""A server of readers whose children do one more task: `attack`, which tries what code in a hostile file would.

`python -m tests.hostile.attacking_reader SOCKET`
"""

import ctypes
import os
import resource
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

from pipeline.reading.sandbox import child_server
from pipeline.reading.sandbox.limits import Task
from pipeline.reading.sandbox.tasks import TASKS

_PTRACE_ATTACH = 16
_SENDMSG = {"x86_64": 46, "aarch64": 211}[os.uname().machine]


def attack(task: Task) -> dict[str, Any]:
    """Return what each attack achieved; empty for one that was refused."""
    library = ctypes.CDLL(None, use_errno=True)
    supervisor, scratch, proof = int(task["supervisor"]), Path(task["writes"][0]), Path(task["proof"])
    program = [b"/bin/sh", b"-c", f"echo out > {proof}".encode(), None]

    def execute() -> object:
        library.execv(program[0], (ctypes.c_char_p * 4)(*program))
        return ""  # it returns only if it fails

    def datagram() -> object:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            return out.sendmsg([b"secret"], [], 0, ("127.0.0.1", int(task["port"])))

    attacks: dict[str, Callable[[], object]] = {
        "environment": lambda: Path(f"/proc/{supervisor}/environ").read_bytes()[:1],
        "database": lambda: Path(task["database"]).read_bytes()[:1],
        "other document": lambda: Path(task["other"]).read_bytes()[:1],
        "processor": lambda: _raised(resource.RLIMIT_CPU),
        "memory": lambda: _raised(resource.RLIMIT_AS),
        "files": lambda: _raised(resource.RLIMIT_FSIZE),
        "datagram": datagram,
        "bare socket": lambda: library.socket(socket.AF_INET, socket.SOCK_DGRAM, 0) + 1,
        "message": lambda: library.syscall(_SENDMSG, 0, None, 0) + 1,
        "system": lambda: library.system(f"echo out > {proof}".encode()) == 0,
        "debugger": lambda: library.ptrace(_PTRACE_ATTACH, supervisor, 0, 0) == 0,
        "signal": lambda: library.kill(supervisor, 0) == 0,
        "mode": lambda: library.chmod(str(task["database"]).encode(), 0o644) == 0,
        "write": lambda: proof.write_text("out"),
        "own file": lambda: task.path.write_text("changed"),
    }
    thread_ran: list[str] = []
    thread = Thread(target=lambda: thread_ran.append(task.path.read_text(encoding="utf-8")))
    thread.start()
    thread.join()
    (scratch / "page.txt").write_text(thread_ran[0])
    (scratch / "page.txt").replace(scratch / "kept.txt")
    return {"achieved": [name for name, act in attacks.items() if _achieves(act)], "last": _achieves(execute)}


def _achieves(act: Callable[[], object]) -> bool:
    try:
        return bool(act())
    except (OSError, ValueError):
        return False


def _raised(limit: int) -> bool:
    hard = resource.getrlimit(limit)[1]
    resource.setrlimit(limit, (hard, hard))  # as far as the system lets it
    return resource.getrlimit(limit)[0] == resource.RLIM_INFINITY


if __name__ == "__main__":
    TASKS["attack"] = attack
    child_server.main(Path(sys.argv[1]))
