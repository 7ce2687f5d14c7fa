"""What a child process does, by the task's name. Each task answers with an object that JSON can hold.

Each room lists in its module `tasks` what children do for it. They are imported by their names, and by child processes
alone: rooms import the sandbox, which knows none of them.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from pipeline.reading.sandbox.limits import Task

_ROOMS = ("export", "ocr", "pdf", "text", "web")

TASKS: dict[str, Callable[[Task], dict[str, Any]]] = {}
for _room in _ROOMS:
    TASKS.update(import_module(f"pipeline.reading.{_room}.tasks").TASKS)
