"""Boxes with text of their own: a coloured or framed area is read as a unit, whatever columns run beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pipeline.reading.layout.legibility import is_garbled
from pipeline.reading.layout.model import Box, Boxed, Line, Picture, Table, area, holds

Item = Line | Table | Picture

_MIN_ITEMS = 3
_MIN_SHARE, _MAX_SHARE = 0.01, 0.7  # of the page's area
_MAX_AREAS = 300
_MAX_STAMP, _SHORT = 5, 30  # lines of a stamp, and characters of each
_SLACK = 0.5  # text sizes


@dataclass(frozen=True)
class Frame(Boxed):
    """A box and its contents."""

    items: tuple[Item, ...]

    @property
    def lines(self) -> list[Line]:
        return [item for item in self.items if isinstance(item, Line)]

    @property
    def is_stamp(self) -> bool:
        """Whether the box holds only a few short lines, all centred, and so no text below a heading."""
        middle = (self.left + self.right) / 2
        return len(self.lines) == len(self.items) <= _MAX_STAMP and all(
            len(line.text) < _SHORT and abs((line.left + line.right) / 2 - middle) < line.size for line in self.lines
        )

    @property
    def size(self) -> float:
        return median(item.size for item in self.items)

    @property
    def characters(self) -> int:
        return sum(item.characters for item in self.items)


def find(items: Sequence[Item], areas: Sequence[Box], width: float, height: float) -> tuple[list[Frame], list[Item]]:
    """Return (frames, items outside them). A frame is a coloured area with at least three lines, tables or pictures
    inside, not all side by side; an area that a line or table crosses is only a background."""
    page = width * height
    fitting = {box for box in areas if _MIN_SHARE * page < area(box) < _MAX_SHARE * page}
    frames: list[Frame] = []
    remaining = list(items)
    for box in sorted(fitting, key=area, reverse=True)[:_MAX_AREAS]:
        inside = [item for item in remaining if holds(box, item)]
        if not _MIN_ITEMS <= len(inside) < len(items) or any(_reaches_out(item, box) for item in inside):
            continue
        if any(_overlaps(item, box) for item in remaining if not holds(box, item)):
            continue
        if max(item.top for item in inside) < min(item.bottom for item in inside):
            continue  # a single row, such as the coloured head of a table
        frames.append(Frame(box, tuple(inside)))
        held = {id(item) for item in inside}
        remaining = [item for item in remaining if id(item) not in held]
    return frames, remaining


def _reaches_out(item: Item, box: Box) -> bool:
    """Whether the item crosses a border of the box; what recognition could not read may seem to."""
    slack = _SLACK * item.size
    return not (isinstance(item, Line) and is_garbled(item)) and (
        item.left < box[0] - slack
        or item.right > box[2] + slack
        or item.top < box[1] - slack
        or item.bottom > box[3] + slack
    )


def _overlaps(item: Item, box: Box) -> bool:
    """Whether the item lies on a border of the box."""
    slack = _SLACK * item.size
    across = min(item.right, box[2]) - max(item.left, box[0])
    along = min(item.bottom, box[3]) - max(item.top, box[1])
    return across > slack and along > slack
