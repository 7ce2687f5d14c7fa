"""Drawn rules: join their pieces, separate horizontal and vertical ones, and group rules that touch."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pipeline.reading.layout.model import Rule

MAX_RULES = 1_500
"""A page with more joined rules of one direction is a drawing, without a search for tables."""


class Bar(NamedTuple):
    """A rule along one direction, `at` one coordinate from `start` to `end` along the other."""

    at: float
    start: float
    end: float


def bars(rules: Iterable[Rule], slack: float) -> tuple[list[Bar], list[Bar]]:
    """Return (horizontal, vertical) rules; those on one line whose ends are within `slack` of each other are joined."""
    level, upright = [], []
    for rule in rules:
        if rule.right - rule.left >= rule.bottom - rule.top:
            level.append(Bar((rule.top + rule.bottom) / 2, rule.left, rule.right))
        else:
            upright.append(Bar((rule.left + rule.right) / 2, rule.top, rule.bottom))
    return _joined(level, slack), _joined(upright, slack)


def _joined(pieces: list[Bar], slack: float) -> list[Bar]:
    groups: list[list[Bar]] = []  # of bars at one place
    for bar in sorted(pieces):
        if groups and bar.at - groups[-1][0].at <= slack:
            groups[-1].append(bar)
        else:
            groups.append([bar])
    joined: list[Bar] = []
    for group in groups:
        at = sum(bar.at for bar in group) / len(group)
        first, *others = sorted(group, key=lambda bar: bar.start)
        start, end = first.start, first.end
        for bar in others:
            if bar.start <= end + slack:
                end = max(end, bar.end)
            else:
                joined.append(Bar(at, start, end))
                start, end = bar.start, bar.end
        joined.append(Bar(at, start, end))
    return joined


def places(values: Iterable[float], slack: float) -> list[float]:
    """Return the sorted values; values within `slack` of each other become their mean."""
    groups: list[list[float]] = []
    for value in sorted(values):
        if groups and value - groups[-1][0] <= slack:
            groups[-1].append(value)
        else:
            groups.append([value])
    return [sum(group) / len(group) for group in groups]


def touching(level: Sequence[Bar], upright: Sequence[Bar], slack: float) -> list[tuple[list[Bar], list[Bar]]]:
    """Group (horizontal, vertical) rules that cross or touch, directly or through others."""
    parent = list(range(len(level) + len(upright)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    order = sorted(range(len(level)), key=lambda index: level[index].at)
    heights = [level[index].at for index in order]
    for number, bar in enumerate(upright):
        for place in range(bisect_left(heights, bar.start - slack), len(order)):
            other = level[order[place]]
            if other.at > bar.end + slack:
                break
            if other.start - slack <= bar.at <= other.end + slack:
                parent[root(order[place])] = root(len(level) + number)
    groups: dict[int, tuple[list[Bar], list[Bar]]] = {}
    for index, bar in enumerate([*level, *upright]):
        groups.setdefault(root(index), ([], []))[index >= len(level)].append(bar)
    return list(groups.values())


def covered(start: float, end: float, rules: Sequence[Bar]) -> float:
    """Return the share of the stretch that the rules cover."""
    if end <= start:
        return 0.0
    return sum(max(0.0, min(end, bar.end) - max(start, bar.start)) for bar in rules) / (end - start)
