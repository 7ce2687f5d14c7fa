"""Bounds for parsing Markdown: this process parses small texts; a child process with a time limit parses the others.

The parser takes up to 25 µs for each character twenty levels of brackets deep, and makes up to 65,000 cells of a table
of a few lines. Parsing 340,000 characters from a model blocked the process for eight seconds.
"""

from collections.abc import Iterable
from typing import Any

from pipeline.reading.sandbox import child
from pipeline.reading.sandbox.limits import Limits

_MOST_CHARACTERS, _MOST_MARKS = 6_000, 200
_MARKS = "[]!<>|*_`~&\\\n"
"""Characters that begin a Markdown construct or end a line."""
_LIMITS = Limits(timeout_s=2, total_s=2, memory_mb=500, max_chars=1_500_000)


def is_small(parts: Iterable[str]) -> bool:
    """Whether these texts are so short and have so few marks that parsing them here takes at most a tenth of a second;
    otherwise use `by_child`."""
    characters = marks = 0
    for part in parts:
        characters += len(part)
        if characters > _MOST_CHARACTERS:
            return False
        marks += sum(map(part.count, _MARKS))
    return marks <= _MOST_MARKS


def by_child(task: str, **facts: Any) -> dict[str, Any]:
    """Let a sandboxed child process do a task on texts, for at most 2 s, and return its answer. Raises `UnitError`:
    permanent if the texts exceed the limits, transient if no child starts."""
    with child.Session("") as session:
        return session.ask({"task": task, **facts}, "the text", _LIMITS)
