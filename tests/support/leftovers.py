"""The folder of a test session, and its leftover processes."""

import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

_GONE_S = 10
"""The time that processes may take to end after a signal."""
_MADE_BY: dict[str, str] = {}
"""By folder, the test that created it."""


@cache
def session_folder() -> Path:
    """All temporary folders of this process are in it. Its path is short enough for unix sockets in them."""
    return Path(tempfile.mkdtemp(prefix="ps-", dir="/tmp")).resolve()


def short_folder() -> Path:
    """Create an empty folder."""
    path = tempfile.mkdtemp(dir=session_folder(), prefix="")
    _MADE_BY[path] = os.environ.get("PYTEST_CURRENT_TEST", "")
    return Path(path)


def remove_session_folder() -> None:
    shutil.rmtree(session_folder(), ignore_errors=True)


def leaked_processes() -> list[str]:
    """Kill the processes that tests left behind, descendants and processes in our folder. Returns a line for each."""
    own = {process.pid: process for process in psutil.Process().children(recursive=True)}
    own |= {process.pid: process for process in psutil.process_iter() if _works_here(process)}
    own.pop(os.getpid(), None)
    _, alive = psutil.wait_procs(list(own.values()), timeout=_GONE_S)
    leaked = []
    for process in alive:
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                command = " ".join(process.cmdline())
                tests = [test for folder, test in _MADE_BY.items() if folder in command]
                leaked.append(f"{process.pid} {' '.join([command.strip()[:200], *tests])}")
                process.kill()
    return leaked


def _works_here(process: psutil.Process) -> bool:
    with suppress(psutil.Error, OSError):
        folder = str(session_folder())
        texts = [*process.cmdline(), process.environ().get("PENSTOCK_DATA_DIR", "")]
        return any(folder in words for words in texts)
    return False
