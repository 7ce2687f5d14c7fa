"""The pace of work, and the time that the rest will take."""

from collections import deque
from dataclasses import dataclass, field

WINDOW_S = 60.0
"""Seconds after which changes no longer count, unless there are few."""
FEW = 5
_SOON_S = 2.0
"""Seconds before which a pace would be chance."""


@dataclass
class Pace:
    """The pace of one piece of work, from the units done at each moment since this began."""

    _changes: deque[tuple[float, int]] = field(default_factory=deque)

    def see(self, done: int, now_s: float) -> None:
        """Record the number of units done by now. A smaller number than before starts the pace anew."""
        if self._changes and done < self._changes[-1][1]:
            self._changes.clear()  # it started over
        if not self._changes or done > self._changes[-1][1]:
            self._changes.append((now_s, done))
        while len(self._changes) > FEW and self._changes[0][0] < now_s - WINDOW_S:
            self._changes.popleft()

    def per_s(self, now_s: float) -> float:
        """Units a second in about the last minute; 0 while unknown."""
        if len(self._changes) < 2 or now_s - self._changes[0][0] < _SOON_S:
            return 0.0
        (began_s, before), (_, done) = self._changes[0], self._changes[-1]
        return (done - before) / (now_s - began_s)

    def words(self, total: int | None, now_s: float) -> str:
        """`2.4/s, 3 min left`; empty while unknown, or when all is done."""
        rate = self.per_s(now_s)
        if not rate or total is None or self._changes[-1][1] >= total:
            return ""
        shown = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s" if rate >= 0.5 else f"{rate * 60:.1f}/min"
        return f"{shown}, {_rough((total - self._changes[-1][1]) / rate)} left"


def _rough(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{max(1, seconds):.0f} s"
