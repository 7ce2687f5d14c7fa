"""From columns to blocks: rows, aligned tables and paragraphs of each, and text that goes on from one to the next."""

from collections.abc import Sequence

from pipeline.reading.layout import contents, footnotes, tables_aligned
from pipeline.reading.layout.classifier import Classifier, Context, join_across
from pipeline.reading.layout.columns import reading_order
from pipeline.reading.layout.frames import Frame
from pipeline.reading.layout.model import Block, Footnote, Line, PageContent, Table
from pipeline.reading.layout.paragraphs import Group, groups
from pipeline.reading.layout.rows import rows

Item = Line | Table | Frame
Piece = Table | list[Group]


class Flow:
    """The text of one page; footnotes are kept for its end, so that text goes on from column to column."""

    def __init__(self, content: PageContent, context: Context) -> None:
        self._height = content.height
        self._context = context
        self._classifier = Classifier(context)
        self._notes: list[Block] = []

    def blocks(self, order: Sequence[Sequence[Item]]) -> list[Block]:
        """The blocks of columns that are in reading order."""
        found: list[Block] = []
        for piece in self._joined(order):
            found += [piece] if isinstance(piece, Table) else self._classifier.blocks(piece)
        return found + self._notes

    def _joined(self, order: Sequence[Sequence[Item]]) -> list[Piece]:
        """The pieces of all columns; a paragraph that goes on in the next column is whole."""
        pieces: list[Piece] = []
        for column in order:
            for number, piece in enumerate(self._column(column)):
                before = pieces[-1] if pieces else None
                if number == 0 and isinstance(piece, list) and isinstance(before, list):
                    pieces[-1] = join_across(before, piece)
                else:
                    pieces.append(piece)
        return pieces

    def _column(self, column: Sequence[Item]) -> list[Piece]:
        """Tables, frames and groups of rows from top to bottom."""
        solid = sorted((item for item in column if not isinstance(item, Line)), key=lambda item: item.top)
        lines = [item for item in column if isinstance(item, Line)]
        found: list[Piece] = []
        for index, stretch in enumerate(_between(lines, [(item.top + item.bottom) / 2 for item in solid])):
            found += self._stretch(stretch, is_last=index == len(solid))
            if index == len(solid):
                break
            item = solid[index]
            found += [item] if isinstance(item, Table) else self._joined(reading_order(item.items))
        return found

    def _stretch(self, lines: Sequence[Line], *, is_last: bool) -> list[Piece]:
        in_rows = contents.in_columns(rows(lines))
        if is_last:
            in_rows, small = footnotes.split(in_rows, self._context.profile.body_size, self._height)
            self._notes += [Footnote(group.box, group.runs) for group in footnotes.groups(small)]
        return [part if isinstance(part, Table) else groups(part) for part in tables_aligned.split(in_rows)]


def _between(lines: Sequence[Line], heights: Sequence[float]) -> list[list[Line]]:
    """The lines above the first height, between it and the second, and so on."""
    found: list[list[Line]] = [[] for _ in range(len(heights) + 1)]
    for line in lines:
        middle = (line.top + line.bottom) / 2
        found[sum(height <= middle for height in heights)].append(line)
    return found
