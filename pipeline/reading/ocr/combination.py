"""Combine two readings of one picture: take each part from the reading with more and surer text."""

from collections.abc import Iterator, Sequence

from pipeline.reading.layout.model import Line, area

_MAX_LINES = 2_000
"""With more lines, the first reading is kept unchanged."""

_SAME = 0.5
"""Boxes that share this much of the smaller box hold the same text."""

_BETTER = 1.01
"""The second reading of a part must be this many times as good to replace the first."""


def combined(first: Sequence[Line], second: Sequence[Line]) -> list[Line]:
    """Return the lines of the first reading; where lines of the second at the same place are better, those instead.
    Lines in only one reading stay."""
    if not first or not second or len(first) + len(second) > _MAX_LINES:
        return list(first or second)
    parts = _parts(first, second)
    kept: list[Line] = []
    for base, other in parts:
        kept += other if _worth(other) > _BETTER * _worth(base) else base
    return kept


def _parts(first: Sequence[Line], second: Sequence[Line]) -> list[tuple[list[Line], list[Line]]]:
    """Group the lines of both readings by place, in the smallest possible groups."""
    group_of: list[int] = list(range(len(first) + len(second)))

    def root(index: int) -> int:
        while group_of[index] != index:
            group_of[index] = index = group_of[group_of[index]]
        return index

    lines = [*first, *second]
    for i, j in _level(lines, len(first)):
        if _is_same(lines[i], lines[j]):
            group_of[root(j)] = root(i)
    groups: dict[int, tuple[list[Line], list[Line]]] = {}
    for index, line in enumerate(lines):
        groups.setdefault(root(index), ([], []))[index >= len(first)].append(line)
    return list(groups.values())


def _level(lines: Sequence[Line], firsts: int) -> Iterator[tuple[int, int]]:
    """Yield the index pairs of one of the first lines and one of the others that overlap in height."""
    reaching: tuple[list[int], list[int]] = ([], [])
    for index in sorted(range(len(lines)), key=lambda index: lines[index].top):
        side = index >= firsts
        reaching[not side][:] = [other for other in reaching[not side] if lines[other].bottom > lines[index].top]
        yield from (((other, index) if side else (index, other)) for other in reaching[not side])
        reaching[side].append(index)


def _is_same(line: Line, other: Line) -> bool:
    left, top = max(line.left, other.left), max(line.top, other.top)
    shared = (left, top, min(line.right, other.right), min(line.bottom, other.bottom))
    return area(shared) > _SAME * min(area(line.box), area(other.box)) > 0


def _worth(lines: Sequence[Line]) -> float:
    """Return the number of letters and digits read, each weighted by the confidence in its word."""
    total = 0.0
    for line in lines:
        words = line.text.split()
        sure = line.sure if len(line.sure) == len(words) else (1.0,) * len(words)
        total += sum(share * sum(map(str.isalnum, word)) for word, share in zip(words, sure, strict=True))
    return total
