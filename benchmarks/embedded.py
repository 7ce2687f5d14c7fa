"""The embedded stack: the time until it is ready, and the cost of its processes at rest."""

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
"""After its start the stack loads modules and sweeps for the first time, and beat writes its schedule."""
_IMPORT_ALL = """
import importlib, pkgutil
import celery.apps.beat, celery.apps.worker, celery.bin.celery
for name in ("tasks", "pipeline.flows", "pipeline.interfaces.api", "pipeline.standalone"):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""
"""Imports the code of all processes of a stack: every task and flow, the REST API, and Celery's programs. It also
imports modules that those processes load late, so that a later import there does not change the yardstick."""


def measure_start(rounds: int = 7) -> Figures:
    """Measure up_ready_vs_import: from `penstock up` until its API is ready, of one such import in a new Python."""
    port = free_port()
    use_settings(PENSTOCK_API__PORT=str(port))
    _ready_s(port)  # makes the folder
    ready, imported = [], []
    for number in range(rounds):
        progress(f"one import of all modules, and penstock up, {number + 1} of {rounds}")
        imported.append(shell_s([sys.executable, "-c", _IMPORT_ALL]))
        ready.append(_ready_s(port))
    return {
        "up_ready_vs_import": round(median(ready) / median(imported), 2),
        "from penstock up until it is ready": spread(ready, "s"),
        "one import": spread(imported, "s"),
    }


def _ready_s(port: int) -> float:
    started = time.monotonic()
    with process([*penstock(), "up", "--api"], get_settings().data_dir / "up.log", end=signal.SIGINT):
        wait_until("the API", lambda: is_ready(port), START_S)
        return time.monotonic() - started


def measure_rest(window_s: float = 20.0, settled_s: float = SETTLED_S) -> Figures:
    """Measure idle_cpu, CPU seconds of all processes in percent of the time, and stack_pss_mb, their memory (PSS)."""
    with stack(api=True) as pid:
        time.sleep(settled_s)
        progress(f"doing nothing for {window_s:g} s")
        before, started = _cpu_s(pid), time.monotonic()
        time.sleep(window_s)
        after, took_s = _cpu_s(pid), time.monotonic() - started
        memory, processes = memory_of(psutil.Process(pid))
    spent = {name: (after[name] - before.get(name, 0.0)) / took_s * 100 for name in after}
    return {
        "idle_cpu": round(sum(spent.values()), 2),
        "stack_pss_mb": round(memory.pss),
        **{f"{name}, %": round(each, 2) for name, each in spent.items()},
        "processes, and the sum of their RSS, MB": f"{processes}, {memory.rss:.0f}",
    }


def measure_rest_with_provider(window_s: float = 20.0, settled_s: float = SETTLED_S) -> Figures:
    """Measure the same of a stack with a provider, which has one more worker."""
    use_provider("http://127.0.0.1:9", limits="10/s", concurrency=6)
    return measure_rest(window_s, settled_s)


def _cpu_s(supervisor: int) -> dict[str, float]:
    """Return CPU seconds so far by role of the process. A pool's processes count for their worker."""
    used_s: dict[str, float] = {}
    parent = psutil.Process(supervisor)
    for member in [parent, *parent.children(recursive=True)]:
        used = member.cpu_times()
        name = "supervisor" if member.pid == supervisor else member.name().removeprefix("worker-")
        used_s[name] = used_s.get(name, 0.0) + used.user + used.system
    return used_s
