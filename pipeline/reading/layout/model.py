"""The contents of a page and its blocks: plain data that the steps of the layout share.

Coordinates grow to the right and downwards, in any unit (points for text layers, pixels for OCR): all thresholds are
relative to the size of the text or of the page.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

SOFT_HYPHEN = "\u00ad"
"""Ends a line whose last word continues on the next line, if the source says so."""

HARD_HYPHEN = "\u2011"
"""Ends a line whose last word continues on the next line and keeps its hyphen."""

NO_HYPHEN = "\u2060"
"""Ends a line whose last word continues on the next line and drops the drawn hyphen."""

LINE_HYPHENS = SOFT_HYPHEN + HARD_HYPHEN + NO_HYPHEN

DESCENT = 0.25
"""The distance from a base line to a line's foot, in text sizes."""

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


class Style(NamedTuple):
    """The style of some text. `shift`: 1 for raised, -1 for lowered text; `link`: a URL; `sure`: recognition's
    confidence, 0 to 1, None for text that was not recognised."""

    bold: bool = False
    italic: bool = False
    mono: bool = False
    shift: int = 0
    font: str = ""
    link: str = ""
    sure: float | None = None


PLAIN = Style()


class Span(NamedTuple):
    """A word, or the part of a word in one style; `spaced`: a space precedes it."""

    text: str
    left: float
    right: float
    style: Style = PLAIN
    spaced: bool = True


class Line(NamedTuple):
    """A piece of text on one baseline, with its box; `size` is its font size in the unit of the box.

    `spans`: the words of `text`, if the source knows their places and styles; OCR does not. `angle`: the text's
    clockwise turn of 0, 90, 180 or 270 degrees, or -1 for aslant. `sure`: recognition's confidence in each word of
    `text`; empty if the text was not recognised. `places`: the start and the end of each word along the line, in
    thousandths of its length; empty if unknown. `weight`: the weight of recognised type, 1 for that of most of its
    page; 0 if neither it nor the size of the type was measured.
    """

    text: str
    left: float
    top: float
    right: float
    bottom: float
    size: float
    spans: tuple[Span, ...] = ()
    angle: int = 0
    sure: tuple[float, ...] = ()
    places: tuple[int, ...] = ()
    weight: float = 0.0

    @property
    def box(self) -> Box:
        return (self.left, self.top, self.right, self.bottom)

    @property
    def characters(self) -> int:
        """The number of characters, of which Chinese and Japanese ones are twice as wide and count twice."""
        return len(self.text) if self.text.isascii() else sum(2 if "\u2e80" <= c <= "\u9fff" else 1 for c in self.text)


class Rule(NamedTuple):
    """A drawn straight line, horizontal or vertical, without its thickness."""

    left: float
    top: float
    right: float
    bottom: float


RegionKind = Literal[
    "text", "title", "figure", "figure_caption", "table", "table_caption", "header", "footer", "reference", "equation"
]


class Region(NamedTuple):
    """A part of the page to which a layout model assigns one kind; `score`: its confidence, 0 to 1."""

    kind: RegionKind
    box: Box
    score: float


@dataclass(frozen=True)
class PageContent:
    """The contents of a page as the source gives them. `fills`: coloured areas; `pictures`: the boxes of pictures.

    `regions`: a layout model's opinion, if it was asked; evidence, often wrong, for cases that the rest leaves open.
    `shapes`: the boxes of curves, slanting lines and filled outlines; `images`: the boxes of pixels. `is_first`: the
    page is the first of its document."""

    width: float
    height: float
    lines: tuple[Line, ...]
    rules: tuple[Rule, ...] = ()
    fills: tuple[Box, ...] = ()
    pictures: tuple[Box, ...] = ()
    regions: tuple[Region, ...] = ()
    shapes: tuple[Box, ...] = ()
    images: tuple[Box, ...] = ()
    is_first: bool = False


class Run(NamedTuple):
    """Text in one style, with the spaces in it and before it."""

    text: str
    style: Style = PLAIN


Runs = tuple[Run, ...]


def plain(runs: Runs) -> str:
    """Return the text alone."""
    return "".join(run.text for run in runs)


@dataclass(frozen=True)
class Boxed:
    """Anything with a box."""

    box: Box

    @property
    def left(self) -> float:
        return self.box[0]

    @property
    def top(self) -> float:
        return self.box[1]

    @property
    def right(self) -> float:
        return self.box[2]

    @property
    def bottom(self) -> float:
        return self.box[3]


@dataclass(frozen=True)
class Block(Boxed):
    """A unit of the page, such as a paragraph or a table; a page is a list of blocks in reading order."""


@dataclass(frozen=True)
class Heading(Block):
    """A title; level 1 is the highest."""

    runs: Runs
    level: int


@dataclass(frozen=True)
class Paragraph(Block):
    """Running text."""

    runs: Runs


@dataclass(frozen=True)
class ListItem(Block):
    """`marker` is "-" or a number with its dot or bracket; `depth` is 0 for the outermost list."""

    runs: Runs
    marker: str
    depth: int = 0


@dataclass(frozen=True)
class Quote(Block):
    """Running text that is indented on both sides."""

    runs: Runs


@dataclass(frozen=True)
class Footnote(Block):
    """A note with its raised mark."""

    runs: Runs


@dataclass(frozen=True)
class Furniture(Block):
    """Text beside the page's own, which the Markdown leaves out: running heads, page and line numbers, publishers'
    notes, stamps, watermarks."""

    runs: Runs


@dataclass(frozen=True)
class Code(Block):
    """Program text; `text` keeps the page's line breaks and indents."""

    text: str


@dataclass(frozen=True)
class Picture(Block):
    """A picture. `link`: its saved file; `text`: its words, a label or a row of labels on each line; `runs`: the same
    words with their styles, in the order of `text`."""

    link: str = ""
    text: str = ""
    runs: Runs = field(default=(), compare=False)
    size: float = field(default=10.0, compare=False)

    @property
    def characters(self) -> int:
        return len(self.text)


@dataclass(frozen=True)
class Formula(Picture):
    """A formula of its own, shown as a picture. `text`: its signs and words, a row on each line; `number`: the number
    printed beside it; `words`: the ordinary words in it, such as "if" and "otherwise"."""

    number: str = ""
    words: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell of a table; it spans `rows` × `columns` places."""

    runs: Runs = ()
    rows: int = 1
    columns: int = 1


@dataclass(frozen=True)
class Table(Block):
    """A table; each cell is in the row where it starts, and the first `header` rows are the head."""

    rows: tuple[tuple[Cell, ...], ...]
    header: int = 1
    size: float = field(default=10.0, compare=False)

    @property
    def characters(self) -> int:
        return sum(len(run.text) for row in self.rows for cell in row for run in cell.runs)


def around(boxes: Iterable[Box]) -> Box:
    """Return the smallest box around all boxes, of which there must be at least one."""
    lefts, tops, rights, bottoms = zip(*boxes, strict=True)
    return (min(lefts), min(tops), max(rights), max(bottoms))


def area(box: Box) -> float:
    """Return the area of a box; 0 if its sides are swapped."""
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def holds(box: Box, item: Line | Boxed) -> bool:
    """Whether the middle of the item is in the box; its edges may reach into a neighbour."""
    x, y = (item.left + item.right) / 2, (item.top + item.bottom) / 2
    return box[0] <= x <= box[2] and box[1] <= y <= box[3]
