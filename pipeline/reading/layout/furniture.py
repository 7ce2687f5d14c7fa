"""Headers, footers, page numbers and watermarks: lines at a page's edges or aslant that are not part of its text."""

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest

from pipeline.reading.layout import bands, listings, regions
from pipeline.reading.layout.drawn_rules import MAX_RULES, bars
from pipeline.reading.layout.model import Furniture, Line, PageContent, Region
from pipeline.reading.layout.paragraphs import groups
from pipeline.reading.layout.profile import DocumentProfile, edge_key, line_style
from pipeline.reading.layout.rows import Row, rows

_PAGE_NUMBER = re.compile(
    r"[\W_]*(?:(?:page|seite|p\.|pag\.|página|стр\.?|第)\s*)?(?:\d{1,4}|[ivxl]{1,7}|[IVXL]{1,7})"
    r"(?:\s*(?:/|of|von|de|sur|из|\||-)\s*\d{1,4})?\s*(?:页|頁|ページ)?[\W_]*",
    re.IGNORECASE,
)
_PAGE_LABEL = re.compile(r"\W*(?:page|seite|página)\s+\d{1,4}(?:\s*(?:/|of|von|de)\s*\d{1,4})?\W*", re.IGNORECASE)
_NUMBER_ZONE = 0.16
_LABEL_ZONE = 0.2  # "Page 3 of 7" may be above an address
_APART = 0.25  # text sizes between a header and the text
_OUTER = 0.065  # share of the height where a lone line is a header or footer without being repeated
_RECOGNISED_OUTER = 0.045
_MIN_RECOGNISED = 10  # Recognised pages with fewer lines have no headers.
_MAX_ROWS = 5  # rows inspected from each edge
_NEAR_EDGE = 0.25
_MAX_HEAD_CELLS, _TABLE_ROWS = 3, 3  # Of four rows at a table's beginning or end, three have more, and as many.
_HEAD_LETTERS = 4
_OVERLAP = 0.3  # of neighbouring rows, in text sizes, at most
_HEAD_SIZE = 1.12  # of the running text, at most
_NOTE_SIZE = 0.95
_NUMBER_SPACE, _BAND_SPACE, _FAR_SPACE = 0.6, 0.35, 1.8  # text sizes to the text; surer furniture needs less
_SPACES = ((5, 0.35), (4, 0.6), (3, 1.2), (2, 2.5))
"""With that much evidence, as `_evidence` counts it, the space to the text that a header or footer needs."""
_MAX_FORM_CHARS = 160
_MIN_SIDES, _BORDER = 3, 0.05  # upright rules of a table; share of their distance
_SLACK = 0.3  # text sizes between the ends of rules that touch
_SURE, _HALF_SURE = 0.6, 0.4
_RULED = 0.3
_MAX_NOTE_ROWS = 4
_SAME_SIZE = 0.05
_PLAIN_SIZE = 1.05
_FEW_PAGES = 3
_MIN_LINE_NUMBERS = 8
_LEVEL = 0.25  # text sizes between the feet of a line and of its number
_SIGN = re.compile(
    r"\W*(?:©|\(?c\)? ?(?:19|20)\d\d|copyright\b[^a-z]{1,8}(?:19|20)\d\d|e?-?issn\b)",
    re.IGNORECASE,
)
_FORM_START = re.compile(
    r"\W{0,3}(?:(?:copyright|all rights reserved|licen[sc]ed under|cc[- ]by|doi|arxiv|preprint)\b"
    r"|(?:https?://|www\.)\S+$|downloaded (?:from|by|on)\b|printed (?:on|in|from)\b"
    r"|(?:vol(?:ume)?|bd|band|tome|tomo|jahrgang|jg)\b\.? ?\d"
    r"|(?:version|rev(?:ision)?|release|ausgabe|fassung|versión|versão|versione)\b\.? ?v?\d)",
    re.IGNORECASE,
)
_FORM_WITHIN = re.compile(
    r"©|\ball rights reserved\b|\bcc[- ]by\b|\bdoi(?:\.org/|: ?10)|\barxiv:|\bissn\b|\bdownloaded (?:from|by|on)\b"
    r"|\bprinted in\b"
    r"|\b(?:vol(?:ume)?|bd|band|tome|tomo|jahrgang|jg)\b\.? ?\d.{0,60}\b(?:19|20)\d\d\b"
    r"|\b(?:no|nr|heft|issue)\b\.? ?\d+.{0,40}\b(?:19|20)\d\d\b",
    re.IGNORECASE,
)
_ENTRY = re.compile(r"\s*(?:\[\w{1,8}\]|\(?\d{1,3}[.)]\s)")
_NOTE_MARK = re.compile(r"\s*(?:[*∗†‡§¶#]|\d{1,3}(?!\d)\s*[^\W\d])")
_MAX_SINGLE_CHARS = 80
_WATERMARK_CHARS = 40
_MAX_STAMPS = 3
_SIDE = 0.12  # share of the width, at the left and the right, where a turned line is not part of the text
_MIN_PROSE_LINES, _PROSE_CHARS = 6, 25


def split(content: PageContent, profile: DocumentProfile) -> tuple[list[Line], list[Line]]:
    """Return (lines of the page's text, other lines: running heads, page and line numbers, stamps, watermarks and notes
    of publishers). If all lines seem to be such, all are text."""
    lines, numbers = listings.split(content.lines)
    away = _away(replace(content, lines=tuple(lines)), profile)
    away -= _in_tables([line for line in lines if id(line) in away], content, _SLACK * profile.body_size)
    if len(away) == len(lines):
        away = set()  # If other pages repeat all lines, then the lines are the text.
    return [line for line in lines if id(line) not in away], [*(line for line in lines if id(line) in away), *numbers]


def blocks(away: Iterable[Line], height: float) -> tuple[list[Furniture], list[Furniture]]:
    """Return (blocks of the level lines in the upper half of a page of this height, blocks of all other lines)."""
    above: list[Line] = []
    below: list[Line] = []
    turned: list[Line] = []
    for line in away:
        (turned if line.angle else above if line.top < height / 2 else below).append(line)
    upper, *others = ([*groups(part)] for part in (rows(above), rows(below), *([Row([line])] for line in turned)))
    return (
        [Furniture(group.box, group.runs) for group in upper],
        [Furniture(group.box, group.runs) for part in others for group in part],
    )


def _in_tables(lines: Sequence[Line], content: PageContent, slack: float) -> set[int]:
    """Return the ids of the lines in a cell of a ruled table that goes on towards the middle of the page: a table on
    several pages has the same head on each."""
    upright = bars(content.rules, slack)[1] if lines else []
    if len(upright) > MAX_RULES:
        return set()
    reach, found = _NEAR_EDGE * content.height, set()
    for line in lines:
        sides = [
            bar.at
            for bar in upright
            if bar.start <= line.top + slack
            and bar.end >= line.bottom - slack
            and (bar.end > reach if line.top < content.height / 2 else bar.start < content.height - reach)
        ]
        if len(sides) < _MIN_SIDES or not sides[0] <= line.left < line.right <= sides[-1]:
            continue
        border = _BORDER * (sides[-1] - sides[0])  # A page may have a double frame.
        inner = any(sides[0] + border < x < sides[-1] - border for x in sides)
        if inner and not any(line.left + slack < x < line.right - slack for x in sides):
            found.add(id(line))
    return found


def is_unsure(content: PageContent, profile: DocumentProfile) -> bool:
    """Whether a layout model could change the result, by taking lines at the edges for headers or footers."""
    everywhere = Region("header", (0.0, 0.0, content.width, content.height), 1.0)
    return _away(replace(content, regions=(everywhere,)), profile) != _away(content, profile)


def _away(content: PageContent, profile: DocumentProfile) -> set[int]:
    """Return the ids, as by `id`, of the lines that are furniture."""
    away = _repeated(content, profile)
    large = 1.8 * profile.body_size
    away |= {  # watermarks
        id(line)
        for line in content.lines
        if line.angle == -1 and line.size >= large and len(line.text) <= _WATERMARK_CHARS
    }
    away |= {id(line) for line in _side_stamps(content)}
    level = [line for line in content.lines if line.angle == 0 and id(line) not in away]
    away |= {id(line) for line in _line_numbers(level, profile)}
    level = [line for line in level if id(line) not in away]
    at_edges = rows(line for line in level if _at_edge(line, content.height, _LABEL_ZONE))
    away |= {id(line) for row in at_edges if _PAGE_LABEL.fullmatch(row.text) for line in row.cells}
    return away | _outermost([line for line in content.lines if line.angle == 0], content, profile, away)


def _repeated(content: PageContent, profile: DocumentProfile) -> set[int]:
    """Return the ids of lines that neighbouring pages share, from the edge inwards up to a gap before the text.

    Beyond a line of this page alone or a table's first row, a shared line is text, for example "Question 2".
    """
    shared = {id(line) for line in content.lines if line.angle and edge_key(line, content.height) in profile.repeated}
    level = sorted(rows(line for line in content.lines if line.angle == 0), key=lambda row: row.top)
    for zone, inwards in (("t", level), ("b", level[::-1])):
        passed: set[int] = set()
        for place, row in enumerate(inwards):
            further = inwards[place + 1] if place + 1 < len(inwards) else None
            cells = len(row.cells)
            if (
                cells > _MAX_HEAD_CELLS
                and sum(len(near.cells) >= cells for near in inwards[place : place + 4]) >= _TABLE_ROWS
            ):
                break
            keys = [(cell, edge_key(cell, content.height)) for cell in row.cells]
            repeated = {
                id(cell)
                for cell, key in keys
                if key.startswith(zone) and key in profile.repeated and not _is_title(cell, key, content, profile)
            }
            if not repeated and not _PAGE_NUMBER.fullmatch(row.text):
                break
            passed |= repeated
            gap = max(further.top - row.bottom, row.top - further.bottom) if further else math.inf
            if gap >= _APART * row.size:
                shared |= passed
    return shared


def _is_title(line: Line, key: str, content: PageContent, profile: DocumentProfile) -> bool:
    """Whether the line is the title of a document, on its first page, or of a slide that several neighbouring slides
    share; a line on half of the slides is not."""
    large = bool(line.spans) and line.size > _HEAD_SIZE * profile.body_size
    if content.width > content.height:
        return large and key not in profile.running
    return large and content.is_first and line.top < content.height / 2


def _outermost(level: Sequence[Line], content: PageContent, profile: DocumentProfile, away: set[int]) -> set[int]:
    """Return the ids of the lines, from each edge inwards, that are running heads, page numbers or notes in the
    margin."""
    outer: set[int] = set()
    for inwards in _inwards(level, content.height):
        passed: set[int] = set()
        needed = 0.0
        for row, gap, evidence in _weighed(inwards, content, profile):
            cells = {id(cell) for cell in row.cells}
            space = 0.0 if cells <= away else _space(row, evidence, content, profile)
            if not cells <= away and _has_shared_head(row, content, profile, away):
                space = _BAND_SPACE
            if space is None:
                break
            passed |= cells
            needed = max(needed, space)
            if gap >= needed * row.size:
                outer |= passed
                needed = 0.0
    return outer


def _has_shared_head(row: Row, content: PageContent, profile: DocumentProfile, away: set[int]) -> bool:
    """Whether some cell of the row is a running head that other pages share; the others, such as a section's title, are
    then running heads too."""
    if len(row.cells) > _MAX_HEAD_CELLS or row.size > _HEAD_SIZE * profile.body_size:
        return False
    if any(line_style(cell) in profile.headings for cell in row.cells if id(cell) not in away):
        return False  # a heading and its label
    words = any(id(cell) in away and sum(map(str.isalpha, cell.text)) >= _HEAD_LETTERS for cell in row.cells)
    return words and all(_at_edge(cell, content.height, _NUMBER_ZONE) for cell in row.cells)


def _weighed(
    inwards: Sequence[tuple[Row, float]], content: PageContent, profile: DocumentProfile
) -> Iterator[tuple[Row, float, int]]:
    """Yield each row with the space inwards and the evidence for its block: rows of one size, close to each other."""
    blocks: list[list[tuple[Row, float]]] = []
    for row, gap in inwards:
        before, space = blocks[-1][-1] if blocks else (row, math.inf)
        if space < _NUMBER_SPACE * row.size and abs(row.size - before.size) < _SAME_SIZE * row.size:
            blocks[-1].append((row, gap))
        else:
            blocks.append([(row, gap)])
    for block, inner in zip_longest(blocks, blocks[1:]):
        evidence = _evidence([row for row, _ in block], inner[0][0] if inner else None, content, profile)
        yield from ((row, gap, evidence) for row, gap in block)


def _inwards(level: Sequence[Line], height: float) -> tuple[list[tuple[Row, float]], list[tuple[Row, float]]]:
    """Return (rows near the top, rows near the bottom), each list from the edge inwards, with the space between the row
    and the next line inwards."""
    top = rows(line for line in level if line.top < _NEAR_EDGE * height)
    bottom = rows(line for line in level if line.bottom > (1 - _NEAR_EDGE) * height)
    top.sort(key=lambda row: row.top)
    bottom.sort(key=lambda row: -row.bottom)

    def below(row: Row) -> float:
        nearest = row.bottom - _OVERLAP * row.size
        return min((line.top for line in level if line.top > nearest), default=math.inf)

    def above(row: Row) -> float:
        nearest = row.top + _OVERLAP * row.size
        return max((line.bottom for line in level if line.bottom < nearest), default=-math.inf)

    return (
        [(row, below(row) - row.bottom) for row in top[:_MAX_ROWS]],
        [(row, row.top - above(row)) for row in bottom[:_MAX_ROWS]],
    )


def _space(row: Row, evidence: int, content: PageContent, profile: DocumentProfile) -> float | None:
    """Return the least space towards the text, in text sizes, that makes the row furniture; None if it is text."""
    in_zone = all(_at_edge(cell, content.height, _NUMBER_ZONE) for cell in row.cells)
    band = bands.of_row(row, content.height)
    if band and line_style(row.main) in profile.headings:
        band = band._replace(look="")
    if band and row.size <= _HEAD_SIZE * profile.body_size and bands.holds(profile.bands, band):
        return _BAND_SPACE
    if in_zone and _PAGE_NUMBER.fullmatch(row.text) and len(row.cells) == 1:
        return _NUMBER_SPACE
    small = row.size <= _PLAIN_SIZE * profile.body_size
    if in_zone and small and _has_number_at_end(row) and len(row.text) <= _MAX_SINGLE_CHARS:
        return _NUMBER_SPACE
    if small and _PAGE_NUMBER.fullmatch(row.text) and len(row.cells) == 1:
        return _FAR_SPACE
    return next((space for least, space in _SPACES if evidence >= least), None)


def is_surveyed(profile: DocumentProfile) -> bool:
    """Whether the document's profile shows which lines its pages share."""
    return bool(profile.bands or (profile.repeated and profile.pages > _FEW_PAGES))


def _evidence(block: Sequence[Row], inner: Row | None, content: PageContent, profile: DocumentProfile) -> int:
    """Return how much speaks for a block at an edge as header or footer. `inner`: the next row towards the text.

    Words that publishers print at the edges, a place in the margin, or a layout model's label must be there; the look
    of the rows adds to them, or contradicts them."""
    size = max(row.size for row in block) / max(profile.body_size, 1e-9)
    if size > _HEAD_SIZE or len(block) > _MAX_NOTE_ROWS or any(len(row.text) > _MAX_FORM_CHARS for row in block):
        return 0
    is_plain = size <= _PLAIN_SIZE and not any(row.is_bold for row in block)
    has_form = is_plain and _has_form(block, profile)
    is_lone = is_plain and all(_is_lone(row, content, profile) for row in block)
    strong = 3 * has_form + 3 * is_lone + max(_seen(row, content) for row in block)
    if not strong:
        return 0
    # In the same type as its neighbour, a small row may be part of a list or a footnote.
    is_note = size < _NOTE_SIZE and (inner is None or inner.size > 1.02 * block[0].size)
    look = bands.look(block[0])
    ruled = any(_is_ruled(row, content) for row in block)
    first, *_, last = sorted(block, key=lambda row: row.top) * 2
    # A paragraph's last line alone at the top of a page looks like a header.
    is_sentence = (first.text[:1].islower() and "c" not in look) or last.text.endswith((".", ",", ";", ":"))
    against = [
        2 * (line_style(block[0].main) in profile.headings),
        2 * (size >= _NOTE_SIZE and not has_form and (is_surveyed(profile) or (is_sentence and not ruled))),
        not all(_at_edge(cell, content.height, _NUMBER_ZONE) for row in block for cell in row.cells),
    ]
    return strong + is_note + bool(look) + ruled - sum(against)


def _seen(row: Row, content: PageContent) -> int:
    """Return how much a layout model's answer speaks for a header or footer."""
    seen = [region for cell in row.cells if (region := regions.holding(content.regions, cell))]
    if not seen or any(region.kind not in {"header", "footer"} for region in seen):
        return 0
    score = min(region.score for region in seen)
    return 3 if score >= _SURE else 2 if score >= _HALF_SURE else 0


def _is_ruled(row: Row, content: PageContent) -> bool:
    """Whether a line is drawn across much of the page, close to the row."""
    return any(
        rule.top == rule.bottom
        and rule.right - rule.left > _RULED * content.width
        and min(abs(rule.top - row.bottom), abs(rule.top - row.top)) < row.size
        for rule in content.rules
    )


def _has_form(block: Sequence[Row], profile: DocumentProfile) -> bool:
    """Whether the block reads like the notes of publishers and printers at the edges of a page.

    In the type of the text, only signs with which no sentence begins count: the last words of a paragraph may stand at
    the top of the next page, whatever their subject. Footnotes stay."""
    if any(_SIGN.match(row.text) for row in block):
        return True
    if block[0].size >= _NOTE_SIZE * profile.body_size:
        return False
    if any(
        _ENTRY.match(row.text) or _NOTE_MARK.match(row.text) or any(token.style.shift for token in row.tokens[:1])
        for row in block
    ):
        return False
    texts = [row.text for row in block]
    return any(_FORM_START.match(text) or (not text[:1].islower() and _FORM_WITHIN.search(text)) for text in texts)


def _is_lone(row: Row, content: PageContent, profile: DocumentProfile) -> bool:
    """Whether the row is a small line in the margin of a document too short to repeat anything."""
    recognised = not any(cell.spans for cell in row.cells)
    if (profile.pages > 2 and not recognised) or len(content.lines) < (_MIN_RECOGNISED if recognised else 3):
        return False
    if recognised and content.width > content.height:
        return False  # Screenshots and slides have text up to their edges.
    share = _RECOGNISED_OUTER if recognised else _OUTER
    in_margin = all(_at_edge(cell, content.height, share) for cell in row.cells)
    return in_margin and not row.is_bold and len(row.text) <= _MAX_SINGLE_CHARS


def _line_numbers(level: Sequence[Line], profile: DocumentProfile) -> list[Line]:
    """Return the line numbers of a draft: small, one below the other, left or right of all else."""
    counted = [
        line
        for line in level
        if line.text.strip().isdecimal() and len(line.text.strip()) < 5 and line.size < _NOTE_SIZE * profile.body_size
    ]
    if len(counted) < _MIN_LINE_NUMBERS or 2 * len(counted) > len(level) + 2 * _MIN_LINE_NUMBERS:
        return []
    chosen = {id(line) for line in counted}
    others = [line for line in level if id(line) not in chosen]
    left = min((line.left for line in others), default=math.inf)
    right = max((line.right for line in others), default=-math.inf)
    text = sorted(rows(others), key=lambda row: row.bottom)
    for beside in ([line for line in counted if line.right <= left], [line for line in counted if line.left >= right]):
        ordered = sorted(beside, key=lambda line: line.top)
        steps = {int(b.text) - int(a.text) for a, b in pairwise(ordered)}
        if len(ordered) < _MIN_LINE_NUMBERS or len(steps) != 1 or not steps <= {1, 5}:
            continue
        if 2 * sum(_counts_a_line(number, text) for number in ordered) > len(ordered):
            return ordered
    return []


def _counts_a_line(number: Line, text: Sequence[Row]) -> bool:
    """Whether a line of running text in larger type is beside the number, rather than the cells of a table's row or,
    with a raised number, a note. `text` is sorted by the rows' bottoms."""
    first = bisect_left(text, number.bottom - number.size, key=lambda row: row.bottom)
    for row in text[first : first + 3]:
        if abs(row.bottom - number.bottom) <= _LEVEL * row.size:
            return len(row.text) >= _PROSE_CHARS and not row.is_far_apart and number.size < _NOTE_SIZE * row.size
    return False


def _has_number_at_end(row: Row) -> bool:
    """Whether the row is a running head: a few words, and at one end, far from them, the page's number."""
    if not 2 <= len(row.cells) <= _MAX_HEAD_CELLS or not row.is_far_apart or not row.is_plain or row.is_mono:
        return False
    return any(cell.text.strip().isdigit() and len(cell.text.strip()) < 5 for cell in (row.cells[0], row.cells[-1]))


def _at_edge(line: Line, height: float, share: float) -> bool:
    return line.bottom < share * height or line.top > (1 - share) * height


def _side_stamps(content: PageContent) -> list[Line]:
    """Return a few turned lines beside running text, in the page's outer margin."""
    turned = [line for line in content.lines if line.angle in {90, 270}]
    if not 0 < len(turned) <= _MAX_STAMPS:
        return []
    level = [line for line in content.lines if line.angle == 0]
    if sum(len(line.text) >= _PROSE_CHARS for line in level) < _MIN_PROSE_LINES:
        return []
    left = min(_SIDE * content.width, *(line.left for line in level))
    right = max((1 - _SIDE) * content.width, *(line.right for line in level))
    return [line for line in turned if line.right <= left or line.left >= right]
