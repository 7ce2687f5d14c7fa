"""All tasks of child processes, by name. Each task returns an object that JSON can hold.

Each room lists its tasks in its module `tasks`. Only child processes import these modules, by name: rooms import the
sandbox, so the sandbox must not import rooms.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from pipeline.reading.sandbox import confinement
from pipeline.reading.sandbox.limits import Task

_ROOMS = ("export", "ocr", "pdf", "replies", "text", "web")

TASKS: dict[str, Callable[[Task], dict[str, Any]]] = {"defences": lambda _: {"active": confinement.active}}
for _room in _ROOMS:
    TASKS.update(import_module(f"pipeline.reading.{_room}.tasks").TASKS)
