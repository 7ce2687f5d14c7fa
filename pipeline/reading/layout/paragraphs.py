"""Group rows into paragraphs, headings and items, and join their words into running text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from pipeline.reading.layout.model import LINE_HYPHENS, Box, Runs, Span, around
from pipeline.reading.layout.rows import Row, runs_of, text_of
from pipeline.reading.layout.text import (
    DASHES,
    ITEM,
    clean,
    ends_sentence,
    has_leader,
    number_depth,
    seam,
    with_hyphens,
)

_EDGE_ROWS = 3  # so many rows that end at one place show the right end of the text
_TITLE_PITCH = 1.15  # text sizes: a title's lines are as close as those of a paragraph
_ADDRESS = re.compile(r"\W?(?:https?:|www\.|doi:|10\.\d)")
_ADDRESS_BREAKS = tuple("/.-_=&?~")
_ADDRESS_PART = re.compile(r"[^\W_][^\s/=_.]*(?:[/=_]|\.\w)")
_GOES_ON = re.compile(r"[^\W\d_]-?$|,$")


@dataclass(frozen=True)
class Group:
    """The rows of one paragraph, heading or item, and the left and right ends of their column."""

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
    def tokens(self) -> list[Span]:
        return joined(self.rows)

    @property
    def runs(self) -> Runs:
        return runs_of(self.tokens)

    @cached_property
    def text(self) -> str:
        return clean(text_of(self.tokens))


def joined(rows: Sequence[Row]) -> list[Span]:
    """Return the words of all rows: hyphenated words joined, no spaces between CJK characters, hyphens visible."""
    words: list[Span] = []
    for row in rows:
        tokens = row.tokens
        if words and tokens:
            word = ""  # the last word, joined from its pieces
            for token in reversed(words[-8:]):
                word = token.text + word
                if token.spaced:
                    break
            cut, spaced = seam(word or words[-1].text, tokens[0].text)
            spaced = spaced and not _is_broken_address(word, words[-1], tokens[0])
            if cut:
                words[-1] = words[-1]._replace(text=words[-1].text[:-1])
            words.append(tokens[0] if tokens[0].spaced == spaced else tokens[0]._replace(spaced=spaced))
            words += tokens[1:]
        else:
            words += tokens
    return [
        token if token.text.isascii() else token._replace(text=with_hyphens(token.text))
        for token in words
        if token.text
    ]


def _is_broken_address(word: str, last: Span, first: Span) -> bool:
    """Whether the next row's first token continues an address, the `word` that ends with `last`."""
    if not _ADDRESS.match(word):
        return False
    if last.style.link and last.style.link == first.style.link:
        return not first.text[0].isupper()
    return word.endswith(_ADDRESS_BREAKS) and bool(_ADDRESS_PART.match(first.text))


def groups(rows: Sequence[Row]) -> list[Group]:
    """Cut the rows of one block, given from top to bottom, into paragraphs, headings and items, in the same order."""
    if not rows:
        return []
    block = _measure(rows)
    parts = [[rows[0]]]
    for before, row in pairwise(rows):
        if _starts(parts[-1][0], before, row, block):
            parts.append([row])
        else:
            parts[-1].append(row)
    return [Group(tuple(part), block.left, block.right) for part in parts]


class _Block(NamedTuple):
    """Typical values of a block of rows. `hanging`: its paragraphs start further left than they continue; `ends`: the
    rightmost place that the text of each row could reach."""

    first: Row
    left: float
    right: float
    pitch: float
    size: float
    hanging: bool
    ends: dict[int, float]

    def indents(self, row: Row) -> bool:
        return 0.8 * row.size < row.left - self.left < 4 * row.size

    def is_flush(self, row: Row) -> bool:
        return row.left - self.left < 0.5 * row.size

    def is_open(self, row: Row) -> bool:
        """Whether the row reaches the right end, but does not end a sentence."""
        return self.end(row) - row.right < 2 * row.size and not ends_sentence(row.text)

    def end(self, row: Row) -> float:
        return self.ends.get(id(row), self.right)


def _measure(rows: Sequence[Row]) -> _Block:
    left, right = min(row.left for row in rows), max(row.right for row in rows)
    size = median(row.size for row in rows)
    plain = [row.right for row in rows if not row.is_mono]
    if plain and right - max(plain) > size and sum(max(plain) - end < size for end in plain) >= _EDGE_ROWS:
        right = max(plain)  # Lines of programs run into the margin.
    pitches = [b.bottom - a.bottom for a, b in pairwise(rows) if b.bottom > a.bottom]
    # With few rows, most distances may be those between paragraphs.
    pitch = min(median(pitches), (2.5 if len(rows) > 5 else 1.3) * size) if pitches else 1.2 * size
    flush = _Block(rows[0], left, right, pitch, size, hanging=False, ends=_ends(rows, 1.5 * pitch))
    after_indent = [flush.indents(row) for before, row in pairwise(rows) if flush.indents(before)]
    # The first rows of hanging paragraphs go on in the next row; rows before a list, a program or a paragraph do not.
    firsts = [
        (above, before)
        for above, before, row in zip([None, *rows], rows, rows[1:], strict=False)
        if flush.indents(row) and not flush.indents(before)
    ]
    unfinished = [before for _, before in firsts if not ends_sentence(before.text)]
    full = [
        before
        for above, before in firsts
        if flush.is_open(before) and not (above and flush.is_flush(above) and flush.is_open(above))
    ]
    are_indented = 2 * sum(after_indent) > len(after_indent) and 2 * len(unfinished) > len(firsts)
    return flush._replace(hanging=are_indented or (len(full) > 1 and 2 * len(full) > len(firsts)))


def _ends(rows: Sequence[Row], near: float) -> dict[int, float]:
    """Map the `id` of a row to the right end that most rows of its stretch reach, if the stretch (rows of one indent
    and size) has such an end."""
    stretches = [[rows[0]]]
    for before, row in pairwise(rows):
        alike = abs(row.left - stretches[-1][0].left) < 2 * row.size and abs(row.size - before.size) < 0.1 * row.size
        if alike and row.bottom - before.bottom < near:
            stretches[-1].append(row)
        else:
            stretches.append([row])
    ends = {}
    for stretch in stretches:
        end = max(row.right for row in stretch)
        if sum(end - row.right < row.size for row in stretch) >= max(_EDGE_ROWS, 0.5 * len(stretch)):
            ends.update({id(row): end for row in stretch})
    return ends


def _starts(first: Row, before: Row, row: Row, block: _Block) -> bool:
    """Whether `row` starts a new paragraph after `before`; `first` is the first row of the current paragraph."""
    if row.is_tabular != before.is_tabular and not _is_definition(before, row, block):
        return True
    if before.text.endswith(tuple(LINE_HYPHENS)):
        return False
    apart = _is_set_apart(before, row, block) or _changes_kind(first, before, row, block)
    if apart or _starts_with_mark(first, before, row, block):
        return True
    if ITEM.match(first.text) or first.has_marker:
        leaves = row.left <= first.left + 0.3 * row.size
        return leaves and (ends_sentence(before.text) or _broken_on_purpose(before, row, block))
    if _is_title(before, row, block):
        return False
    return _is_indented(first, before, row, block) or _broken_on_purpose(before, row, block)


def _is_definition(before: Row, row: Row, block: _Block) -> bool:
    """Whether `row` is the second line of a definition that starts in the row of its term."""
    if row.is_tabular or len(before.cells) != 2 or len(row.cells) > 1 or row.is_mono:
        return False
    level = abs(row.left - before.cells[1].left) < 0.3 * row.size
    return level and block.end(row) - before.right < 3 * row.size and before.cells[1].text[-1:] not in ".:"


def _is_indented(first: Row, before: Row, row: Row, block: _Block) -> bool:
    """Whether the first row's indent, or the end of that of the rows after a hanging first row, shows a new
    paragraph."""
    if block.indents(row) and block.is_flush(before):
        is_open = block.is_open(before)
        return not (block.hanging and (before is first or is_open)) and not (is_open and row.text[:1].islower())
    if block.indents(before) and block.is_flush(row):
        return block.is_flush(first) or (block.hanging and (first is block.first or ends_sentence(before.text)))
    return False


def _is_set_apart(before: Row, row: Row, block: _Block) -> bool:
    """Whether the rows are further apart than rows within paragraphs, or the size of the text changes."""
    # The block's pitch does not apply between lines of different sizes.
    pitch = min(block.pitch, max(1.35 * row.size, 0.8 * block.pitch))
    near = 0.5 * row.size
    centred = abs(before.left + before.right - row.left - row.right) < 2 * near
    aligned = centred or min(abs(before.left - row.left), abs(before.right - row.right)) < near
    if aligned and _is_title(before, row, block) and not number_depth(row.text):
        pitch = max(pitch, _TITLE_PITCH * row.size)
    return row.bottom - before.bottom > 1.35 * pitch or not 0.85 < row.size / max(before.size, 1e-9) < 1.18


def _changes_kind(first: Row, before: Row, row: Row, block: _Block) -> bool:
    """Whether only one of the rows is tabular, code or bold, or either is a line of contents."""
    if has_leader(row.text) or has_leader(before.text) or row.is_tabular or before.is_mono > row.is_mono:
        return True
    if row.is_mono > before.is_mono and not (_is_full(first, before, row, block) and _GOES_ON.search(before.text)):
        return True
    if row.is_heavy != before.is_heavy and row.is_measured and before.is_measured:
        return True
    becomes_bold = row.is_bold and before.is_plain
    return becomes_bold or (before.is_bold and row.is_plain and (first is before or first.is_bold))


def _is_title(before: Row, row: Row, block: _Block) -> bool:
    """Whether both rows are larger than most of their block: a title continues whatever its alignment."""
    larger = min(row.size, before.size) > 1.12 * block.size
    return larger and abs(row.size - before.size) < 0.04 * row.size and not ends_sentence(before.text)


def _starts_with_mark(first: Row, before: Row, row: Row, block: _Block) -> bool:
    # A raised number at the start of a line is a footnote's.
    if row.tokens and row.tokens[0].style.shift > 0 and len(row.tokens) > 1:
        return True
    item = ITEM.match(row.text)
    if row.has_marker or (item and not item["marker"][-1].isascii() and item["marker"] not in DASHES):
        return True
    if not item:
        return False
    if item["marker"] in DASHES and f" {item['marker']} " in before.text and not ITEM.match(before.text):
        return False  # the second of two dashes around a part of a sentence
    full = _is_full(first, before, row, block)
    inside = full and not ITEM.match(first.text) and not re.search(r"[.;!?]$", before.text.rstrip())
    return not inside  # A line of text may start with "(1)" or a dash by chance.


def _is_full(first: Row, before: Row, row: Row, block: _Block) -> bool:
    """Whether `before` reaches the right end, and `row` starts where the next line of its paragraph would."""
    left = block.left if before is first and block.indents(before) else before.left
    return block.end(before) - before.right < 2 * row.size and abs(row.left - left) < 0.5 * row.size


def _broken_on_purpose(before: Row, row: Row, block: _Block) -> bool:
    """Whether the next word would have fitted on the previous line, which therefore did not end for lack of space."""
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
    """Whether `first`, a column's first row, continues the paragraph of `last`, the previous column's last row."""
    alike = 0.8 < first.size / max(last.size, 1e-9) < 1.25 and not last.is_tabular and not first.is_tabular
    unfinished = last.text.endswith(tuple(LINE_HYPHENS)) or bool(_GOES_ON.search(last.text.rstrip()))
    return alike and unfinished and first.text[:1].islower() and not ITEM.match(first.text)
