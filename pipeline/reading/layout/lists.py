"""List items: their markers and depths."""

from collections import Counter
from collections.abc import Sequence

from pipeline.reading.layout.model import Box, Line, ListItem, PageContent, Span
from pipeline.reading.layout.paragraphs import Group
from pipeline.reading.layout.rows import Row, runs_of
from pipeline.reading.layout.text import BOXES, ITEM, is_bullet

_ANSWERS = (*BOXES, "□")  # Several of these in a paragraph are the answers to a question.
_MAX_DEPTH = 5
_DRAWN = (0.12, 0.62)  # text sizes: the height and the width of a bullet that is a drawing
_DRAWN_GAP = (0.25, 2.5)  # text sizes from such a bullet to its text
_MAX_DRAWN = 100  # More small drawings are a chart.
_INDENTS = (2.0, 12.0)  # text sizes from the previous line's left end to items without a bullet
_STEP = 0.7  # text sizes by which a deeper item starts further right


def marker(row: Row) -> str:
    """Return the list marker at the row's start: "-" for any bullet, a number unchanged, empty without a marker."""
    match = ITEM.match(row.text)
    if not match:
        return ""
    text = match["marker"]
    return text if any(map(str.isalnum, text)) and text != "o" else "-"


def item(group: Group, depth: int) -> ListItem | None:
    """Return the group as a list item, without the marker in its text; None without a marker or without text."""
    sign = marker(group.rows[0])
    if not sign or (sign == "-" and _is_speech(group)):
        return None
    match = ITEM.match(group.rows[0].text)
    box = BOXES.get(match["marker"]) if match else None
    if match and match["marker"] in _ANSWERS and sum(map(group.text.count, _ANSWERS)) > 1:
        return None
    remaining = len(match["marker"]) if match else 0  # characters of the marker that are still in the text
    tokens = []
    for token in group.tokens:
        if len(token.text) > remaining:
            tokens.append(token._replace(text=token.text[remaining:]))
        remaining = max(0, remaining - len(token.text))
    if not tokens:
        return None
    if not box and (sign == "-" or (sign[:-1].isdigit() and sign[-1] in ".)")):
        return ListItem(group.box, runs_of(tokens), sign, depth)
    # Markdown has no letters and boxes as markers: keep them as text after a bullet.
    kept = [tokens[0]._replace(text=box or sign, spaced=True), tokens[0]._replace(spaced=True), *tokens[1:]]
    return ListItem(group.box, runs_of(kept), "-", depth)


def _is_speech(group: Group) -> bool:
    """Whether the group starts with a dash and continues further left, as a paragraph of direct speech does."""
    first = group.rows[0]
    return first.text.startswith(("–", "—")) and any(
        row.left < first.left - _STEP * row.size for row in group.rows[1:2]
    )


def unmarked(groups: Sequence[Group]) -> int:
    """Return how many groups after the first are list items without a marker, announced by a colon at the first's end;
    0 unless at least two are.

    Recognition overlooks bullets, and leaves short lines that start at the same indent.
    """
    before = groups[0].rows[-1]
    if not before.text.rstrip().endswith((":", "\uff1a")) or before.is_tabular:
        return 0
    least, most = (before.left + far * before.size for far in _INDENTS)
    left, count = 0.0, 0
    for group in groups[1:]:
        row = group.rows[0]
        if row.is_tabular or marker(row) or not least < row.left < most:
            break
        if count and (abs(row.left - left) > _STEP * row.size or row.top - groups[count].rows[-1].bottom > row.size):
            break
        left, count = row.left, count + 1
    return count if count > 1 else 0


class Depths:
    """Derives the depth of items from their left ends; `reset` it at every text that is not an item."""

    def __init__(self) -> None:
        self._lefts: list[float] = []

    def reset(self) -> None:
        self._lefts = []

    def of(self, row: Row) -> int:
        while self._lefts and row.left < self._lefts[-1] - _STEP * row.size:
            self._lefts.pop()
        if not self._lefts or row.left > self._lefts[-1] + _STEP * row.size:
            self._lefts.append(row.left)
        return min(len(self._lefts) - 1, _MAX_DEPTH)


def with_drawn_bullets(content: PageContent) -> tuple[Line, ...]:
    """Return the page's lines, with a line for each bullet that is a drawing or a picture: a small shape before a line,
    below or above one of the same kind."""
    if not (content.fills or content.shapes or content.images):
        return content.lines
    largest = max((line.size for line in content.lines), default=0.0)
    small: dict[tuple[int, int], Box] = {}
    for box in (*content.fills, *content.shapes, *content.images):
        width, height = box[2] - box[0], box[3] - box[1]
        if 0 < width < _DRAWN[1] * largest and 0 < height < _DRAWN[1] * largest and 0.5 < width / height < 2:
            small[round(box[0]), round(box[1])] = box
    if not 1 < len(small) <= _MAX_DRAWN:
        return content.lines
    found = [(line, box) for box in small.values() if (line := _line_after(box, content.lines)) is not None]
    alike = Counter((round(line.left), round(line.left - box[2])) for line, box in found)
    bullets = [
        line._replace(
            text="•", left=box[0], right=box[2], spans=line.spans and (Span("•", box[0], box[2]),), sure=(), places=()
        )
        for line, box in found
        if alike[round(line.left), round(line.left - box[2])] > 1
    ]
    return (*content.lines, *bullets)


def _line_after(box: Box, lines: Sequence[Line]) -> Line | None:
    """Return the level line that begins right after the small shape; None if other text is right before it."""
    middle = (box[1] + box[3]) / 2
    level = [line for line in lines if line.angle == 0 and line.top < middle < line.bottom and line.right > box[0]]
    line = min(level, key=lambda line: line.left, default=None)
    if line is None or any(
        other.top < middle < other.bottom and 0 <= box[0] - other.right < _DRAWN_GAP[1] * line.size for other in lines
    ):
        return None
    near = _DRAWN_GAP[0] * line.size < line.left - box[2] < _DRAWN_GAP[1] * line.size
    sized = all(_DRAWN[0] * line.size < side < _DRAWN[1] * line.size for side in (box[2] - box[0], box[3] - box[1]))
    heading = bool(line.spans) and all(span.style.bold for span in line.spans)
    return line if near and sized and not heading and not is_bullet(line.text[:1]) else None
