"""What is on a page becomes blocks in reading order, in small pure steps over plain data.

    lines -> furniture removed -> figures -> ruled tables -> columns -> rows -> aligned tables
        -> paragraphs -> blocks -> Markdown

No step drops text, except for headers, footers, page numbers and watermarks, which a caller may keep.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pipeline.reading.layout import boxes, compounds, figures, furniture, mirror, regions, rotation, tables_ruled
from pipeline.reading.layout import profile as profiles
from pipeline.reading.layout.assembly import Assembly
from pipeline.reading.layout.classifier import Classifier, Criteria
from pipeline.reading.layout.columns import reading_order
from pipeline.reading.layout.markdown import as_dicts, render
from pipeline.reading.layout.model import Block, Line, PageContent, Picture, around
from pipeline.reading.layout.paragraphs import groups
from pipeline.reading.layout.profile import DocumentProfile, PageFacts, page_facts
from pipeline.reading.layout.profile import profile as document_profile
from pipeline.reading.layout.rows import Row

__all__ = [
    "Block",
    "DocumentProfile",
    "Line",
    "PageContent",
    "PageFacts",
    "as_dicts",
    "cleaned",
    "convert",
    "document_profile",
    "page_facts",
    "profile_for",
    "render",
    "to_markdown",
]

_MAX_LINES = 20_000
"""With more lines of one direction than this, tables and columns are not looked for."""

_MIN_TEXT_LINES = 6


def to_markdown(lines: Iterable[Line]) -> str:
    """The Markdown of a page's lines, given in any order, with nothing left out."""
    found = tuple(lines)
    placed = [line.box for line in found if rotation.is_placed(line)]
    _, _, width, height = around(placed) if placed else (0.0, 0.0, 1.0, 1.0)
    return render(convert(PageContent(width, height, found), keep_furniture=True))


def convert(
    content: PageContent, document: DocumentProfile | None = None, *, keep_furniture: bool = False
) -> list[Block]:
    """The page's blocks in reading order. Without its document's profile, the page is judged by itself."""
    content = cleaned(content, document)
    known = profile_for(content, document)
    lines = list(content.lines) if keep_furniture else furniture.split(content, known)[0]
    drawn = figures.find(content, lines, known.body_size)
    by_angle: dict[int, list[Line]] = {0: []} if drawn.figures else {}
    for line in drawn.lines:
        by_angle.setdefault(line.angle, []).append(line)
    found: list[Block] = []
    characters = {angle: sum(len(line.text) for line in lines) for angle, lines in by_angle.items()}
    # Text that runs up a margin would cut through the lines beside it, so it comes after most of the page.
    for angle in sorted(by_angle, key=lambda angle: -characters[angle] * (1.0 if angle >= 0 else 0.001)):
        part = replace(content, lines=tuple(by_angle[angle]))
        # Beside the page's own text, large or not, a stamp in the margin is not a heading.
        judged_by = replace(known, headings={}) if found else known
        blocks = _upright_blocks(rotation.upright(part, angle), judged_by, () if angle else drawn.figures)
        found += rotation.restored(blocks, angle, content)
    return found + [Picture(box) for box in content.pictures]


def profile_for(content: PageContent, document: DocumentProfile | None) -> DocumentProfile:
    """What the page is judged by: its document's profile, or its own; recognised text has its own sizes."""
    known = document or document_profile([page_facts(content)])
    recognised = not any(line.spans for line in content.lines)
    return profiles.for_recognised_text(content, known) if recognised else known


def cleaned(content: PageContent, document: DocumentProfile | None = None) -> PageContent:
    """The page with each line in a place that it can have; text is kept wherever it was. Regions are cleaned, too."""
    lines = []
    for line in content.lines:
        if not line.text.strip():
            continue
        if not rotation.is_placed(line):
            lines.append(Line(line.text, 0.0, content.height, 0.0, content.height, 1.0, (), -1))
            continue
        placed = line
        if line.left > line.right or line.top > line.bottom or line.size < 0.1:
            left, right = sorted((line.left, line.right))
            top, bottom = sorted((line.top, line.bottom))
            placed = line._replace(left=left, top=top, right=right, bottom=bottom, size=max(line.size, 0.1))
        vertical = placed.angle == 0 and rotation.is_vertical(placed)
        lines.append(placed._replace(angle=-1) if vertical else placed)
    return replace(
        content,
        lines=tuple(compounds.marked(lines, document.written if document else frozenset())),
        regions=regions.cleaned(content.regions, content.width, content.height),
    )


def _upright_blocks(content: PageContent, known: DocumentProfile, found_figures: Sequence[Picture]) -> list[Block]:
    """The blocks of text that runs across the page, or that is aslant, with the figures between."""
    lines = list(content.lines)
    if not lines:
        return list(found_figures)
    if any(line.angle for line in lines):  # aslant: one line after the other
        classifier = Classifier(Criteria(known, recognised=True))
        return [block for line in lines for block in classifier.blocks(groups([Row([line])]))]
    recognised = not any(line.spans for line in lines)
    leftwards = mirror.is_leftward(lines)
    seen = mirror.mirrored(content, leftwards=leftwards)
    placed = mirror.restored(found_figures, content, leftwards=leftwards)  # A mirror's mirror is the thing itself.
    assembly = Assembly(seen, Criteria(known, recognised, _page_size(lines)))
    if len(lines) > _MAX_LINES:
        blocks = assembly.blocks([[*seen.lines, *placed]])
    else:
        found = tables_ruled.find(seen.lines, seen.rules, seen.fills)
        items: list[boxes.Item] = [*found.lines, *found.tables, *placed]
        framed, rest = boxes.find(items, seen.fills, seen.width, seen.height)
        blocks = assembly.blocks(reading_order([*rest, *framed], seen.regions))
    return mirror.restored(blocks, content, leftwards=leftwards)


def _page_size(lines: Sequence[Line]) -> float:
    """The size of most of the page's text; 0 if there are only few lines of it."""
    sizes: dict[float, list[int]] = {}
    for line in lines:
        sizes.setdefault(round(2 * line.size) / 2, []).append(len(line.text))
    size = max(sizes, key=lambda size: sum(sizes[size]))
    enough = len(sizes[size]) >= _MIN_TEXT_LINES and 2.5 * sum(sizes[size]) > sum(map(sum, sizes.values()))
    return size if enough else 0.0
