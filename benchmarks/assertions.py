"""Assertions about the Markdown of a page: what must be there, what must not, in which order, and in which shape.

One JSON object a line, in `benchmarks/assertions/*.jsonl`: `pdf` (in the corpus), `page` (from 1) and `kind`, which
names a class below, whose fields are the other keys. Texts are compared as `reading.plain` leaves them. `max_errors` is
how many characters may differ, for text that only a picture shows. Written from rendered pages, never from an output.
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
"""As a page: the pages of the document, one after the other."""

Direction = Literal["left", "right", "up", "down"]
_STEPS: dict[Direction, tuple[int, int]] = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}


@dataclass(frozen=True, kw_only=True)
class Assertion(ABC):
    """One claim about one page. `source`: where it is written, as FILE:LINE."""

    kind: ClassVar[str]
    pdf: str
    page: int
    max_errors: int = 0
    group: str = OWN
    source: str = ""

    @abstractmethod
    def holds(self, page: Reading) -> bool:
        """Whether it is true of what a converter made of the page."""

    def __str__(self) -> str:
        hidden = {"pdf", "page", "group", "source"}
        facts = {key: value for key, value in vars(self).items() if key not in hidden and value}
        return f"{self.source} page {self.page} {self.kind} {json.dumps(facts, ensure_ascii=False)}"


@dataclass(frozen=True, kw_only=True)
class Present(Assertion):
    """`text` occurs, as whole words and in one piece."""

    kind = "present"
    text: str
    ignore_case: bool = False

    def holds(self, page: Reading) -> bool:
        if self.ignore_case:
            return bool(ends_of(_folded(self.text), page.folded, self.max_errors))
        return bool(ends_of(plain(self.text), page.text, self.max_errors))


@dataclass(frozen=True, kw_only=True)
class Absent(Assertion):
    """`text` does not occur: nowhere, or in no heading or table (`within`), or not as a word that begins in the first
    or ends in the last `edges` characters, where page numbers would be."""

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
    """Both texts occur, and `before` ends where `after` begins or earlier; of several, the outermost count."""

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
    """A table has `cell`, with these cells as its next ones in a direction, empty ones left out; `top_heading` is
    anywhere above it in its column, `left_heading` anywhere before it in its row."""

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

    def _is(self, found: str, wanted: str) -> bool:
        return same(found, plain(wanted), self.max_errors)


@dataclass(frozen=True, kw_only=True)
class HeadingIs(Assertion):
    """`text` is a heading, or with `prefix` the beginning of one; `deeper_than` is another one, of a higher level."""

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
        found, wanted = heading.text.casefold().rstrip(" :"), _folded(text).rstrip(" :")
        if self.prefix and _squeezed(found).startswith(_squeezed(wanted)):
            return True
        return same(found, wanted, self.max_errors)


@dataclass(frozen=True, kw_only=True)
class ListItem(Assertion):
    """An item of a list begins with `text`; `ordered`: of a numbered one."""

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
    """Our own assertions. Raises `TypeError` or `KeyError` for a line that is none."""
    return [
        parse(json.loads(line), f"{path.name}:{number}")
        for path in sorted(folder.glob("*.jsonl"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
    ]


def parse(fields: dict[str, Any], source: str = "") -> Assertion:
    kind = KINDS[fields["kind"]]
    return kind(**{key: value for key, value in fields.items() if key != "kind"}, source=source)


def ends_of(needle: str, text: str, max_errors: int = 0) -> list[int]:
    """Where occurrences of `needle` end; without errors whole ones only, next to which no letter or digit goes on."""
    if max_errors:
        return [end for end, errors in enumerate(_errors(needle, text, anywhere=True), 1) if errors <= max_errors]
    before, after = (
        r"[^\W\d_]" if edge.isalpha() else r"\d" if edge.isdigit() else r"(?!)" for edge in (needle[0], needle[-1])
    )
    return [found.end() for found in re.finditer(rf"(?<!{before}){re.escape(needle)}(?!{after})", text)]


def same(found: str, wanted: str, max_errors: int = 0) -> bool:
    """Whether two texts are the same, spaces aside."""
    found, wanted = _squeezed(found), _squeezed(wanted)
    if found == wanted or not max_errors or not found or not wanted or abs(len(found) - len(wanted)) > max_errors:
        return found == wanted
    return list(_errors(wanted, found, anywhere=False))[-1] <= max_errors


def _errors(needle: str, text: str, *, anywhere: bool) -> Iterator[int]:
    """After each character of `text`: in how many characters what ends there differs from `needle`. `anywhere`: what
    ends there may begin anywhere. Myers' bit vectors: a column of the table of distances is one number."""
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
    """The cells with text in a direction, nearest first."""
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
