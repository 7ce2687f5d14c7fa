"""Groups of rows that belong together (paragraphs, headings, items), and their words as running text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from pipeline.reading.layout.model import LINE_HYPHENS, Box, Runs, around
from pipeline.reading.layout.rows import Row, Token, runs_of, text_of
from pipeline.reading.layout.text import ITEM, clean, ends_sentence, has_leader, number_depth, seam, with_hyphens

_TITLE_PITCH = 1.15  # text sizes: a title's lines are as close as those of a paragraph
_GOES_ON = re.compile(r"[^\W\d_]-?$|,$")


@dataclass(frozen=True)
class Group:
    """The rows of one paragraph, heading or item, and the left and right end of the column that they are in."""

    rows: tuple[Row, ...]
    left: float
    right: float

    @property
    def box(self) -> Box:
        return around([row.box for row in self.rows])

    @property
    def size(self) -> float:
        return self.rows[0].size

    @cached_property
    def tokens(self) -> list[Token]:
        return joined(self.rows)

    @property
    def runs(self) -> Runs:
        return runs_of(self.tokens)

    @cached_property
    def text(self) -> str:
        return clean(text_of(self.tokens))


def joined(rows: Sequence[Row]) -> list[Token]:
    """The words of all rows: hyphenated ones joined, no spaces between CJK characters, hyphens visible."""
    found: list[Token] = []
    for row in rows:
        tokens = row.tokens
        if found and tokens:
            word = ""  # the last one, of all the pieces it is set in
            for token in reversed(found[-8:]):
                word = token.text + word
                if token.spaced:
                    break
            cut, spaced = seam(word or found[-1].text, tokens[0].text)
            if cut:
                found[-1] = found[-1]._replace(text=found[-1].text[:-1])
            found.append(tokens[0]._replace(spaced=spaced))
            found += tokens[1:]
        else:
            found += tokens
    return [
        token if token.text.isascii() else token._replace(text=with_hyphens(token.text))
        for token in found
        if token.text
    ]


def groups(found: Sequence[Row]) -> list[Group]:
    """The rows of one block, from top to bottom, cut where a new paragraph starts."""
    if not found:
        return []
    block = _measure(found)
    cut = [[found[0]]]
    for before, row in pairwise(found):
        if _starts(cut[-1][0], before, row, block):
            cut.append([row])
        else:
            cut[-1].append(row)
    return [Group(tuple(rows), block.left, block.right) for rows in cut]


class _Block(NamedTuple):
    """What is typical of a block of rows. `hanging`: its paragraphs start further left than they continue; `ends`: how
    far right the text of each row could have gone."""

    left: float
    right: float
    pitch: float
    size: float
    hanging: bool
    ends: dict[int, float]

    def indents(self, row: Row) -> bool:
        return 0.8 * row.size < row.left - self.left < 4 * row.size

    def end(self, row: Row) -> float:
        return self.ends.get(id(row), self.right)


def _measure(found: Sequence[Row]) -> _Block:
    left, right = min(row.left for row in found), max(row.right for row in found)
    size = median(row.size for row in found)
    pitches = [b.bottom - a.bottom for a, b in pairwise(found) if b.bottom > a.bottom]
    # Where there are few rows, most distances may be those between paragraphs.
    pitch = min(median(pitches), (2.5 if len(found) > 5 else 1.3) * size) if pitches else 1.2 * size
    flush = _Block(left, right, pitch, size, hanging=False, ends=_ends(found, 1.5 * pitch))
    after_indent = [flush.indents(row) for before, row in pairwise(found) if flush.indents(before)]
    return flush._replace(hanging=2 * sum(after_indent) > len(after_indent))


def _ends(found: Sequence[Row], near: float) -> dict[int, float]:
    """For the rows of a narrower stretch, the right end that most of them reach."""
    stretches = [[found[0]]]
    for before, row in pairwise(found):
        alike = abs(row.left - stretches[-1][0].left) < 2 * row.size and abs(row.size - before.size) < 0.1 * row.size
        if alike and row.bottom - before.bottom < near:
            stretches[-1].append(row)
        else:
            stretches.append([row])
    ends = {}
    for rows in stretches:
        end = max(row.right for row in rows)
        if sum(end - row.right < row.size for row in rows) >= max(3, 0.5 * len(rows)):
            ends.update({id(row): end for row in rows})
    return ends


def _starts(first: Row, before: Row, row: Row, block: _Block) -> bool:
    """Whether `row` starts a new paragraph after `before`; `first` is the row that starts the current one."""
    if row.is_tabular != before.is_tabular:
        return True
    if before.text.endswith(tuple(LINE_HYPHENS)):
        return False
    apart = _is_set_apart(before, row, block) or _changes_kind(first, before, row)
    if apart or _starts_with_mark(first, before, row, block):
        return True
    if ITEM.match(first.text) or first.has_marker:
        leaves = row.left <= first.left + 0.3 * row.size
        return leaves and (ends_sentence(before.text) or _broken_on_purpose(before, row, block))
    if _is_title(before, row, block):
        return False
    above, below = (row, before) if block.hanging else (before, row)
    indented = block.indents(below) and above.left - block.left < 0.5 * above.size
    return indented or _broken_on_purpose(before, row, block)


def _is_set_apart(before: Row, row: Row, block: _Block) -> bool:
    """Whether there is more space between the rows than within paragraphs, or the size of the text changes."""
    # Between lines of different sizes, the distance is not the one of the block.
    pitch = min(block.pitch, max(1.35 * row.size, 0.8 * block.pitch))
    near = 0.5 * row.size
    centred = abs(before.left + before.right - row.left - row.right) < 2 * near
    aligned = centred or abs(before.left - row.left) < near
    if aligned and _is_title(before, row, block) and not number_depth(row.text):
        pitch = max(pitch, _TITLE_PITCH * row.size)
    return row.bottom - before.bottom > 1.35 * pitch or not 0.85 < row.size / max(before.size, 1e-9) < 1.18


def _changes_kind(first: Row, before: Row, row: Row) -> bool:
    """Whether only one of the rows is a table's, code or bold, or one is a line of contents."""
    if has_leader(row.text) or has_leader(before.text) or row.is_tabular or row.is_mono != before.is_mono:
        return True
    becomes_bold = row.is_bold and before.is_plain
    return becomes_bold or (before.is_bold and row.is_plain and (first is before or first.is_bold))


def _is_title(before: Row, row: Row, block: _Block) -> bool:
    """Whether both rows are larger than most of their block: a title continues however it is aligned."""
    larger = min(row.size, before.size) > 1.12 * block.size
    return larger and abs(row.size - before.size) < 0.04 * row.size and not ends_sentence(before.text)


def _starts_with_mark(first: Row, before: Row, row: Row, block: _Block) -> bool:
    # A raised number at the start of a line is a footnote's.
    if row.tokens and row.tokens[0].style.shift > 0 and len(row.tokens) > 1:
        return True
    item = ITEM.match(row.text)
    if row.has_marker or (item and not item["marker"][-1].isascii()):
        return True
    if not item:
        return False
    full = block.end(before) - before.right < 2 * row.size and abs(row.left - before.left) < 0.5 * row.size
    inside = full and not ITEM.match(first.text) and not re.search(r"[.;!?]$", before.text.rstrip())
    return not inside  # Text that happens to have "(1)" or a dash at the start of a line is not a list.


def _broken_on_purpose(before: Row, row: Row, block: _Block) -> bool:
    """Whether the next word would have fitted on the line before, so that the line did not end for lack of space."""
    word = row.text.split(maxsplit=1)[0] if row.text.strip() else ""
    word_width = len(word) / max(len(row.text), 1) * (row.right - row.left)
    end = block.end(before)
    if end - before.right <= word_width + 0.8 * row.size:
        return False
    if ends_sentence(before.text) or word[:1].isupper():
        return True
    very_short = before.right - block.left < 0.6 * (end - block.left)
    loose = row.bottom - before.bottom > 1.75 * row.size
    return (very_short or loose) and not word[:1].islower()


def goes_on(last: Row, first: Row) -> bool:
    """Whether row `first` of a column continues the paragraph that row `last` of the column before ends with."""
    alike = 0.8 < first.size / max(last.size, 1e-9) < 1.25 and not last.is_tabular and not first.is_tabular
    unfinished = last.text.endswith(tuple(LINE_HYPHENS)) or bool(_GOES_ON.search(last.text.rstrip()))
    return alike and unfinished and first.text[:1].islower() and not ITEM.match(first.text)
