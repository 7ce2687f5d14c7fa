"""The folder of a test session, and its leftover processes."""

import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

_GONE_S = 10
"""How long processes may take to end after a signal."""


@cache
def session_folder() -> Path:
    """All temporary folders of this process are in it. Its path is short enough for unix sockets in them."""
    return Path(tempfile.mkdtemp(prefix="ps-", dir="/tmp")).resolve()


def short_folder() -> Path:
    """A new empty folder."""
    return Path(tempfile.mkdtemp(dir=session_folder(), prefix=""))


def remove_session_folder() -> None:
    shutil.rmtree(session_folder(), ignore_errors=True)


def leaked_processes() -> list[str]:
    """Processes that tests started and did not end, a line each: descendants, and processes in our folder."""
    ours = {process.pid: process for process in psutil.Process().children(recursive=True)}
    ours |= {process.pid: process for process in psutil.process_iter() if _works_here(process)}
    ours.pop(os.getpid(), None)
    _, alive = psutil.wait_procs(list(ours.values()), timeout=_GONE_S)
    found = []
    for process in alive:
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
                process.kill()
    return found


def _works_here(process: psutil.Process) -> bool:
    with suppress(psutil.Error, OSError):
        folder = str(session_folder())
        said = [*process.cmdline(), process.environ().get("PENSTOCK_DATA_DIR", "")]
        return any(folder in words for words in said)
    return False
