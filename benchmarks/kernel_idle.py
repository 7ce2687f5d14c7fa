"""What the embedded stack costs while nothing is to be done: Redis, three workers, beat and their supervisor."""

import json
import os
import time
from typing import Any

import psutil

from benchmarks.support import progress, stack
from pipeline.settings import get_settings
from pipeline.storage.context import forget_context

SETTLED_S = 30.0
"""After its start the stack loads what it needs, sweeps for the first time, and beat makes its schedule."""


def measure(window_s: float = 30.0) -> dict[str, Any]:
    """idle_cpu: CPU seconds of all its processes, in percent of the time that passed."""
    provider = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "limits": "10/s", "concurrency": 6}
    os.environ["PENSTOCK_PROVIDERS"] = json.dumps({"sample": provider})
    get_settings.cache_clear()
    forget_context()
    with stack() as pid:
        time.sleep(SETTLED_S)
        progress(f"doing nothing for {window_s:g} s")
        before, begun = _cpu_s(pid), time.monotonic()
        time.sleep(window_s)
        after, took_s = _cpu_s(pid), time.monotonic() - begun
    spent = {name: (after[name] - before.get(name, 0.0)) / took_s * 100 for name in after}
    return {"idle_cpu": round(sum(spent.values()), 2)} | {f"{name}, %": round(each, 2) for name, each in spent.items()}


def _cpu_s(supervisor: int) -> dict[str, float]:
    """CPU seconds so far, by what a process does; a pool's processes count for their worker."""
    found: dict[str, float] = {}
    parent = psutil.Process(supervisor)
    for one in [parent, *parent.children(recursive=True)]:
        used = one.cpu_times()
        name = "supervisor" if one.pid == supervisor else _name(one.cmdline())
        found[name] = found.get(name, 0.0) + used.user + used.system
    return found


def _name(command: list[str]) -> str:
    return next((word.split("@")[0] for word in command if "@%h" in word), "beat" if "beat" in command else "redis")
