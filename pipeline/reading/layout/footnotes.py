"""Footnotes: small rows at the foot of a column that start with a raised or lone mark."""

import re
from collections.abc import Sequence

from pipeline.reading.layout.paragraphs import Group
from pipeline.reading.layout.rows import Row

_MARK = re.compile(r"\d{1,3}|[*†‡§¶∗]{1,3}")
_SMALLER = 0.93
_LOWER = 0.5


def split(rows: Sequence[Row], body_size: float, height: float) -> tuple[list[Row], list[Row]]:
    """(rows of the text, rows of the footnotes below it)."""
    start = len(rows)
    while start and rows[start - 1].size <= _SMALLER * body_size and rows[start - 1].top > _LOWER * height:
        start -= 1
    first = next((index for index in range(start, len(rows)) if is_mark(rows[index])), len(rows))
    return list(rows[:first]), list(rows[first:])


def groups(found: Sequence[Row]) -> list[Group]:
    """The rows of footnotes, cut where a mark starts the next one."""
    cut: list[list[Row]] = []
    for row in found:
        if not cut or is_mark(row):
            cut.append([])
        cut[-1].append(row)
    return [Group(tuple(part), 0.0, 0.0) for part in cut]


def is_mark(row: Row) -> bool:
    """Whether the row starts as a footnote does."""
    tokens = row.tokens
    if not tokens or row.is_tabular:
        return False
    return bool(_MARK.match(tokens[0].text)) and tokens[0].style.shift > 0
