"""The parts of a screen that show excluded windows, behind the foremost one too."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple


class Box(NamedTuple):
    """A rectangle; `right` and `bottom` lie just outside."""

    left: int
    top: int
    right: int
    bottom: int

    def within(self, other: "Box") -> "Box | None":
        """Return the common part; None without any."""
        left, top = max(self.left, other.left), max(self.top, other.top)
        right, bottom = min(self.right, other.right), min(self.bottom, other.bottom)
        return Box(left, top, right, bottom) if left < right and top < bottom else None

    def without(self, other: "Box") -> list["Box"]:
        """Return the parts outside of the other rectangle, up to four."""
        hidden = self.within(other)
        if hidden is None:
            return [self]
        parts = (
            Box(self.left, self.top, self.right, hidden.top),
            Box(self.left, hidden.bottom, self.right, self.bottom),
            Box(self.left, hidden.top, hidden.left, hidden.bottom),
            Box(hidden.right, hidden.top, self.right, hidden.bottom),
        )
        return [part for part in parts if part.left < part.right and part.top < part.bottom]


class Placed(NamedTuple):
    """A window on the screen. `box`: its place with its frame, None if unknown; `cover`: the part that hides what is
    behind it, None for a translucent window."""

    app: str
    title: str
    box: Box | None
    cover: Box | None = None


def exposed(windows: Iterable[Placed], excludes: Callable[[str, str], object]) -> list[Box] | None:
    """Return the visible parts of excluded windows; None if the place of one is unknown. `windows`: the front one
    first. `excludes`: called with program and title."""
    covers: list[Box] = []
    parts: list[Box] = []
    for window in windows:
        if excludes(window.app, window.title):
            if window.box is None:
                return None
            parts += _visible(window.box, covers)
        if window.cover is not None:
            covers.append(window.cover)
    return parts


def _visible(box: Box, covers: Sequence[Box]) -> list[Box]:
    parts = [box]
    for cover in covers:
        parts = [rest for part in parts for rest in part.without(cover)]
    return parts
