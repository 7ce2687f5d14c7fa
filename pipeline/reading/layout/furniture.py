"""Headers, footers, page numbers and watermarks: what is at a page's edges or aslant and not part of its text."""

import math
import re
from collections.abc import Sequence
from itertools import zip_longest

from pipeline.reading.layout.model import Line, PageContent
from pipeline.reading.layout.profile import DocumentProfile, edge_key
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
_OUTER = 0.065  # share of the height in which a lone line is a header or footer though it is never repeated
_RECOGNISED_OUTER = 0.045
_MIN_RECOGNISED = 10  # Recognised pages with fewer lines have no headers.
_MAX_ROWS = 3  # rows to look at from each edge
_MAX_SINGLE_CHARS = 80
_WATERMARK_CHARS = 40
_MAX_STAMPS = 3
_SIDE = 0.12  # share of the width, at the left and the right, where a turned line is not part of the text
_MIN_PROSE_LINES, _PROSE_CHARS = 6, 25


def split(content: PageContent, profile: DocumentProfile) -> tuple[list[Line], list[Line]]:
    """(lines of the page's text, lines that are furniture)."""
    away = _repeated(content, profile)
    large = 1.8 * profile.body_size
    away |= {  # watermarks
        id(line) for line in content.lines
        if line.angle == -1 and line.size >= large and len(line.text) <= _WATERMARK_CHARS
    }  # fmt: skip
    away |= {id(line) for line in _side_stamps(content)}
    level = [line for line in content.lines if line.angle == 0 and id(line) not in away]
    at_edges = rows(line for line in level if _at_edge(line, content.height, _LABEL_ZONE))
    away |= {id(line) for row in at_edges if _PAGE_LABEL.fullmatch(row.text) for line in row.cells}
    away |= _outermost(level, at_edges, content, profile, away)
    if len(away) == len(content.lines):
        away = set()  # If all that is on a page is on others, too, then that is its text.
    return (
        [line for line in content.lines if id(line) not in away],
        [line for line in content.lines if id(line) in away],
    )


def _repeated(content: PageContent, profile: DocumentProfile) -> set[int]:
    """Lines that neighbouring pages have, too, from the edge inwards up to a gap before the text.

    After a line that only this page has, such a line is text, for example "Question 2"."""
    found = {id(line) for line in content.lines if line.angle and edge_key(line, content.height) in profile.repeated}
    level = sorted(rows(line for line in content.lines if line.angle == 0), key=lambda row: row.top)
    for zone, inwards in (("t", level), ("b", level[::-1])):
        passed: set[int] = set()
        for row, further in zip_longest(inwards, inwards[1:]):
            keys = [(cell, edge_key(cell, content.height)) for cell in row.cells]
            repeated = {id(cell) for cell, key in keys if key.startswith(zone) and key in profile.repeated}
            if not repeated and not _PAGE_NUMBER.fullmatch(row.text):
                break
            passed |= repeated
            gap = max(further.top - row.bottom, row.top - further.bottom) if further else math.inf
            if gap >= _APART * row.size:
                found |= passed
    return found


def _outermost(
    level: Sequence[Line], at_edges: Sequence[Row], content: PageContent, profile: DocumentProfile, away: set[int]
) -> set[int]:
    """The first and the last row, if they are a page number or a lone small line in the margin."""
    found: set[int] = set()
    remaining = [line for line in level if id(line) not in away]
    edge = [row for row in at_edges if not any(id(cell) in away for cell in row.cells)]
    for row in {id(row): row for row in edge[:_MAX_ROWS] + edge[-_MAX_ROWS:]}.values():
        above = [line for line in remaining if line.bottom <= row.top]
        below = [line for line in remaining if line.top >= row.bottom]
        if above and below:
            continue
        nearest = min((row.top - line.bottom for line in above), default=1e9)
        nearest = min(nearest, min((line.top - row.bottom for line in below), default=1e9))
        if nearest >= 0.6 * row.size and _is_outer(row, nearest, content, profile):
            found |= {id(cell) for cell in row.cells}
    return found


def _is_outer(row: Row, gap: float, content: PageContent, profile: DocumentProfile) -> bool:
    in_zone = all(_at_edge(cell, content.height, _NUMBER_ZONE) for cell in row.cells)
    if in_zone and _PAGE_NUMBER.fullmatch(row.text) and len(row.cells) == 1:
        return True
    if in_zone and _has_number_at_end(row) and row.size <= 1.05 * profile.body_size and row.is_plain:
        return len(row.text) <= _MAX_SINGLE_CHARS
    recognised = not any(cell.spans for cell in row.cells)
    if (profile.pages > 2 and not recognised) or len(content.lines) < (_MIN_RECOGNISED if recognised else 3):
        return False
    if recognised and content.width > content.height:
        return False  # Screenshots and slides have text up to their edges.
    in_margin = all(_at_edge(cell, content.height, _RECOGNISED_OUTER if recognised else _OUTER) for cell in row.cells)
    small = row.size <= 1.05 * profile.body_size and not row.is_bold and len(row.text) <= _MAX_SINGLE_CHARS
    return in_margin and small and gap >= 1.2 * row.size


def _has_number_at_end(row: Row) -> bool:
    """Whether the row is a running head: a few words, and at one end, far from them, the page's number."""
    if len(row.cells) != 2 or not row.is_far_apart:
        return False
    return any(cell.text.strip().isdigit() and len(cell.text.strip()) < 5 for cell in row.cells)


def _at_edge(line: Line, height: float, share: float) -> bool:
    return line.bottom < share * height or line.top > (1 - share) * height


def _side_stamps(content: PageContent) -> list[Line]:
    """A few turned lines beside running text, in the page's outer margin."""
    turned = [line for line in content.lines if line.angle in {90, 270}]
    if not 0 < len(turned) <= _MAX_STAMPS:
        return []
    level = [line for line in content.lines if line.angle == 0]
    if sum(len(line.text) >= _PROSE_CHARS for line in level) < _MIN_PROSE_LINES:
        return []
    left = min(_SIDE * content.width, *(line.left for line in level))
    right = max((1 - _SIDE) * content.width, *(line.right for line in level))
    return [line for line in turned if line.right <= left or line.left >= right]
