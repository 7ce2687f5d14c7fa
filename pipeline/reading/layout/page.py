"""Turn the contents of a page into blocks in reading order, in small pure steps over plain data.

    lines -> furniture removed -> figures -> formulas -> blanks of forms -> ruled tables -> columns -> rows
        -> aligned tables -> paragraphs -> blocks -> Markdown

No step drops text: headers, footers, page numbers and watermarks become blocks of furniture.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pipeline.reading.layout import (
    blanks,
    boxes,
    compounds,
    figures,
    formulas,
    furniture,
    lists,
    mirror,
    regions,
    rotation,
    ruby,
    tables_ruled,
)
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
    "blocks",
    "cleaned",
    "convert",
    "document_profile",
    "page_facts",
    "profile_for",
    "render",
    "to_markdown",
]

_MAX_LINES = 20_000
"""With more lines of one direction, the search for tables and columns is skipped."""

_MIN_TEXT_LINES = 6
_MIN_TITLED_LINES, _SURE_TITLE = 10, 0.5  # The layout model takes a short letter's lines for titles.


def to_markdown(lines: Iterable[Line]) -> str:
    """Return a page's lines, given in any order, as Markdown: all of them, with headers and footers."""
    all_lines = tuple(lines)
    placed = [line.box for line in all_lines if rotation.is_placed(line)]
    _, _, width, height = around(placed) if placed else (0.0, 0.0, 1.0, 1.0)
    return render(convert(PageContent(width, height, all_lines), keep_furniture=True))


def convert(
    content: PageContent, document: DocumentProfile | None = None, *, keep_furniture: bool = False
) -> list[Block]:
    """Return the page's blocks in reading order, with furniture first and last; none of the lines is furniture if
    `keep_furniture`. Without a `document` profile, the page makes its own."""
    content = cleaned(content, document)
    return blocks(content, profile_for(content, document), keep_furniture=keep_furniture)


def blocks(content: PageContent, known: DocumentProfile, *, keep_furniture: bool = False) -> list[Block]:
    """Return what `convert` returns. `content`: the page as `cleaned` returns it; `known`: its profile, from
    `profile_for`."""
    content = replace(content, lines=lists.with_drawn_bullets(content))
    lines, away = (list(content.lines), []) if keep_furniture else furniture.split(content, known)
    lines, furigana = (lines, []) if keep_furniture else ruby.split(lines)
    drawn = figures.find(content, lines, known.body_size)
    displayed = formulas.find(drawn.lines, content.rules, content.regions, known.body_size)
    placed = [*drawn.figures, *displayed.formulas]
    by_angle: dict[int, list[Line]] = {0: []} if placed else {}
    for line in displayed.lines:
        by_angle.setdefault(line.angle, []).append(line)
    found: list[Block] = []
    characters = {angle: sum(len(line.text) for line in lines) for angle, lines in by_angle.items()}
    # Text that runs up a margin would cut through the lines beside it, so it comes after most of the page.
    for angle in sorted(by_angle, key=lambda angle: -characters[angle] * (1.0 if angle >= 0 else 0.001)):
        part = replace(content, lines=tuple(by_angle[angle]))
        # A stamp in the margin is not a heading beside the page's own text, however large.
        judged_by = replace(known, headings={}) if found else known
        upright = _upright_blocks(rotation.upright(part, angle), judged_by, () if angle else placed)
        found += rotation.restored(upright, angle, content)
    above, below = furniture.blocks([*away, *furigana], content.height)
    return [*above, *found, *(Picture(box) for box in content.pictures), *below]


def profile_for(content: PageContent, document: DocumentProfile | None) -> DocumentProfile:
    """Return the document's profile, or the page's own; a page of recognised text uses its own sizes."""
    known = document or document_profile([page_facts(content)])
    recognised = not any(line.spans for line in content.lines)
    return profiles.for_recognised_text(content, known) if recognised else known


def cleaned(content: PageContent, document: DocumentProfile | None = None) -> PageContent:
    """Return the page, to be converted, with a possible place for each line, marks in place of hyphens at line ends
    that are decided, and only sound regions. Drops no lines but blank ones."""
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


def _upright_blocks(content: PageContent, known: DocumentProfile, drawn_figures: Sequence[Picture]) -> list[Block]:
    """Return the blocks of text that runs across the page or aslant, with the figures between them."""
    lines = list(content.lines)
    if not lines:
        return list(drawn_figures)
    if any(line.angle for line in lines):  # aslant: one line after the other
        classifier = Classifier(Criteria(known, recognised=True))
        return [block for line in lines for block in classifier.blocks(groups([Row([line])]))]
    recognised = not any(line.spans for line in lines)
    leftwards = mirror.is_leftward(lines)
    mirrored = mirror.mirrored(content, leftwards=leftwards)
    placed = mirror.restored(drawn_figures, content, leftwards=leftwards)  # Mirroring is its own inverse.
    seen = regions.of_kind(mirrored.regions, "title") if len(lines) >= _MIN_TITLED_LINES else []
    titles = tuple(region.box for region in seen if region.score >= _SURE_TITLE)
    assembly = Assembly(mirrored, Criteria(known, recognised, _page_size(lines), titles))
    if len(lines) > _MAX_LINES:
        order: Sequence[Sequence[boxes.Item | boxes.Frame]] = [[*mirrored.lines, *placed]]
    else:
        order = reading_order(items(mirrored, placed), mirrored.regions, mirrored.rules)
    return mirror.restored(assembly.blocks(order), content, leftwards=leftwards)


def items(content: PageContent, drawn_figures: Iterable[Picture] = ()) -> list[boxes.Item | boxes.Frame]:
    """Return the figures, the tables that rules show, and the lines outside of them; those in a frame together."""
    forms, others = blanks.find(content.lines, content.rules)
    ruled = tables_ruled.find(others, content.rules, content.fills)
    parts: list[boxes.Item] = [*ruled.lines, *ruled.tables, *forms, *drawn_figures]
    if any(line.spans for line in content.lines):
        framed, rest = boxes.find(parts, content.fills, content.width, content.height)
        return [*rest, *framed]
    # In a picture, only rules show boxes, and only the places of words that they are a stamp's.
    framed, rest = boxes.find(parts, ruled.boxes, content.width, content.height)
    stamps = [figures.of_lines(frame.box, frame.lines, frame.size) for frame in framed if frame.is_stamp]
    return [*rest, *stamps, *(frame for frame in framed if not frame.is_stamp)]


def _page_size(lines: Sequence[Line]) -> float:
    """Return the size of most of the page's text; 0 if only few lines have it."""
    sizes: dict[float, list[int]] = {}
    for line in lines:
        sizes.setdefault(round(2 * line.size) / 2, []).append(len(line.text))
    size = max(sizes, key=lambda size: sum(sizes[size]))
    enough = len(sizes[size]) >= _MIN_TEXT_LINES and 2.5 * sum(sizes[size]) > sum(map(sum, sizes.values()))
    return size if enough else 0.0
