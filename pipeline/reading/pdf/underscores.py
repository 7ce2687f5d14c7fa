"""Underscores that are drawn: TeX's older fonts have none, so that it draws a short rule on the base line."""

from bisect import bisect_left
from collections.abc import Sequence

from pipeline.reading.layout.cells import sub_line
from pipeline.reading.layout.model import DESCENT, Line, Rule, Span

_MAX_DASHES = 1_000
"""A page with more dashes is a drawing."""
_MOST_PAIRS = 1_000_000  # of dashes with words: comparing these takes a second or two
_LENGTHS = (0.2, 0.45)  # text sizes
_NEAR = (-0.1, 0.25)  # text sizes between the underscore and its neighbours
_INDENT = 8.0  # text sizes in front of a line's first word
_LEVEL = 0.1  # text sizes between the underscore and the base line


def written(lines: Sequence[Line], dashes: Sequence[Rule]) -> list[Line]:
    """Return the lines, given from left to right, with the dashes between their words as underscores."""
    if len(dashes) > _MAX_DASHES or len(dashes) * sum(len(line.spans) for line in lines) > _MOST_PAIRS:
        return [*lines]
    ordered = sorted(dashes, key=lambda dash: dash.top)
    heights = [dash.top for dash in ordered]

    def on(line: Line) -> list[Rule]:
        base, near = line.bottom - DESCENT * line.size, _LEVEL * line.size
        least, most = (length * line.size for length in _LENGTHS)
        level = ordered[bisect_left(heights, base - near) : bisect_left(heights, base + near)]
        inside = (dash for dash in level if line.left - _INDENT * line.size < dash.left < line.right)
        return sorted((dash for dash in inside if least <= dash.right - dash.left <= most), reverse=True)

    return [_with(line, found) if line.spans and not line.angle and (found := on(line)) else line for line in lines]


def _with(line: Line, dashes: Sequence[Rule]) -> Line:
    """Return the line with these dashes, given from right to left, as underscores at the words beside them."""
    least, most = (gap * line.size for gap in _NEAR)
    spans = list(line.spans)
    for dash in dashes:
        place = next((n for n, span in enumerate(spans) if span.left > dash.left), len(spans))
        before, after = (spans[n] if 0 <= n < len(spans) else None for n in (place - 1, place))
        goes_on = before is not None and least <= dash.left - before.right <= most
        begins = after is not None and least <= after.left - dash.right <= most
        if begins and after:
            spans[place] = after._replace(text=f"_{after.text}", left=dash.left, spaced=not goes_on and after.spaced)
        elif goes_on and before:
            spans[place - 1] = before._replace(text=f"{before.text}_", right=dash.right)
    return sub_line(line, _joined(spans))


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Return the words, each whole if it has one style."""
    joined: list[Span] = []
    for span in spans:
        before = joined[-1] if joined else None
        if before and not span.spaced and span.style == before.style:
            joined[-1] = before._replace(text=before.text + span.text, right=span.right)
        else:
            joined.append(span)
    return joined
