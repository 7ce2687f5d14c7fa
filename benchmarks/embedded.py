"""The embedded stack: how long it takes to be ready, and what all its processes cost while nothing is to be done."""

import signal
import sys
import time
from statistics import median

import psutil

from benchmarks.commands import shell_s
from benchmarks.memory import memory_of
from benchmarks.suite import Figures
from benchmarks.support import (
    START_S,
    is_ready,
    penstock,
    process,
    progress,
    spread,
    stack,
    use_provider,
    use_settings,
    wait_until,
)
from pipeline.settings import get_settings
from tests.support.redis_server import free_port

SETTLED_S = 30.0
"""After its start the stack loads what it needs, sweeps for the first time, and beat makes its schedule."""
_IMPORT_ALL = """
import importlib, pkgutil
import celery.apps.beat, celery.apps.worker, celery.bin.celery
for name in ("tasks", "pipeline.flows", "pipeline.interfaces.api", "pipeline.standalone"):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""
"""What the processes of a stack run: every task and flow, the REST API, and Celery's programs. Never less, whatever
those processes import late."""


def measure_start(rounds: int = 7) -> Figures:
    """up_ready_vs_import: from `penstock up` until its API is ready, of one import of it all in a new Python."""
    port = free_port()
    use_settings(PENSTOCK_API__PORT=str(port))
    _ready_s(port)  # makes the folder
    ready, imported = [], []
    for number in range(rounds):
        progress(f"an import of it all, and penstock up, {number + 1} of {rounds}")
        imported.append(shell_s([sys.executable, "-c", _IMPORT_ALL]))
        ready.append(_ready_s(port))
    return {
        "up_ready_vs_import": round(median(ready) / median(imported), 2),
        "from penstock up until it is ready": spread(ready, "s"),
        "one import": spread(imported, "s"),
    }


def _ready_s(port: int) -> float:
    begun = time.monotonic()
    with process([*penstock(), "up", "--api"], get_settings().data_dir / "up.log", end=signal.SIGINT):
        wait_until("the API", lambda: is_ready(port), START_S)
        return time.monotonic() - begun


def measure_rest(window_s: float = 20.0, settled_s: float = SETTLED_S) -> Figures:
    """idle_cpu: CPU seconds of all processes, in percent of the time that passed; stack_pss_mb: their memory (PSS)."""
    with stack(api=True) as pid:
        time.sleep(settled_s)
        progress(f"doing nothing for {window_s:g} s")
        before, begun = _cpu_s(pid), time.monotonic()
        time.sleep(window_s)
        after, took_s = _cpu_s(pid), time.monotonic() - begun
        memory, processes = memory_of(psutil.Process(pid))
    spent = {name: (after[name] - before.get(name, 0.0)) / took_s * 100 for name in after}
    return {
        "idle_cpu": round(sum(spent.values()), 2),
        "stack_pss_mb": round(memory.pss),
        **{f"{name}, %": round(each, 2) for name, each in spent.items()},
        "processes, and the sum of their RSS, MB": f"{processes}, {memory.rss:.0f}",
    }


def measure_rest_with_provider(window_s: float = 20.0, settled_s: float = SETTLED_S) -> Figures:
    """The same of a stack that has a provider, and so one more worker."""
    use_provider("http://127.0.0.1:9", limits="10/s", concurrency=6)
    return measure_rest(window_s, settled_s)


def _cpu_s(supervisor: int) -> dict[str, float]:
    """CPU seconds so far, by what a process does; a pool's processes count for their worker."""
    found: dict[str, float] = {}
    parent = psutil.Process(supervisor)
    for one in [parent, *parent.children(recursive=True)]:
        used = one.cpu_times()
        name = "supervisor" if one.pid == supervisor else one.name().removeprefix("worker-")
        found[name] = found.get(name, 0.0) + used.user + used.system
    return found
