"""List items: their markers and depths."""

from collections.abc import Sequence

from pipeline.reading.layout.model import ListItem
from pipeline.reading.layout.paragraphs import Group
from pipeline.reading.layout.rows import Row, Token, runs_of
from pipeline.reading.layout.text import ITEM

_MAX_DEPTH = 5
_INDENTS = (2.0, 12.0)  # text sizes from the previous line's left end to items without a bullet
_STEP = 0.7  # text sizes by which a deeper item starts further right


def marker(row: Row) -> str:
    """Return the list marker at the row's start: "-" for any bullet, a number unchanged, empty without a marker."""
    match = ITEM.match(row.text)
    if not match:
        return ""
    text = match["marker"]
    return text if any(map(str.isalnum, text)) and text != "o" else "-"


def item(group: Group, depth: int) -> ListItem | None:
    """Return the group as a list item, without the marker in its text; None without a marker or without text."""
    sign = marker(group.rows[0])
    if not sign:
        return None
    match = ITEM.match(group.rows[0].text)
    remaining = len(match["marker"]) if match else 0  # characters of the marker that are still in the text
    tokens = []
    for token in group.tokens:
        if len(token.text) > remaining:
            tokens.append(token._replace(text=token.text[remaining:]))
        remaining = max(0, remaining - len(token.text))
    if not tokens:
        return None
    if sign == "-" or (sign[:-1].isdigit() and sign[-1] in ".)"):
        return ListItem(group.box, runs_of(tokens), sign, depth)
    # Markdown has no letters as markers: keep them as text after a bullet.
    kept = [Token(sign, tokens[0].style, spaced=True), tokens[0]._replace(spaced=True), *tokens[1:]]
    return ListItem(group.box, runs_of(kept), "-", depth)


def unmarked(groups: Sequence[Group]) -> int:
    """Return how many groups after the first are list items without a marker, announced by a colon at the first's end;
    0 unless at least two are.

    Recognition overlooks bullets, and leaves short lines that start at the same indent.
    """
    before = groups[0].rows[-1]
    if not before.text.rstrip().endswith((":", "\uff1a")) or before.is_tabular:
        return 0
    least, most = (before.left + far * before.size for far in _INDENTS)
    left, count = 0.0, 0
    for group in groups[1:]:
        row = group.rows[0]
        if row.is_tabular or marker(row) or not least < row.left < most:
            break
        if count and (abs(row.left - left) > _STEP * row.size or row.top - groups[count].rows[-1].bottom > row.size):
            break
        left, count = row.left, count + 1
    return count if count > 1 else 0


class Depths:
    """Derives the depth of items from their left ends; `reset` it at every text that is not an item."""

    def __init__(self) -> None:
        self._lefts: list[float] = []

    def reset(self) -> None:
        self._lefts = []

    def of(self, row: Row) -> int:
        while self._lefts and row.left < self._lefts[-1] - _STEP * row.size:
            self._lefts.pop()
        if not self._lefts or row.left > self._lefts[-1] + _STEP * row.size:
            self._lefts.append(row.left)
        return min(len(self._lefts) - 1, _MAX_DEPTH)
