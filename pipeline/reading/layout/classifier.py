"""Classify groups of rows: headings, list items, code, quotes or plain text."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from typing import NamedTuple

from pipeline.reading.layout import headings, lists
from pipeline.reading.layout.model import Block, Box, Code, Heading, Line, ListItem, Paragraph, Quote, around
from pipeline.reading.layout.paragraphs import Group
from pipeline.reading.layout.profile import DocumentProfile
from pipeline.reading.layout.rows import Row
from pipeline.reading.layout.text import PAIR, is_label, is_page_number, number_depth, with_hyphens

_MIN_QUOTE_INDENT = 1.5  # text sizes
_MONO_WIDTH = 0.6
_TITLE_SIZE = 1.3  # of the names below
_MAX_BYLINES = 8
_INDENT = 1.0  # text sizes of a definition
_CODE_SIGN = re.compile(
    r"[;{}]$|^(?://|/\*|--|\+\+|#\w|<[/!?]?\w)|:=|==|->|=>|&&|\|\||\w\([^()]*\)|\w\[[^\[\]]+\]|^\w+ ?= ?\S"
)
_PAGE_GAP = 3.0  # text sizes at least from a title in the contents to its page


class Criteria(NamedTuple):
    """What classification uses besides a block's rows; `page_size`: the size of most of the page's text, or 0;
    `titles`: where a layout model sees titles."""

    profile: DocumentProfile
    recognised: bool
    page_size: float = 0.0
    titles: tuple[Box, ...] = ()


class Classifier:
    """Makes the blocks of one page in reading order; remembers the depths of earlier list items."""

    def __init__(self, criteria: Criteria) -> None:
        self._criteria = criteria
        self._depths = lists.Depths()

    def blocks(self, groups: Sequence[Group]) -> Iterator[Block]:
        """Yield the groups as blocks; consecutive groups of code become one block, and so do a label and its title."""
        return headings.with_labels(self._blocks(groups))

    def _blocks(self, groups: Sequence[Group]) -> Iterator[Block]:
        index = 0
        while index < len(groups):
            code = self._code(groups[index:])
            if code:
                index += code
                yield _code_block(groups[index - code : index])
                continue
            if _is_in_list(groups, index, recognised=self._criteria.recognised):
                yield self._item(groups[index]) or self._block(groups[index])
            elif _is_byline(groups, index) or _is_term(groups, index):
                self._depths.reset()
                yield Paragraph(groups[index].box, groups[index].runs)
            else:
                group = groups[index]
                found: list[Block] = [*_pairs(group)] or self._labelled(groups, index)
                found = found or [self._block(part) for part in self._parts(group)]
                if index + 1 < len(groups) and isinstance(found[0], Paragraph) and len(found) == 1:
                    found[0] = headings.numbered(group, groups[index + 1], self._criteria.profile) or found[0]
                    if self._criteria.recognised:
                        found[0] = headings.over_text(group, groups[index + 1], self._criteria.profile) or found[0]
                yield from found
            index += 1
            count = lists.unmarked(groups[index - 1 :]) if self._criteria.recognised else 0
            yield from (ListItem(group.box, group.runs, "-") for group in groups[index : index + count])
            index += count

    def _labelled(self, groups: Sequence[Group], index: int) -> list[Block]:
        """Return a heading and a paragraph for a row with a bold heading at one end and a label at the other; empty if
        the group is no such row, or has a row of cells as neighbour."""
        group = groups[index]
        row = group.rows[0]
        if len(group.rows) > 1 or len(row.cells) != 2 or not row.is_tabular or not row.is_bold or _is_contents(group):
            return []
        if any(near.rows[0].is_tabular for near in groups[max(0, index - 1) : index + 2] if near is not group):
            return []
        title, label = (replace(group, rows=(Row((cell,)),)) for cell in row.cells)
        if title.rows[0].left - group.left > row.size or group.right - label.rows[0].right > row.size:
            return []
        block = self._block(title)
        return [block, Paragraph(label.box, label.runs)] if isinstance(block, Heading) else []

    def _parts(self, group: Group) -> list[Group]:
        """Return the group, or a heading and the text at the other end of its line."""
        row = group.rows[0]
        larger = row.size >= headings.LARGER * self._criteria.profile.body_size
        if len(group.rows) > 1 or not row.is_tabular or not larger or len(row.cells[0].text) < 4 or _is_contents(group):
            return [group]
        if headings.has_number_apart(row) or is_label(row.cells[0].text):
            return [group]
        return [replace(group, rows=(Row((cell,)),)) for cell in row.cells]

    def _block(self, group: Group) -> Block:
        heading = (
            None
            if _is_contents(group)
            else headings.heading(
                group,
                self._criteria.profile,
                recognised=self._criteria.recognised,
                page_size=self._criteria.page_size,
                titles=self._criteria.titles,
            )
        )
        if heading:
            self._depths.reset()
            return heading
        item = self._item(group)
        if item:
            return item
        self._depths.reset()
        if group.rows[0].is_tabular and len(group.rows) > 1:
            return Paragraph(group.box, group.runs)
        if self._is_quote(group):
            return Quote(group.box, group.runs)
        return Paragraph(group.box, group.runs)

    def _item(self, group: Group) -> Block | None:
        if not lists.marker(group.rows[0]):
            return None
        return lists.item(group, self._depths.of(group.rows[0]))

    def _is_quote(self, group: Group) -> bool:
        rows = group.rows
        if len(rows) < 2 or abs(group.size - self._criteria.profile.body_size) > 0.05 * group.size:
            return False
        indent = _MIN_QUOTE_INDENT * group.size
        lefts = [row.left for row in rows]
        level = sum(abs(left - min(lefts)) < 0.3 * group.size for left in lefts) >= max(2, len(rows) - 1)
        return level and min(lefts) - group.left > indent and group.right - max(row.right for row in rows) > indent

    def _code(self, groups: Sequence[Group]) -> int:
        """Return how many groups, from the first on, are code that belongs together; 0 if the first is not code."""
        mono = [*takewhile(lambda group: all(row.is_mono for row in group.rows), groups)]
        if self._criteria.profile.body_mono and not _read_as_code(mono):
            mono = [*takewhile(lambda group: _read_as_code([group]), mono)]
        rows = [row for group in mono for row in group.rows]
        if len(rows) < 2 or any(token.style.link for row in rows for token in row.tokens):
            return 0  # Addresses are in this type, too.
        lefts = sorted(row.left for row in rows)
        flush = len(rows) == 2 or any(b - a < 0.3 * rows[0].size for a, b in pairwise(lefts))
        return len(mono) if flush else 0


def _pairs(group: Group) -> list[Paragraph]:
    """Return a paragraph for each label and its value in a row with several; empty for other groups."""
    pairs: list[list[Line]] = []
    for cell in group.rows[0].cells if len(group.rows) == 1 and group.rows[0].is_tabular else ():
        if is_label(cell.text) or PAIR.match(cell.text):
            pairs.append([cell])
        elif pairs and is_label(pairs[-1][0].text):
            pairs[-1].append(cell)
        else:
            return []
    parts = [replace(group, rows=(Row(pair),)) for pair in pairs] if len(pairs) > 1 else []
    return [Paragraph(part.box, part.runs) for part in parts]


def _is_contents(group: Group) -> bool:
    """Whether the group ends with a page number far from its title, like a line of contents."""
    cells = group.rows[-1].cells
    if len(cells) < 2 or not is_page_number(cells[-1].text):
        return False
    return cells[-1].left - cells[-2].right > _PAGE_GAP * cells[-1].size and len(cells[-2].text) > 3


def _is_in_list(groups: Sequence[Group], index: int, *, recognised: bool) -> bool:
    """Whether the group and a neighbour in its look start with markers below each other; headings do not.

    Capitals may seem a tenth smaller in recognised text: an item may be smaller there than the next."""
    first = groups[index].rows[0]
    if not lists.marker(first):
        return False
    others = [(near, groups[near].rows[0]) for near in (index - 1, index + 1) if 0 <= near < len(groups)]
    return any(
        lists.marker(row)
        and (row.is_bold or not first.is_bold)
        and abs(row.left - first.left) < first.size
        and (abs(row.size - first.size) < 0.1 * first.size or (recognised and near > index and row.size > first.size))
        for near, row in others
    )


def _is_byline(groups: Sequence[Group], index: int) -> bool:
    """Whether the group is a name, an institute or a date: plain, and centred like all groups above it, below a much
    larger title."""
    group, title = groups[index], groups[0]
    if not 0 < index <= _MAX_BYLINES or title.size < _TITLE_SIZE * group.size or number_depth(group.text):
        return False
    if not all(row.is_plain for row in group.rows):
        return False

    def is_centred(group: Group) -> bool:
        return all(
            abs(row.left + row.right - group.left - group.right) < 2 * row.size and row.left - group.left > 2 * row.size
            for row in group.rows
        )

    return is_centred(group) and all(group.size <= above.size for above in groups[:index])


def _is_term(groups: Sequence[Group], index: int) -> bool:
    """Whether the group is a bold term on a line of its own, and the next group its definition: that is indented, and
    text above or below the definition is not."""
    if index + 1 == len(groups):
        return False
    term, after = groups[index].rows[0], groups[index + 1].rows
    if len(groups[index].rows) > 1 or not term.is_bold or number_depth(term.text):
        return False
    if len(after) < 2 or any(row.is_mono or row.is_bold or row.left - term.left < _INDENT * row.size for row in after):
        return False
    if groups[index + 1].right - max(row.right for row in after) > _INDENT * term.size:
        return False  # a quotation below a heading
    return any(
        len(group.rows) > 1
        and abs(group.size - term.size) < 0.1 * term.size
        and all(row.is_plain and abs(row.left - term.left) < 0.5 * row.size for row in group.rows)
        for group in groups
    )


def _read_as_code(groups: Sequence[Group]) -> bool:
    """Whether most rows have signs of program text, which tell it from running text in the same type."""
    rows = [row for group in groups for row in group.rows]
    return 2 * sum(bool(_CODE_SIGN.search(row.text)) for row in rows) > len(rows)


def _code_block(groups: Sequence[Group]) -> Code:
    rows = [row for group in groups for row in group.rows]
    left = min(row.left for row in rows)
    lines = []
    for row in rows:
        indent = min(80, max(0, round((row.left - left) / max(_MONO_WIDTH * row.size, 1e-9))))
        lines.append(" " * indent + with_hyphens(row.text))
    return Code(around([group.box for group in groups]), "\n".join(lines))
