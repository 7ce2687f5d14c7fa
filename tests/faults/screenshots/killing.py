"""A worker that dies at a named point: imported by `doomed` and by workers with `-I tests.faults.screenshots.killing`.

`KILL_AT` names a function and a moment: `MODULE:FUNCTION:before`, `:after` its first call, or `:during` it, shortly
after its start. The whole process gets SIGKILL, as from the system's OOM killer.
"""

import functools
import importlib
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

DURING_S = 0.15
"""Less than the latency of the provider."""


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _deadly(function: Callable[..., Any], when: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if when == "before":
            _die()
        if when == "during":
            threading.Timer(DURING_S, _die).start()
        result = function(*args, **kwargs)
        # A claim without a unit does not count as a step of the flow.
        if when == "after" and result is not None:
            _die()
        return result

    return call


def arm(point: str) -> None:
    """Make the function kill the process, for callers that read it from its module or its class."""
    module_name, name, when = point.split(":")
    holder: Any = importlib.import_module(module_name)
    *path, last = name.split(".")
    for part in path:
        holder = getattr(holder, part)
    setattr(holder, last, _deadly(getattr(holder, last), when))


if os.environ.get("KILL_AT"):
    arm(os.environ["KILL_AT"])
