"""Mirror pages that are read from right to left, so that all rules about left and right hold for them.

Their paragraphs are indented on the right, their lists have numbers there, and their right column comes first. Where
some lines are read the other way, each stretch of them is mirrored in its place.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from pipeline.reading.layout.model import Block, Box, Line, PageContent, Rule, around
from pipeline.reading.layout.text import RIGHT_TO_LEFT, is_right_to_left

B = TypeVar("B", bound=Block)

_NEAR = 1.0
_NEAR_CODE = 4.0
"""The most space between the lines of a stretch, in text sizes."""

_FEW = 50
"""A line may continue one of this many last stretches."""


def is_leftward(lines: Sequence[Line]) -> bool:
    """Whether most of the text is read from right to left."""
    return is_right_to_left("".join(line.text for line in lines))


def mirrored(content: PageContent, *, leftwards: bool) -> PageContent:
    """Return the page with all lines as if read from left to right; `leftwards`: most are read from right to left."""
    contrary = [line for line in content.lines if _is_contrary(line, leftwards=leftwards)]
    if not leftwards and not contrary:
        return content
    places = {}
    for stretch in _stretches(_free(contrary, content.rules), leftwards=leftwards):
        box = around([line.box for line in stretch])
        places.update({id(line): box for line in stretch})
    whole = (0.0, 0.0, content.width, content.height)
    lines = []
    for line in content.lines:
        turned = line
        if id(line) in places:
            turned = _turned(turned, places[id(line)])
        lines.append(_turned(turned, whole) if leftwards else turned)
    result = replace(content, lines=tuple(lines))
    if not leftwards:
        return result
    return replace(
        result,
        rules=tuple(Rule(*_turned_box(rule, whole)) for rule in content.rules),
        fills=tuple(_turned_box(box, whole) for box in content.fills),
        pictures=tuple(_turned_box(box, whole) for box in content.pictures),
        regions=tuple(region._replace(box=_turned_box(region.box, whole)) for region in content.regions),
    )


def restored(blocks: Sequence[B], content: PageContent, *, leftwards: bool) -> list[B]:
    """Move blocks of the page returned by `mirrored` to their places on the original page."""
    if not leftwards:
        return list(blocks)
    return [replace(block, box=_turned_box(block.box, (0.0, 0.0, content.width, content.height))) for block in blocks]


def _is_contrary(line: Line, *, leftwards: bool) -> bool:
    """Whether the line is read against the direction of its page."""
    if leftwards:
        return not RIGHT_TO_LEFT.search(line.text) and any(map(str.isalpha, line.text))
    return is_right_to_left(line.text)


def _free(lines: Sequence[Line], rules: Sequence[Rule]) -> list[Line]:
    """Return the lines without an upright rule beside them: the others may be cells, which follow their table."""
    upright = sorted((rule.top, rule.bottom) for rule in rules if rule.bottom - rule.top > abs(rule.right - rule.left))
    covered: list[tuple[float, float]] = []
    for top, bottom in upright:
        if covered and top <= covered[-1][1]:
            covered[-1] = (covered[-1][0], max(covered[-1][1], bottom))
        else:
            covered.append((top, bottom))
    free = []
    for line in lines:
        middle = (line.top + line.bottom) / 2
        at = bisect_right(covered, (middle, math.inf)) - 1
        if at < 0 or covered[at][1] < middle:
            free.append(line)
    return free


def _stretches(lines: Sequence[Line], *, leftwards: bool) -> list[list[Line]]:
    """Group lines that follow one another in a column, and pieces of one row unless they may be cells of a table that
    is read leftwards."""
    stretches: list[list[Line]] = []
    for line in sorted(lines, key=lambda line: (line.top, line.left)):
        for stretch in reversed(stretches[-_FEW:]):
            last = stretch[-1]
            near = (_NEAR_CODE if _is_mono(last) and _is_mono(line) else _NEAR) * line.size
            below = -near < line.top - last.bottom < near
            beside = min(last.bottom, line.bottom) - max(last.top, line.top) > 0.5 * (line.bottom - line.top)
            if beside and (not leftwards or (_is_mono(last) and _is_mono(line))):
                stretch.append(line)
                break
            if below and not beside and min(last.right, line.right) > max(last.left, line.left):
                stretch.append(line)
                break
        else:
            stretches.append([line])
    return stretches


def _is_mono(line: Line) -> bool:
    return bool(line.spans) and all(span.style.mono for span in line.spans)


def _turned(line: Line, box: Box) -> Line:
    """Return the line mirrored within this box."""
    both = box[0] + box[2]
    spans = tuple(span._replace(left=both - span.right, right=both - span.left) for span in line.spans)
    return line._replace(left=both - line.right, right=both - line.left, spans=spans)


def _turned_box(box: Box | Rule, whole: Box) -> Box:
    return (whole[2] - box[2], box[1], whole[2] - box[0], box[3])
