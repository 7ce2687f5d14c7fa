"""Blanks of forms: a rule after a label, with the value on it."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.reading.layout.cells import cell_runs, spans_of, text_size
from pipeline.reading.layout.drawn_rules import Bar, bars, touching
from pipeline.reading.layout.model import Box, Cell, Line, Rule, Table, around

_MIN_BLANKS = 3  # on a page: fewer rules after words are underlines or sums
_MAX_RULES = 300
_TOUCHING = 0.3  # text sizes between two rules
_MIN_LENGTH = 3.0  # text sizes
_ABOVE, _BELOW = 0.6, 0.35  # text sizes between a rule and the feet of its label and value
_MAX_GAP = 8.0  # text sizes from a label to its rule
_ROOM = 1.0  # text sizes by which a blank is longer than its value; a sum's rule is not


class _Pair(NamedTuple):
    label: Line
    values: tuple[Line, ...]
    blank: Bar

    @property
    def box(self) -> Box:
        return around([self.label.box, *(value.box for value in self.values)])


def find(lines: Sequence[Line], rules: Sequence[Rule]) -> tuple[list[Table], list[Line]]:
    """Return (tables of the labels and values of blanks below each other, lines outside them). A label and its value
    among other text become one line."""
    size = text_size(lines)
    pairs = _pairs(lines, rules, size)
    if len(pairs) < _MIN_BLANKS or not all(_has_room(pair, size) for pair in pairs):
        return [], list(lines)
    held = {id(line) for pair in pairs for line in (pair.label, *pair.values)}
    others = [line for line in lines if id(line) not in held]
    heights = sorted((line.top + line.bottom) / 2 for line in others)
    stacks: list[list[_Pair]] = []
    for pair in sorted(pairs, key=lambda pair: (round(pair.blank.at / size), pair.blank.start)):
        top = stacks[-1][0].box[1] if stacks else 0.0
        if stacks and bisect_left(heights, top) == bisect_right(heights, max(pair.box[3], stacks[-1][-1].box[3])):
            stacks[-1].append(pair)
        else:
            stacks.append([pair])
    tables = [_table(stack, size) for stack in stacks if len(stack) > 1]
    return tables, [*others, *(_joined(stack[0]) for stack in stacks if len(stack) == 1)]


def _pairs(lines: Sequence[Line], rules: Sequence[Rule], size: float) -> list[_Pair]:
    """Return each label with the lines on the rule after it. A rule that another one touches belongs to a box."""
    groups = touching(*bars(rules, _TOUCHING * size), _TOUCHING * size)
    lone = (across for across, down in groups if len(across) == 1 and not down)
    blanks = [bar for [bar] in lone if bar.end - bar.start >= _MIN_LENGTH * size]
    if not _MIN_BLANKS <= len(blanks) <= _MAX_RULES:
        return []
    feet = sorted((line for line in lines if line.angle == 0), key=_foot)
    levels = [(blank, _level(feet, blank.at, size)) for blank in blanks]
    on_rules = {id(line) for blank, level in levels for line in level if _is_on(line, blank)}
    pairs: dict[int, _Pair] = {}
    for blank, level in levels:
        label = _label(level, blank, size)
        if label is not None and id(label) not in on_rules:
            pairs.setdefault(id(label), _Pair(label, tuple(line for line in level if _is_on(line, blank)), blank))
    return list(pairs.values())


def _foot(line: Line) -> float:
    return line.bottom


def _level(feet: Sequence[Line], y: float, size: float) -> Sequence[Line]:
    """Return the lines that stand on a level with a rule at this height."""
    return feet[bisect_left(feet, y - _ABOVE * size, key=_foot) : bisect_right(feet, y + _BELOW * size, key=_foot)]


def _is_on(line: Line, rule: Bar) -> bool:
    return rule.start < (line.left + line.right) / 2 < rule.end


def _label(level: Sequence[Line], blank: Bar, size: float) -> Line | None:
    """Return the last line before the blank if it is close to it and has a letter."""
    before = [line for line in level if (line.left + line.right) / 2 < blank.start]
    label = max(before, key=lambda line: line.right, default=None)
    if label is None or not -size < blank.start - label.right < _MAX_GAP * size:
        return None
    return label if any(map(str.isalpha, label.text)) else None


def _has_room(pair: _Pair, size: float) -> bool:
    return all(value.right < pair.blank.end - _ROOM * size for value in pair.values)


def _table(stack: Sequence[_Pair], size: float) -> Table:
    rows = tuple((Cell(cell_runs([pair.label])), Cell(cell_runs(pair.values))) for pair in stack)
    return Table(around([pair.box for pair in stack]), rows, 1, size)


def _joined(pair: _Pair) -> Line:
    label, parts = pair.label, [pair.label, *sorted(pair.values, key=lambda line: line.left)]
    left, top, right, bottom = pair.box
    return label._replace(
        text=" ".join(part.text for part in parts),
        left=left,
        top=top,
        right=right,
        bottom=bottom,
        spans=tuple(span for part in parts for span in spans_of(part)) if label.spans else (),
        sure=tuple(sure for part in parts for sure in part.sure),
        places=(),
    )
