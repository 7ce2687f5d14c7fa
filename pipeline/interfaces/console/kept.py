"""What was paid for and is looked at again: answers that are kept for a while, so that "back" does not pay twice."""

import time
from collections import OrderedDict
from secrets import token_urlsafe
from threading import Lock
from typing import Any

from fastapi import Request

MOST, EACH = 40, 8
"""Answers that are kept, of all callers and of one: with long chunks, one has megabytes."""
LONGEST_S = 3600.0


class Kept:
    """Answers by the names that addresses have, each for who asked alone. The oldest go first."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._found: OrderedDict[str, tuple[str, float, Any]] = OrderedDict()

    def put(self, caller: str, answer: Any) -> str:
        """Keep this; its name."""
        name = token_urlsafe(12)
        with self._lock:
            now = time.monotonic()
            self._found[name] = caller, now, answer
            over = [key for key, (_, since, _) in self._found.items() if now - since > LONGEST_S]
            over += [key for key, (whose, _, _) in self._found.items() if whose == caller][:-EACH]
            for key in over:
                self._found.pop(key, None)
            while len(self._found) > MOST:
                self._found.popitem(last=False)
        return name

    def get(self, caller: str, name: str) -> Any | None:
        """What is kept under this name for this caller."""
        with self._lock:
            whose, since, answer = self._found.get(name, ("", 0.0, None))
        return answer if whose == caller and time.monotonic() - since < LONGEST_S else None


def kept(request: Request) -> Kept:
    """The application's."""
    state = request.app.state
    if not hasattr(state, "kept"):
        state.kept = Kept()
    found: Kept = state.kept
    return found
