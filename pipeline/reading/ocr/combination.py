"""Two readings of one picture combined: of each part of it, the one that says more and is surer."""

from collections.abc import Iterator, Sequence

from pipeline.reading.layout.model import Line, area

_MAX_LINES = 2_000
"""With more lines than this, the first reading is kept as it is."""

_SAME = 0.5
"""Share of the smaller of two boxes from which on they hold the same text."""

_BETTER = 1.01
"""How many times as good the second reading of a part must be to replace the first."""


def combined(first: Sequence[Line], second: Sequence[Line]) -> list[Line]:
    """The lines of the first reading, with those parts replaced of which the second is better; what only one of them
    has is kept."""
    if not first or not second or len(first) + len(second) > _MAX_LINES:
        return list(first or second)
    parts = _parts(first, second)
    kept: list[Line] = []
    for ours, theirs in parts:
        kept += theirs if _worth(theirs) > _BETTER * _worth(ours) else ours
    return kept


def _parts(first: Sequence[Line], second: Sequence[Line]) -> list[tuple[list[Line], list[Line]]]:
    """The lines of both readings that are in the same place, as small groups as possible."""
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
    """The pairs of one of the first lines and one of the others that have some height in common, by their indexes."""
    reaching: tuple[list[int], list[int]] = ([], [])
    for index in sorted(range(len(lines)), key=lambda index: lines[index].top):
        side = index >= firsts
        reaching[not side][:] = [other for other in reaching[not side] if lines[other].bottom > lines[index].top]
        yield from (((other, index) if side else (index, other)) for other in reaching[not side])
        reaching[side].append(index)


def _is_same(one: Line, other: Line) -> bool:
    left, top = max(one.left, other.left), max(one.top, other.top)
    shared = (left, top, min(one.right, other.right), min(one.bottom, other.bottom))
    return area(shared) > _SAME * min(area(one.box), area(other.box)) > 0


def _worth(lines: Sequence[Line]) -> float:
    """How many letters and digits were read, each counted as how sure the reading is of its word."""
    total = 0.0
    for line in lines:
        found = line.text.split()
        sure = line.sure if len(line.sure) == len(found) else (1.0,) * len(found)
        total += sum(share * sum(map(str.isalnum, word)) for word, share in zip(found, sure, strict=True))
    return total
