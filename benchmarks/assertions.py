"""Assertions about the Markdown of a page: texts that must or must not occur, their order and their shape.

Each line of `benchmarks/assertions/*.jsonl` is a JSON object: `pdf` (in the corpus), `page` (from 1) and `kind`, the
name of a class below, whose fields are the other keys. Texts are compared as `reading.plain` leaves them. `max_errors`
is the number of characters that may differ, for text that only a picture shows. We wrote the assertions from rendered
pages, never from a converter's output.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from benchmarks.reading import Cell, Grid, Heading, Reading, plain

FOLDER = Path(__file__).with_suffix("")
OWN = "own"
WHOLE_DOCUMENT = 0
"""As a page number: all pages of the document, joined in their order."""

Direction = Literal["left", "right", "up", "down"]
_STEPS: dict[Direction, tuple[int, int]] = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}


@dataclass(frozen=True, kw_only=True)
class Assertion(ABC):
    """A claim about one page. `source`: the FILE:LINE that states it."""

    kind: ClassVar[str]
    pdf: str
    page: int
    max_errors: int = 0
    group: str = OWN
    source: str = ""

    @abstractmethod
    def holds(self, page: Reading) -> bool:
        """Whether a converter's output for the page fulfils the assertion."""

    def __str__(self) -> str:
        hidden = {"pdf", "page", "group", "source"}
        facts = {key: value for key, value in vars(self).items() if key not in hidden and value}
        return f"{self.source} page {self.page} {self.kind} {json.dumps(facts, ensure_ascii=False)}"


@dataclass(frozen=True, kw_only=True)
class Present(Assertion):
    """`text` occurs without a break, as whole words."""

    kind = "present"
    text: str
    ignore_case: bool = False

    def holds(self, page: Reading) -> bool:
        if self.ignore_case:
            return bool(ends_of(_folded(self.text), page.folded, self.max_errors))
        return bool(ends_of(plain(self.text), page.text, self.max_errors))


@dataclass(frozen=True, kw_only=True)
class Absent(Assertion):
    """`text` does not occur on the page; with `within`, in no heading or table; with `edges`, not as a word that begins
    in the first or ends in the last `edges` characters, the place of page numbers."""

    kind = "absent"
    text: str
    edges: int = 0
    within: Literal["", "headings", "tables"] = ""

    def holds(self, page: Reading) -> bool:
        if self.edges:
            return _folded(self.text) not in self._outer_words(page.folded)
        return not any(ends_of(_folded(self.text), place.casefold(), self.max_errors) for place in self._places(page))

    def _outer_words(self, text: str) -> set[str]:
        last = len(text) - self.edges
        return {word[0] for word in re.finditer(r"\S+", text) if word.start() < self.edges or word.end() > last}

    def _places(self, page: Reading) -> list[str]:
        if self.within == "headings":
            return [heading.text for heading in page.headings]
        if self.within == "tables":
            return [" ".join(cell.text for cell in row) for grid in page.tables for row in grid]
        return [page.text]


@dataclass(frozen=True, kw_only=True)
class Order(Assertion):
    """Both texts occur, and `before` ends before `after` begins. Of several occurrences the outermost count."""

    kind = "order"
    before: str
    after: str

    def holds(self, page: Reading) -> bool:
        before = ends_of(_folded(self.before), page.folded, self.max_errors)
        after = ends_of(_folded(self.after), page.folded, self.max_errors)
        if not before or not after:
            return False
        return min(before) <= max(after) - len(_folded(self.after)) + self.max_errors


@dataclass(frozen=True, kw_only=True)
class Table(Assertion):
    """A table has `cell`, and the next cell with text in each given direction has the given text. `top_heading` is
    anywhere above the cell in its column, `left_heading` anywhere before it in its row."""

    kind = "table"
    cell: str
    left: str = ""
    right: str = ""
    up: str = ""
    down: str = ""
    top_heading: str = ""
    left_heading: str = ""

    def holds(self, page: Reading) -> bool:
        return any(
            self._is(cell.text, self.cell) and self._fits(grid, y, x)
            for grid in page.tables
            for y, row in enumerate(grid)
            for x, cell in enumerate(row)
        )

    def _fits(self, grid: Grid, y: int, x: int) -> bool:
        for direction in _STEPS:
            wanted = getattr(self, direction)
            if wanted and not any(self._is(cell.text, wanted) for cell in list(_walk(grid, y, x, direction))[:1]):
                return False
        headings: tuple[tuple[str, Direction], ...] = ((self.top_heading, "up"), (self.left_heading, "left"))
        return all(
            any(self._is(cell.text, wanted) for cell in _walk(grid, y, x, direction))
            for wanted, direction in headings
            if wanted
        )

    def _is(self, text: str, wanted: str) -> bool:
        return same(text, plain(wanted), self.max_errors)


@dataclass(frozen=True, kw_only=True)
class HeadingIs(Assertion):
    """`text` is a heading, or with `prefix` begins a heading. `deeper_than` is another heading, of a higher level."""

    kind = "heading"
    text: str
    prefix: bool = False
    deeper_than: str = ""

    def holds(self, page: Reading) -> bool:
        above = [heading.level for heading in page.headings if self._is(heading, self.deeper_than)]
        return any(
            self._is(heading, self.text) and (not self.deeper_than or any(level < heading.level for level in above))
            for heading in page.headings
        )

    def _is(self, heading: Heading, text: str) -> bool:
        title, wanted = heading.text.casefold().rstrip(" :"), _folded(text).rstrip(" :")
        if self.prefix and _squeezed(title).startswith(_squeezed(wanted)):
            return True
        return same(title, wanted, self.max_errors)


@dataclass(frozen=True, kw_only=True)
class ListItem(Assertion):
    """An item of a list begins with `text`. `ordered`: the list is numbered."""

    kind = "list"
    text: str
    ordered: bool = False

    def holds(self, page: Reading) -> bool:
        wanted = _folded(self.text)
        return any(
            ends_of(wanted, item.text.casefold()[: len(wanted) + self.max_errors + 1], self.max_errors)
            for item in page.items
            if item.ordered or not self.ordered
        )


KINDS: dict[str, type[Assertion]] = {each.kind: each for each in (Present, Absent, Order, Table, HeadingIs, ListItem)}


def load(folder: Path = FOLDER) -> list[Assertion]:
    """Read our own assertions. Raises `TypeError` or `KeyError` for a line that is not an assertion."""
    return [
        parse(json.loads(line), f"{path.name}:{number}")
        for path in sorted(folder.glob("*.jsonl"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
    ]


def parse(fields: dict[str, Any], source: str = "") -> Assertion:
    kind = KINDS[fields["kind"]]
    return kind(**{key: value for key, value in fields.items() if key != "kind"}, source=source)


def ends_of(needle: str, text: str, max_errors: int = 0) -> list[int]:
    """Return the ends of all occurrences of `needle`. Without errors only whole words and numbers count."""
    if max_errors:
        return [end for end, errors in enumerate(_errors(needle, text, anywhere=True), 1) if errors <= max_errors]
    before, after = (
        r"[^\W\d_]" if edge.isalpha() else r"\d" if edge.isdigit() else r"(?!)" for edge in (needle[0], needle[-1])
    )
    return [match.end() for match in re.finditer(rf"(?<!{before}){re.escape(needle)}(?!{after})", text)]


def same(text: str, wanted: str, max_errors: int = 0) -> bool:
    """Whether two texts differ in spaces only, or in at most `max_errors` characters."""
    text, wanted = _squeezed(text), _squeezed(wanted)
    if text == wanted or not max_errors or not text or not wanted or abs(len(text) - len(wanted)) > max_errors:
        return text == wanted
    return list(_errors(wanted, text, anywhere=False))[-1] <= max_errors


def _errors(needle: str, text: str, *, anywhere: bool) -> Iterator[int]:
    """Yield for each character of `text` the edit distance between `needle` and the text that ends there. `anywhere`:
    that text may begin anywhere. Uses Myers' bit vectors: a column of the table of distances is one number."""
    full, high = (1 << len(needle)) - 1, 1 << (len(needle) - 1)
    masks: dict[str, int] = {}
    for place, character in enumerate(needle):
        masks[character] = masks.get(character, 0) | 1 << place
    more, less, errors = full, 0, len(needle)
    for character in text:
        equal = masks.get(character, 0)
        diagonal = (((equal & more) + more) ^ more) | equal
        up, down = less | ~(diagonal | more) & full, more & diagonal
        errors += bool(up & high) - bool(down & high)
        up, down = (up << 1 | (not anywhere)) & full, down << 1 & full
        vertical = equal | less
        more, less = down | ~(vertical | up) & full, up & vertical
        yield errors


def _walk(grid: Grid, y: int, x: int, direction: Direction) -> Iterator[Cell]:
    """Yield the cells with text in a direction, nearest first."""
    down, right = _STEPS[direction]
    seen = {grid[y][x].origin}
    while 0 <= (y := y + down) < len(grid) and 0 <= (x := x + right) < len(grid[y]):
        if grid[y][x].text and grid[y][x].origin not in seen:
            yield grid[y][x]
        seen.add(grid[y][x].origin)


def _folded(text: str) -> str:
    return plain(text).casefold()


def _squeezed(text: str) -> str:
    return "".join(text.split())
