"""Whether a layout model could change geometry's result for a page: asking it takes five times as long as geometry."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from pipeline.reading.layout import columns, furniture
from pipeline.reading.layout.model import Line, PageContent
from pipeline.reading.layout.page import items
from pipeline.reading.layout.profile import DocumentProfile

_FEW_LINES = 4
_BESIDE = 4  # lines with another one on their right: two rows of a table of three columns
_MARKER_CHARS = 3
_MOST_BESIDE = 8
_MOST_DRAWN = 5_000
"""The model is not asked about a page with more shapes, such as a map: drawing it may take longer than all else."""


def wants_regions(content: PageContent, profile: DocumentProfile) -> bool:
    """Whether to ask the layout model about a page returned by `cleaned`: its furniture is in doubt, or lines stand
    side by side, and the page may have figures or columns that the lines alone do not show.

    Never for a page of few lines or very many drawings.
    """
    lines = [line for line in content.lines if line.angle == 0]
    drawn = len(content.rules) + len(content.fills) + len(content.shapes)
    if len(lines) < _FEW_LINES or drawn > _MOST_DRAWN:
        return False
    beside = _stand_beside(lines)
    if (beside or not furniture.is_surveyed(profile)) and furniture.is_unsure(content, profile):
        return True
    return beside and (bool(content.shapes or content.images) or _may_be_columns(content, lines))


def _may_be_columns(content: PageContent, lines: Sequence[Line]) -> bool:
    """Whether the lines outside of ruled tables are columns only if the model sees them."""
    return columns.is_unsure(items(replace(content, lines=tuple(lines))), content.rules)


def _stand_beside(lines: Sequence[Line]) -> bool:
    """Whether some lines have another line to their right: columns, a table, notes. An item's marker does not count."""
    level = sorted(lines, key=lambda line: line.top)
    tops = [line.top for line in level]
    beside = 0
    for place, line in enumerate(level):
        middle = (line.top + line.bottom) / 2
        last = min(bisect_right(tops, middle, place + 1), place + 1 + _MOST_BESIDE)
        beside += last > place + 1 and any(
            left.right < right.left and len(left.text) > _MARKER_CHARS
            for other in level[place + 1 : last]
            for left, right in [sorted((line, other), key=lambda each: each.left)]
        )
    return beside >= _BESIDE
