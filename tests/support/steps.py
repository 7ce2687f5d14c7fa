"""The steps of our own code: the lines that it executes, which need no clock."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pipeline

_FOLDER = str(Path(pipeline.__file__).parent)


def steps_of(act: Callable[[], object]) -> int:
    """Return the number of lines of the package `pipeline` that `act()` executes in this thread; each repeat of a line
    counts."""
    steps = 0

    def count(_: FrameType, event: str, __: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return count

    def enter(frame: FrameType, *_: Any) -> Any:
        return count if frame.f_code.co_filename.startswith(_FOLDER) else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        act()
    finally:
        sys.settrace(before)
    return steps
