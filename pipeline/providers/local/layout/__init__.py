"""From what is on a page to blocks in reading order, in small pure steps over plain data.

    lines -> furniture apart -> ruled tables -> columns -> rows -> aligned tables -> paragraphs -> blocks -> Markdown

No step drops text, apart from headers, footers, page numbers and watermarks, which a caller may keep.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pipeline.providers.local.layout import furniture, notes, tables_aligned, tables_ruled, turning
from pipeline.providers.local.layout.blocks import as_dicts
from pipeline.providers.local.layout.classify import Classifier, Context, join_across
from pipeline.providers.local.layout.columns import reading_order
from pipeline.providers.local.layout.markdown import render
from pipeline.providers.local.layout.model import Block, Footnote, Line, PageContent, Picture, Table, around
from pipeline.providers.local.layout.paragraphs import Group, groups
from pipeline.providers.local.layout.profile import DocumentProfile, PageFacts, page_facts
from pipeline.providers.local.layout.profile import profile as document_profile
from pipeline.providers.local.layout.rows import Row, rows
from pipeline.providers.local.layout.text import is_right_to_left

__all__ = [
    "Block",
    "DocumentProfile",
    "Line",
    "PageContent",
    "PageFacts",
    "as_dicts",
    "convert",
    "document_profile",
    "page_facts",
    "render",
    "to_markdown",
]

_MAX_LINES = 20_000
"""Lines of one direction, above which no tables and no columns are looked for."""


def to_markdown(lines: Iterable[Line]) -> str:
    """Markdown of a page's lines, in any order, with nothing taken away."""
    found = tuple(lines)
    placed = [line.box for line in found if turning.is_placed(line)]
    _, _, width, height = around(placed) if placed else (0.0, 0.0, 1.0, 1.0)
    return render(convert(PageContent(width, height, found), keep_furniture=True))


def convert(content: PageContent, document: DocumentProfile | None = None, *, keep_furniture: bool = False) -> list[Block]:
    """The page's blocks in reading order. Without the document's profile the page is judged by itself."""
    content = _cleaned(content)
    known = document or document_profile([page_facts(content)])
    lines = list(content.lines) if keep_furniture else furniture.split(content, known)[0]
    by_angle: dict[int, list[Line]] = {}
    for line in lines:
        by_angle.setdefault(line.angle, []).append(line)
    found: list[Block] = []
    # Text that runs up a margin would cut through the lines beside it: it comes after what most of the page is.
    for angle in sorted(by_angle, key=lambda angle: -_weight(by_angle[angle], angle)):
        part = replace(content, lines=tuple(by_angle[angle]))
        blocks = _level_blocks(turning.level(part, angle), known if not found else _without_headings(known))
        found += turning.back(blocks, angle, content)
    return found + [Picture(box) for box in content.pictures]


def _cleaned(content: PageContent) -> PageContent:
    """The page with every line in a place that it can have; text is kept wherever it was."""
    lines = []
    for line in content.lines:
        if not line.text.strip():
            continue
        if not turning.is_placed(line):
            lines.append(Line(line.text, 0.0, content.height, 0.0, content.height, 1.0, (), -1))
        elif line.angle == 0 and turning.upright(line):
            lines.append(line._replace(angle=-1))
        else:
            lines.append(_with_sides_in_order(line))
    return replace(content, lines=tuple(lines))


def _with_sides_in_order(line: Line) -> Line:
    left, right = sorted((line.left, line.right))
    top, bottom = sorted((line.top, line.bottom))
    return line._replace(left=left, top=top, right=right, bottom=bottom, size=max(line.size, 0.1))


def _without_headings(known: DocumentProfile) -> DocumentProfile:
    """For text beside the page's own: large or not, a stamp in the margin is no heading."""
    return replace(known, headings={})


def _weight(lines: Sequence[Line], angle: int) -> float:
    return sum(len(line.text) for line in lines) * (1.0 if angle >= 0 else 0.001)


def _level_blocks(content: PageContent, known: DocumentProfile) -> list[Block]:
    """Blocks of text that runs across the page."""
    lines = list(content.lines)
    if any(line.angle for line in lines):  # aslant: one after the other
        classifier = Classifier(Context(known, recognised=True))
        return [block for line in lines for block in classifier.blocks(groups([Row([line])]))]
    tables: list[Table] = []
    order: list[list[Line | Table]]
    if len(lines) <= _MAX_LINES:
        found = tables_ruled.find(lines, content.rules, content.fills)
        tables, lines = found.tables, found.lines
        leftwards = is_right_to_left("".join(line.text for line in lines))
        order = reading_order([*lines, *tables], leftwards=leftwards)
    else:
        order = [list(lines)]
    recognised = not any(line.spans for line in lines)
    return _flow(order, content, Context(known, recognised))


def _flow(order: Sequence[Sequence[Line | Table]], content: PageContent, context: Context) -> list[Block]:
    """The blocks of all columns; footnotes come last, so that text goes on from column to column."""
    pieces: list[Table | list[Group]] = []
    below: list[Block] = []
    for column in order:
        column_pieces, footnotes = _column(column, content, context.profile)
        below += footnotes
        for piece in column_pieces:
            if pieces and isinstance(piece, list) and isinstance(pieces[-1], list):
                pieces[-1] = join_across(pieces[-1], piece)
            else:
                pieces.append(piece)
    classifier = Classifier(context)
    found: list[Block] = []
    for piece in pieces:
        found += [piece] if isinstance(piece, Table) else classifier.blocks(piece)
    return found + below


def _column(
    column: Sequence[Line | Table], content: PageContent, known: DocumentProfile
) -> tuple[list[Table | list[Group]], list[Block]]:
    """(tables and groups of rows from top to bottom, footnotes) of one column."""
    tables = sorted((item for item in column if isinstance(item, Table)), key=lambda table: table.top)
    lines = [item for item in column if isinstance(item, Line)]
    stretches = _between(lines, [(table.top + table.bottom) / 2 for table in tables])
    found: list[Table | list[Group]] = []
    below: list[Block] = []
    for index, stretch in enumerate(stretches):
        in_rows = rows(stretch)
        if index == len(stretches) - 1:
            in_rows, small = notes.split(in_rows, known.body_size, content.height)
            below = [Footnote(group.box, group.runs) for group in notes.groups(small)]
        for part in tables_aligned.split(in_rows) if len(in_rows) <= _MAX_LINES else [in_rows]:
            found.append(part if isinstance(part, Table) else groups(part))
        if index < len(tables):
            found.append(tables[index])
    return found, below


def _between(lines: Sequence[Line], heights: Sequence[float]) -> list[list[Line]]:
    """The lines above the first height, between it and the second, and so on."""
    found: list[list[Line]] = [[] for _ in range(len(heights) + 1)]
    for line in lines:
        middle = (line.top + line.bottom) / 2
        found[sum(height <= middle for height in heights)].append(line)
    return found


