"""Figures with words: drawings and pictures, and the labels in and around them, which are not running text."""

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from pipeline.reading.layout import regions, tables_aligned, tables_ruled
from pipeline.reading.layout.model import Box, Line, PageContent, Picture, Region, Runs, Table, area, around, holds
from pipeline.reading.layout.paragraphs import joined
from pipeline.reading.layout.rows import Row, rows, runs_of
from pipeline.reading.layout.text import is_number, join_lines

_MIN_SHARE, _MAX_SHARE = 0.006, 0.7  # of the page's area
_MANY_NUMBERS, _MANY_CELLS, _MANY_ROWS = 0.4, 20, 8  # of a table in a picture; charts have fewer
_MIN_SIDE = 3.0  # text sizes
_MIN_SHAPES = 3
_FRAME = 0.5  # a shape of this share of a figure's area is its frame or background
_SPREAD = 0.25  # share of a figure's width and height that its shapes cover
_MAX_CELLS = 150  # each way
_MAX_FIGURES = 40
_LONG_LABEL = 28.0  # text sizes
_PROSE_LABEL = 12.5  # text sizes; several such lines are running text
_LARGE = 1.25  # times the size of the running text: a title on a banner
_MAX_PROSE = 3
_MIN_LABELS = 3
_SHORT_LABEL = 8.0  # text sizes
_FAR_AWAY = 1e7
_SEEN = 0.5  # the layout model's score for a figure with few drawn shapes
_LARGER = 2.5  # times the area of the drawings in it: a larger region of the layout model is something else
_NEAR = 1.6  # text sizes from a figure to a label beside it
_MAX_LABEL = 18.0  # text sizes
_CAPTION = re.compile(r"\W{0,2}[^\W\d_]{2,12}\.?\s{0,2}\d{1,3}(?:[.:)\s–-]|$)")


class Partition(NamedTuple):
    """The figures with words, and the lines outside them."""

    figures: list[Picture]
    lines: list[Line]


def find(content: PageContent, lines: Sequence[Line], size: float) -> Partition:
    """Return the figures that have labels, and the lines outside them. `size`: the size of the page's running text."""
    remaining = list(lines)
    figures: list[Picture] = []
    if not lines or not (content.shapes or content.images or content.regions):
        return Partition(figures, remaining)
    size = max(size, 1e-3 * content.height, 0.1)
    seen = regions.of_kind(content.regions, "figure")
    # If some lines have spans, lines without spans were recognised in pictures: they are labels.
    placed = any(line.spans for line in lines)
    for place in _candidates(content, seen, size)[:_MAX_FIGURES]:
        inside = [line for line in remaining if holds(place.box, line)]
        if place.pictured and regions.covering(seen, place.box) is None:
            inside = [line for line in inside if placed and not line.spans]
        if not inside or _is_running(inside, place.box, size) or _is_table(content, inside, place.box):
            continue
        if not _are_labels(inside, place.box, seen) or (place.only_seen and _is_aligned(inside)):
            continue
        inside, box = _grown(inside, place.box, remaining, content.regions, size)
        figures.append(of_lines(around([box, *(line.box for line in inside)]), inside, size))
        held = {id(line) for line in inside}
        remaining = [line for line in remaining if id(line) not in held]
    return Partition(figures, remaining)


def of_lines(box: Box, lines: Sequence[Line], size: float) -> Picture:
    """Return the figure with these words, of which each row is a line. `size`: as in `find`."""
    text, runs = _words(lines)
    return Picture(box, text=text, runs=runs, size=size)


class Place(NamedTuple):
    """Where a figure may be. `pictured`: a picture fills most of it, perhaps only as the background of text.
    `only_seen`: only the layout model says so, which takes many things for figures."""

    box: Box
    pictured: bool = False
    only_seen: bool = False


def _candidates(content: PageContent, seen: Sequence[Region], size: float) -> list[Place]:
    """Return the places of possible figures, the largest first: drawings that are neither text nor frames, pictures,
    and the layout model's figures."""
    page = content.width * content.height
    drawn = [
        place
        for place in _clusters(content, size)
        if _fits(place.box, page, size) and not _is_tabular(content, place.box)
    ]
    recognised = not any(line.spans for line in content.lines)
    for region in seen:
        parts = [place for place in drawn if _overlap(place.box, region.box)]
        if parts and area(region.box) <= _LARGER * sum(area(place.box) for place in parts):
            whole = around([region.box, *(place.box for place in parts)])
            drawn = [*(place for place in drawn if place not in parts), Place(whole)]
        likely = region.score >= _SEEN and (recognised or _is_drawn_on(content, region.box))
        if likely and not parts and _fits(region.box, page, size) and not _is_tabular(content, region.box):
            drawn.append(Place(region.box, only_seen=True))
    return sorted(
        (place for place in drawn if area(place.box) <= _MAX_SHARE * page), key=lambda place: -area(place.box)
    )


def _is_drawn_on(content: PageContent, box: Box) -> bool:
    """Whether any shape or picture lies in the box; a page with a text layer lists all of its drawings."""
    return any(regions.shared(shape, box) > 0.5 * area(shape) > 0 for shape in (*content.shapes, *content.images))


def _overlap(box: Box, other: Box) -> bool:
    return regions.shared(box, other) > 0.5 * min(area(box), area(other))


def _fits(box: Box, page: float, size: float) -> bool:
    sides = box[2] - box[0], box[3] - box[1]
    return min(sides) >= _MIN_SIDE * size and _MIN_SHARE * page <= area(box) <= _MAX_SHARE * page


def _is_tabular(content: PageContent, box: Box) -> bool:
    """Whether the layout model takes the place for a table."""
    table = regions.covering(regions.of_kind(content.regions, "table", "equation"), box)
    figure = regions.covering(regions.of_kind(content.regions, "figure"), box)
    return table is not None and (figure is None or figure.score < table.score)


def _clusters(content: PageContent, size: float) -> list[Place]:
    """Return the place of each group of close drawings over which shapes spread, and of each other picture."""
    page = content.width * content.height
    rule_boxes = [(rule.left, rule.top, rule.right, rule.bottom) for rule in content.rules]
    pictures, shapes, fills, rules = (
        [box for box in boxes if _is_sound(box) and area(box) < _MAX_SHARE * page]
        for boxes in (content.images, content.shapes, content.fills, rule_boxes)
    )
    if page <= 0 or not (pictures or len(shapes) >= _MIN_SHAPES):
        return []
    grid = _Grid(content.width, content.height, size)
    drawn = [*pictures, *shapes, *fills, *rules]
    parts = grid.parts(drawn)
    members: dict[int, list[Box]] = {}
    for box in drawn:
        members.setdefault(parts[grid.middle(box)], []).append(box)
    free = set(shapes)
    large = set(pictures)
    places = []
    for own in members.values():
        box = around(own)
        inner = [shape for shape in own if (shape in free or shape in large) and area(shape) < _FRAME * area(box)]
        if len(inner) >= _MIN_SHAPES and _is_spread(inner, box):
            places.append(Place(box))
        else:
            places += [Place(picture, pictured=True) for picture in own if picture in large]
    return places


def _is_sound(box: Box) -> bool:
    return -_FAR_AWAY < box[0] <= box[2] < _FAR_AWAY and -_FAR_AWAY < box[1] <= box[3] < _FAR_AWAY


def _is_spread(shapes: Iterable[Box], box: Box) -> bool:
    left, top, right, bottom = around(shapes)
    return right - left >= _SPREAD * (box[2] - box[0]) and bottom - top >= _SPREAD * (box[3] - box[1])


class _Grid:
    """The page in squares about as large as its text: boxes in the same or neighbouring squares form a part."""

    def __init__(self, width: float, height: float, size: float) -> None:
        self._cell = max(size, width / _MAX_CELLS, height / _MAX_CELLS)
        self._columns, self._rows = int(width / self._cell) + 1, int(height / self._cell) + 1

    def _place(self, x: float, y: float) -> tuple[int, int]:
        column, row = x / self._cell, y / self._cell
        return int(min(max(column, 0), self._columns - 1)), int(min(max(row, 0), self._rows - 1))

    def middle(self, box: Box) -> tuple[int, int]:
        """Return the square of the box's middle."""
        return self._place((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)

    def parts(self, boxes: Iterable[Box]) -> dict[tuple[int, int], int]:
        """Map each square that a box covers to a number; squares with the same number touch, directly or through
        others."""
        changes = [[0] * (self._columns + 1) for _ in range(self._rows + 1)]
        for box in boxes:
            left, top = self._place(*box[:2])
            right, bottom = self._place(*box[2:])
            changes[top][left] += 1
            changes[top][right + 1] -= 1
            changes[bottom + 1][left] -= 1
            changes[bottom + 1][right + 1] += 1
        marked: set[tuple[int, int]] = set()
        above = [0] * (self._columns + 1)
        for row in range(self._rows):
            above = [a + b for a, b in zip(above, changes[row], strict=True)]
            marked |= {(column, row) for column, level in enumerate(accumulate(above)) if level > 0}
        part_of: dict[tuple[int, int], int] = {}
        for number, start in enumerate(sorted(marked)):
            waiting = [] if start in part_of else [start]
            while waiting:
                at = waiting.pop()
                if at in part_of or at not in marked:
                    continue
                part_of[at] = number
                waiting += [(at[0] + x, at[1] + y) for x in (-1, 0, 1) for y in (-1, 0, 1)]
        return part_of


def _is_running(inside: Sequence[Line], box: Box, size: float) -> bool:
    """Whether the box contains more than labels: running text, or a title."""
    if any(_length(line) > _LONG_LABEL or line.size > _LARGE * size for line in inside):
        return True
    stacked = [line for line in inside if _length(line) >= _PROSE_LABEL]
    wide = [line for line in stacked if line.right - line.left > 0.6 * (box[2] - box[0])]
    return len(wide) > _MAX_PROSE or len(stacked) > 3 * _MAX_PROSE


def _is_aligned(inside: Sequence[Line]) -> bool:
    """Whether the words are aligned as in a table without rules."""
    parts = tables_aligned.split(rows([line for line in inside if line.angle == 0]))
    return any(isinstance(part, Table) for part in parts)


def _are_labels(inside: Sequence[Line], box: Box, seen: Sequence[Region]) -> bool:
    """Whether the words are as short as labels; in a figure of the layout model, they may have any length."""
    if regions.covering(seen, box) is not None:
        return True
    long = sum(_length(line) > _SHORT_LABEL for line in inside)
    return len(inside) >= _MIN_LABELS and 2 * long <= len(inside)


def _length(line: Line) -> float:
    """Return the line's length in text sizes."""
    extent = (line.right - line.left) if line.angle in {0, 180} else line.bottom - line.top
    return extent / line.size


def _is_table(content: PageContent, inside: Sequence[Line], box: Box) -> bool:
    """Whether rules in the box put most of its words into cells, or numbers are aligned in columns."""
    rules = [rule for rule in content.rules if holds(box, Line("", *rule, 1.0))]
    level = [line for line in inside if line.angle == 0]
    tables = tables_ruled.find(level, rules, ()).tables if len(rules) > _MIN_SHAPES else []
    for table in tables:
        cells = [cell for row in table.rows for cell in row]
        if 2 * sum(bool(cell.runs) for cell in cells) > len(cells) > _MIN_SHAPES:
            return True
    if sum(is_number(line.text) for line in level) <= _MANY_NUMBERS * len(level) or len(level) < _MANY_CELLS:
        return False
    parts = tables_aligned.split(rows(level))
    return any(isinstance(part, Table) and len(part.rows) >= _MANY_ROWS for part in parts)


def _grown(
    inside: list[Line], box: Box, lines: Sequence[Line], seen: Sequence[Region], size: float
) -> tuple[list[Line], Box]:
    """Return the lines and the box with the labels right beside the box: those of axes, and those above and below a
    diagram."""
    held = {id(line) for line in inside}
    near = (box[0] - 6 * size, box[1] - 6 * size, box[2] + 6 * size, box[3] + 6 * size)
    around_it = [line for line in lines if holds(near, line) and id(line) not in held]
    text = [line for line in around_it if _length(line) > _PROSE_LABEL]
    labels = [line for line in around_it if _may_be_label(line, text, seen, size)]
    for _ in range(2):
        added = [line for line in labels if id(line) not in held and _is_beside(line, box)]
        if not added:
            break
        held |= {id(line) for line in added}
        inside = [*inside, *added]
        box = around([box, *(line.box for line in added)])
    return inside, box


def _may_be_label(line: Line, text: Sequence[Line], seen: Sequence[Region], size: float) -> bool:
    if _length(line) > _MAX_LABEL or line.size > 1.1 * size or _CAPTION.match(line.text):
        return False
    region = regions.holding(seen, line)
    if region is not None and region.kind not in {"figure", "table"}:
        return False
    if line.angle:
        return True
    bold = bool(line.spans) and all(span.style.bold for span in line.spans)
    return not (bold and line.characters > _MIN_SHAPES) and not any(_goes_with(line, other) for other in text)


def _goes_with(line: Line, text: Line) -> bool:
    """Whether the line is right above, below or beside running text."""
    if text is line or abs(text.size - line.size) > 0.1 * line.size:
        return False
    across = max(text.left - line.right, line.left - text.right)
    along = max(text.top - line.bottom, line.top - text.bottom)
    return along < 0.8 * line.size and across < 1.5 * line.size


def _is_beside(line: Line, box: Box) -> bool:
    """Whether the line is close to one side of the box, without passing that side's ends."""
    near = _NEAR * line.size
    across = max(box[0] - line.right, line.left - box[2])
    along = max(box[1] - line.bottom, line.top - box[3])
    middle = holds((box[0], line.top, box[2], line.bottom), line) or holds(
        (line.left, box[1], line.right, box[3]), line
    )
    return max(across, along) < near and middle


def _words(lines: Sequence[Line]) -> tuple[str, Runs]:
    """Return the words of a figure as text, a label or row of labels on each line, and the same as runs."""
    stacks = _stacks([line for line in lines if line.angle == 0])
    whole = [_joined(stack) for stack in stacks]
    stack_of = {id(line): stack for line, stack in zip(whole, stacks, strict=True)}
    turned = sorted((line for line in lines if line.angle), key=lambda line: (line.left, line.top))
    level = rows(whole)
    texts = [join_lines(cell.text for cell in row.cells) for row in level]
    labels = [*(stack_of[id(cell)] for row in level for cell in row.cells), *([line] for line in turned)]
    tokens = []
    for label in labels:
        label_tokens = joined([Row([line]) for line in label])
        tokens += [token._replace(spaced=token.spaced or not place) for place, token in enumerate(label_tokens)]
    return "\n".join([*texts, *(join_lines([line.text]) for line in turned)]), runs_of(tokens)


def _stacks(lines: Sequence[Line]) -> list[list[Line]]:
    """Group the lines into labels; a label may have several lines right below each other."""
    stacks: list[list[Line]] = []
    for line in sorted(lines, key=lambda line: (line.top, line.left)):
        stack = next((stack for stack in reversed(stacks[-60:]) if _continues(stack[-1], line)), None)
        if stack is None:
            stacks.append([line])
        else:
            stack.append(line)
    return stacks


def _joined(stack: Sequence[Line]) -> Line:
    if len(stack) == 1:
        return stack[0]
    return Line(join_lines(line.text for line in stack), *around(line.box for line in stack), stack[0].size)


def _continues(above: Line, line: Line) -> bool:
    gap = line.top - above.bottom
    overlap = min(above.right, line.right) - max(above.left, line.left)
    alike = abs(above.size - line.size) < 0.1 * line.size
    worded = any(map(str.isalpha, above.text)) and any(map(str.isalpha, line.text))
    close = -0.3 * line.size < gap < 0.35 * line.size
    return alike and worded and close and overlap > 0.5 * min(above.right - above.left, line.right - line.left)
