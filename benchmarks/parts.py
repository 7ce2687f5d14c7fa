"""Parts of a benchmark: each is measured in a process and a data folder of its own, which end with it."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from benchmarks.support import CORPUS, ROOT, BenchmarkError, end_all

GRACE_S = 20.0
"""Time for a part to end its processes after a signal."""


class _Ended(BaseException):
    """A signal asks this process to stop."""


def _end(_number: int, _frame: object) -> NoReturn:
    raise _Ended


def ended_by_signal(work: Callable[[], int]) -> int:
    """Return the exit code of `work`; 1 after a signal, when all processes of `work` have ended."""
    before = signal.signal(signal.SIGTERM, _end)  # the exception runs all `finally` blocks
    try:
        return work()
    except _Ended:
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)


def inside(work: Callable[[], int]) -> NoReturn:
    """End this process of a part with the exit code of `work`."""
    code = ended_by_signal(work)
    sys.stdout.flush()
    os._exit(code)  # at once: results that Celery still holds would ask a Redis that has ended


def measured(module: str, name: str, limit_s: float, *, quick: bool, env: Mapping[str, str]) -> str:
    """Return the last line of `python -m MODULE --part NAME`. Raises `BenchmarkError`; leaves no process or folder."""
    folder = Path(tempfile.mkdtemp(prefix="ps-", dir="/tmp"))
    try:
        return _output(module, name, folder, limit_s, quick=quick, env=env)
    finally:
        if strays := end_all(folder):
            sys.stderr.write(f"{name}: {strays} processes had to be killed\n")
        shutil.rmtree(folder, ignore_errors=True)


def _output(module: str, name: str, folder: Path, limit_s: float, *, quick: bool, env: Mapping[str, str]) -> str:
    sys.stderr.write(f"{name}\n")
    command = [sys.executable, "-m", module, "--part", name, *(["--quick"] if quick else [])]
    # Without the caller's settings, which would change the results.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    own = {**inherited, "PENSTOCK_DATA_DIR": str(folder), "PENSTOCK_CORPUS": str(CORPUS), **env}
    with subprocess.Popen(command, cwd=ROOT, env=own, stdout=subprocess.PIPE, text=True) as running:
        try:
            output, _ = running.communicate(timeout=limit_s)
        except BaseException as error:
            running.terminate()
            _wait_or_kill(running)
            if isinstance(error, subprocess.TimeoutExpired):
                raise BenchmarkError(f"not done after {limit_s:.0f} s: give each part more with --limit-s") from error
            raise
    lines = output.strip().splitlines()
    if running.returncode != 0 or not lines:
        raise BenchmarkError("\n    ".join(lines) or f"ended with {running.returncode}; see above")
    return lines[-1]


def _wait_or_kill(running: "subprocess.Popen[str]") -> None:
    try:
        running.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        running.kill()
        running.communicate()
