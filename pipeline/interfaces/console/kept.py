"""Paid answers, kept for a while so that the browser's "back" does not pay twice."""

import time
from collections import OrderedDict
from secrets import token_urlsafe
from threading import Lock
from typing import Any

from fastapi import Request

MOST, EACH = 40, 8
"""The most answers of all callers, and of one caller: an answer with long chunks takes megabytes."""
LONGEST_S = 3600.0


class KeptAnswers:
    """Answers by the name in their address, each for its caller only. The oldest is dropped first."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._answers: OrderedDict[str, tuple[str, float, Any]] = OrderedDict()

    def put(self, caller: str, answer: Any) -> str:
        """Keep an answer for an hour, and return its new name. Drops the oldest answers beyond `EACH` of the caller and
        `MOST` in all."""
        name = token_urlsafe(12)
        with self._lock:
            now = time.monotonic()
            self._answers[name] = caller, now, answer
            over = [key for key, (_, since, _) in self._answers.items() if now - since > LONGEST_S]
            over += [key for key, (owner, _, _) in self._answers.items() if owner == caller][:-EACH]
            for key in over:
                self._answers.pop(key, None)
            while len(self._answers) > MOST:
                self._answers.popitem(last=False)
        return name

    def get(self, caller: str, name: str) -> Any | None:
        """Return the caller's answer of this name; None if it has expired, was dropped, or belongs to another
        caller."""
        with self._lock:
            owner, since, answer = self._answers.get(name, ("", 0.0, None))
        return answer if owner == caller and time.monotonic() - since < LONGEST_S else None


def kept(request: Request) -> KeptAnswers:
    """Return the application's kept answers."""
    state = request.app.state
    if not hasattr(state, "kept"):
        state.kept = KeptAnswers()
    kept_answers: KeptAnswers = state.kept
    return kept_answers
