"""What is on a page, and what was made of it: plain data between the steps of the layout.

Coordinates grow to the right and downwards, in any one unit (points for text layers, pixels for OCR): every threshold
of the steps is relative to the size of the text or of the page.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

SOFT_HYPHEN = "\u00ad"
"""Ends the text of a line whose last word goes on in the next one, where the source says so."""

HARD_HYPHEN = "\u2011"
"""Ends the text of a line whose last word goes on in the next one after a hyphen that stays."""

NO_HYPHEN = "\u2060"
"""Ends the text of a line whose last word goes on in the next one without the hyphen that is drawn there."""

LINE_HYPHENS = SOFT_HYPHEN + HARD_HYPHEN + NO_HYPHEN

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


class Style(NamedTuple):
    """How a piece of text is set. `shift` is 1 for raised, -1 for lowered text; `link` is a URL."""

    bold: bool = False
    italic: bool = False
    mono: bool = False
    shift: int = 0
    font: str = ""
    link: str = ""


PLAIN = Style()


class Span(NamedTuple):
    """A word, or the part of one that is set in one style; `spaced`: a space stands before it."""

    text: str
    left: float
    right: float
    style: Style = PLAIN
    spaced: bool = True


class Line(NamedTuple):
    """A piece of text on one baseline, with its box; `size` is its font size in the unit of the box.

    `spans` are its words where the source knows their places and styles; OCR knows none. `angle` is how far the text
    is turned clockwise: 0, 90, 180 or 270 degrees, or -1 for aslant.
    """

    text: str
    left: float
    top: float
    right: float
    bottom: float
    size: float
    spans: tuple[Span, ...] = ()
    angle: int = 0

    @property
    def box(self) -> Box:
        return (self.left, self.top, self.right, self.bottom)

    @property
    def characters(self) -> int:
        return len(self.text)


class Rule(NamedTuple):
    """A straight line that is drawn, level or upright; its thickness is left out."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class PageContent:
    """A page as its source tells it. `fills` are areas with a colour of their own, `pictures` boxes of pictures."""

    width: float
    height: float
    lines: tuple[Line, ...]
    rules: tuple[Rule, ...] = ()
    fills: tuple[Box, ...] = ()
    pictures: tuple[Box, ...] = ()


class Run(NamedTuple):
    """Text in one style, with the spaces that stand in it and before it."""

    text: str
    style: Style = PLAIN


Runs = tuple[Run, ...]


def plain(runs: Runs) -> str:
    """The text alone."""
    return "".join(run.text for run in runs)


@dataclass(frozen=True)
class Boxed:
    """What stands in a box."""

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
    """One thing on the page, in reading order; `box` is where it stands."""


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
    """Running text that is set further in than the text around it."""

    runs: Runs


@dataclass(frozen=True)
class Footnote(Block):
    """A note with its raised mark."""

    runs: Runs


@dataclass(frozen=True)
class Code(Block):
    """`text` has the line breaks and the indents of the page."""

    text: str


@dataclass(frozen=True)
class Picture(Block):
    """A picture; `link` leads to its file, if it was kept."""

    link: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell of a table; it covers `rows` × `columns` places."""

    runs: Runs = ()
    rows: int = 1
    columns: int = 1


@dataclass(frozen=True)
class Table(Block):
    """`rows` hold each cell in the row and place where it starts; `header` rows are the head."""

    rows: tuple[tuple[Cell, ...], ...]
    header: int = 1
    size: float = field(default=10.0, compare=False)

    @property
    def characters(self) -> int:
        return sum(len(run.text) for row in self.rows for cell in row for run in cell.runs)


def around(boxes: list[Box]) -> Box:
    """The smallest box with all of them in it; there must be one at least."""
    return (
        min(box[0] for box in boxes),
        min(box[1] for box in boxes),
        max(box[2] for box in boxes),
        max(box[3] for box in boxes),
    )
