"""Turn columns into blocks: the rows, aligned tables, paragraphs and footnotes of each, in reading order."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from pipeline.reading.layout import tables_aligned
from pipeline.reading.layout.boxes import Frame
from pipeline.reading.layout.classifier import Classifier, Criteria
from pipeline.reading.layout.columns import reading_order
from pipeline.reading.layout.drawn_rules import Bar
from pipeline.reading.layout.model import Block, Footnote, Line, PageContent, Picture, Table, area
from pipeline.reading.layout.paragraphs import Group, goes_on, groups
from pipeline.reading.layout.regions import shared
from pipeline.reading.layout.rows import Row, rows
from pipeline.reading.layout.text import has_leader

Item = Line | Table | Picture | Frame
Piece = Table | Picture | list[Group]

_FOOTNOTE_MARK = re.compile(r"\d{1,3}|[*†‡§¶∗]{1,3}")
_FOOTNOTE_SMALLER = 0.93  # than the running text
_FOOTNOTE_LOWER = 0.5  # share of the page's height
_SAME = 0.5  # of the larger area


class Assembly:
    """Assembles the blocks of one page; footnotes come last, so that text can continue in the next column."""

    def __init__(self, content: PageContent, criteria: Criteria) -> None:
        self._height = content.height
        self._rules = [Bar(rule.top, rule.left, rule.right) for rule in content.rules if rule.top == rule.bottom]
        self._body_size = criteria.profile.body_size
        self._classifier = Classifier(criteria)
        self._notes: list[Block] = []

    def blocks(self, order: Sequence[Sequence[Item]]) -> list[Block]:
        """Return the blocks of the page's columns, which must be in reading order, with all footnotes at the end. A
        column's lines, tables, pictures and frames may have any order."""
        blocks: list[Block] = []
        for piece in self._pieces(order):
            blocks += [piece] if isinstance(piece, Table | Picture) else self._classifier.blocks(piece)
        return blocks + self._notes

    def _pieces(self, order: Sequence[Sequence[Item]]) -> list[Piece]:
        """Return tables, pictures and lists of groups in reading order; move footnotes to `_notes`.

        If text ends a column and text starts the next, merge both lists, and join a paragraph that continues.
        """
        pieces: list[Piece] = []
        for column in order:
            for number, piece in enumerate(self._column(column)):
                before = pieces[-1] if pieces else None
                if number or not isinstance(piece, list) or not isinstance(before, list):
                    pieces.append(piece)
                elif before and piece and goes_on(before[-1].rows[-1], piece[0].rows[0]):
                    whole = replace(before[-1], rows=before[-1].rows + piece[0].rows)
                    pieces[-1] = [*before[:-1], whole, *piece[1:]]
                else:
                    pieces[-1] = before + piece
        return pieces

    def _column(self, column: Sequence[Item]) -> list[Piece]:
        """Return one column's tables, pictures and lists of groups from top to bottom, with a frame's contents in place
        of the frame; move footnotes to `_notes`."""
        solid = sorted((item for item in column if not isinstance(item, Line)), key=lambda item: item.top)
        heights = [(item.top + item.bottom) / 2 for item in solid]
        between: list[list[Line]] = [[] for _ in range(len(solid) + 1)]
        for line in column:
            if isinstance(line, Line):
                between[sum(height <= (line.top + line.bottom) / 2 for height in heights)].append(line)
        pieces: list[Piece] = []
        for item, lines in zip(solid, between, strict=False):
            pieces += self._split(_in_columns(rows(lines)))
            pieces += [item] if isinstance(item, Table | Picture) else self._pieces(reading_order(item.items))
        text, notes = _without_footnotes(_in_columns(rows(between[-1])), self._body_size, self._height)
        self._notes += notes
        return pieces + self._split(text)

    def _split(self, column_rows: Sequence[Row]) -> list[Piece]:
        parts = tables_aligned.split(column_rows, self._rules)
        return [part if isinstance(part, Table) else groups(part) for part in parts]


def _without_footnotes(column_rows: Sequence[Row], body_size: float, height: float) -> tuple[list[Row], list[Footnote]]:
    """Return (rows of the text, footnotes below it): small rows at a column's foot, from the first raised mark on."""
    start, lowest = len(column_rows), _FOOTNOTE_LOWER * height
    while (
        start and column_rows[start - 1].size <= _FOOTNOTE_SMALLER * body_size and column_rows[start - 1].top > lowest
    ):
        start -= 1
    notes: list[list[Row]] = []
    text = list(column_rows[:start])
    for row in column_rows[start:]:
        first = row.tokens[0] if row.tokens and not row.is_tabular else None
        if first is not None and first.style.shift > 0 and _FOOTNOTE_MARK.match(first.text):
            notes.append([row])
        elif notes:
            notes[-1].append(row)
        else:
            text.append(row)
    footnotes = [Group(tuple(part), 0.0, 0.0) for part in notes]
    return text, [Footnote(group.box, group.runs) for group in footnotes]


def _in_columns(column_rows: Sequence[Row]) -> list[Row]:
    """Reorder neighbouring rows of contents, where each cell is a title with dots to its page, column after column.

    Columns of contents may be too short for `reading_order` to see the space between them."""

    def is_contents(row: Row) -> bool:
        return all(has_leader(cell.text) for cell in row.cells)

    if not any(row.is_tabular and is_contents(row) for row in column_rows):
        return list(column_rows)
    ordered: list[Row] = []
    for (contents, _), stretch in groupby(column_rows, key=lambda row: (is_contents(row), len(row.cells))):
        same = list(stretch)
        if contents and len(same) > 1:
            columns = zip(*(row.cells for row in same), strict=True)
            ordered += [Row((cell,)) for column in columns for cell in column]
        else:
            ordered += same
    return ordered


def with_pictures(blocks: Sequence[Block], pictures: Sequence[Picture]) -> list[Block]:
    """Return the blocks with each picture before the first block of its column that starts below its top; else after
    the column's last block, or at the end.

    A figure with words that covers nearly the same area gets the picture's link instead.
    """
    result = list(blocks)
    for picture in pictures:
        same = (place for place, block in enumerate(result) if _is_same(block, picture))
        if (place := next(same, None)) is not None:
            result[place] = replace(result[place], link=picture.link)  # type: ignore[call-arg]
            continue
        left, top, right, _ = picture.box
        column = [index for index, block in enumerate(result) if block.box[2] >= left and block.box[0] <= right]
        below = (index for index in column if result[index].box[1] >= top)
        result.insert(next(below, column[-1] + 1 if column else len(result)), picture)
    return result


def _is_same(figure: Block, picture: Picture) -> bool:
    if not isinstance(figure, Picture) or figure.link:
        return False
    return shared(figure.box, picture.box) > _SAME * max(area(figure.box), area(picture.box))
