"""Turn rotated text upright, and move the resulting blocks back to their places."""

from collections.abc import Sequence
from dataclasses import replace

from pipeline.reading.layout.model import Block, Box, Line, PageContent, Rule

_FAR_AWAY = 1e7  # in any unit: damaged files place text anywhere


def is_vertical(line: Line) -> bool:
    """Whether the text seems to run up or down the page, although its source does not say so."""
    height = line.bottom - line.top
    return len(line.text) > 1 and height > 2.5 * line.size and height > line.right - line.left


def is_placed(line: Line) -> bool:
    """Whether the line has a possible place on a page; False for NaN, too."""
    return all(abs(value) < _FAR_AWAY for value in line[1:6])


def turn_box(box: Box, angle: int, width: float, height: float) -> Box:
    """Return the box after turning the page, which has this size, anticlockwise by the angle."""
    left, top, right, bottom = box
    if angle == 90:
        return (top, width - right, bottom, width - left)
    if angle == 180:
        return (width - right, height - bottom, width - left, height - top)
    if angle == 270:
        return (height - bottom, left, height - top, right)
    return box


def upright(content: PageContent, angle: int) -> PageContent:
    """Return the page turned so that text with this angle (90, 180 or 270) is upright, without its shapes and images;
    unchanged for other angles."""
    if angle not in {90, 180, 270}:
        return content
    size = content.width, content.height
    width, height = size if angle == 180 else size[::-1]
    return PageContent(
        width,
        height,
        tuple(_turned(line, angle, *size) for line in content.lines),
        tuple(Rule(*turn_box((rule.left, rule.top, rule.right, rule.bottom), angle, *size)) for rule in content.rules),
        tuple(turn_box(box, angle, *size) for box in content.fills),
        tuple(turn_box(box, angle, *size) for box in content.pictures),
        tuple(region._replace(box=turn_box(region.box, angle, *size)) for region in content.regions),
    )


def _turned(line: Line, angle: int, width: float, height: float) -> Line:
    """Turn the line's box. Its words share the box in proportion to their lengths: their exact places are unknown."""
    left, top, right, bottom = turn_box(line.box, angle, width, height)
    each = (right - left) / max(len(line.text), 1)
    spans, at = [], left
    for index, span in enumerate(line.spans):
        at += each if span.spaced and index else 0.0
        spans.append(span._replace(left=at, right=at + each * len(span.text)))
        at = spans[-1].right
    return line._replace(left=left, top=top, right=right, bottom=bottom, spans=tuple(spans), angle=0)


def restored(blocks: Sequence[Block], angle: int, content: PageContent) -> list[Block]:
    """Return the blocks of a page turned by `upright`, at their places on the original page."""
    if angle not in {90, 180, 270}:
        return list(blocks)
    size = (content.width, content.height) if angle == 180 else (content.height, content.width)
    return [replace(block, box=turn_box(block.box, 360 - angle, *size)) for block in blocks]
