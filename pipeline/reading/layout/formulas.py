"""Display formulas, which stand on lines of their own: found by their fonts, signs and places.

A formula's parts are scattered over its lines: bounds of sums, numerators, the cells of matrices. Read as text they
make no sense, so a formula becomes one block with its box, and its words stay in the data.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipeline.reading.layout import notation, regions
from pipeline.reading.layout.drawn_rules import bars
from pipeline.reading.layout.model import Box, Boxed, Formula, Line, Region, Rule, around, holds
from pipeline.reading.layout.rows import Row, rows
from pipeline.reading.layout.text import ITEM, is_bullet, join_lines

_FUNCTIONS = re.compile(
    "arc(?:cos|sin|tan)|arg|cosh?|cot|cov|deg|det|diag|dim|exp|gcd|inf|ker|lim|ln|log|max|min|mod|rank|sec|sgn|sign|sinh?"
    "|sup|tanh?|tr|var|vec|pr|const",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d_]{2,}")
_ORDINARY = re.compile("[^\\W\\d_\u02c6-\u02dd\u0370-\u03ff]{2,}")
_NUMBER = re.compile(r"[(\[](?:[A-Z]{1,3}[.-]?)?\d{1,3}(?:[.–-]\d{1,3}){0,3}[a-z]?'?[)\]]")
_EXTENSION = re.compile(r"(?:EX|Extension)\d{0,3}$|(?:Size|Integrals)\w{0,20}$", re.IGNORECASE)
_OPERATOR = re.compile(f"[{notation.OPERATORS}:·]")
_WORDED = 0.5  # share of a line's characters in words that makes it text
_CODED = 0.2  # share of a line's characters in a font of code
_TIED = 0.6  # text sizes; a piece this close to text belongs to its line
_WIDE_GAP = 3.0  # text sizes between two parts of one formula in a row
_LOW_GAP = 0.8  # text sizes between its rows
_INDENT = 0.8  # text sizes
_LARGE = 1.3  # times the size of the running text: a title
_SHORT = 10.0  # text sizes; a longer text beside a formula is running text, not its condition
_BETWEEN = 4.0
_SEEN = 0.5  # the layout model's least score
_MOST_PAIRS = 1_000_000  # of pieces with lines and rules: comparing these takes a second or two
_MOST_LINES = 30  # in a recognised formula
_SLACK = 0.3  # text sizes between the ends of rules that meet
_MIN_CROSSING = 3  # level rules


class Partition(NamedTuple):
    """The display formulas, and the lines outside them."""

    formulas: list[Formula]
    lines: list[Line]


class _Facts(NamedTuple):
    """What a line has of words and of formulas, in characters; `big`: a sign that spans rows."""

    words: int
    signs: int
    letters: int
    total: int
    big: bool
    mono: bool

    @property
    def is_text(self) -> bool:
        return self.mono or self.words >= _WORDED * self.total

    @property
    def is_tall(self) -> bool:
        """Whether the line is only a bracket or another sign that spans rows: its box hangs below or above its place,
        and may have any size."""
        return self.big and self.total <= 2


def find(lines: Sequence[Line], rules: Sequence[Rule], seen: Sequence[Region], size: float) -> Partition:
    """Return the display formulas among the lines, and the other lines. `size`: the size of the page's running text.

    A text layer shows formulas by their fonts; `seen`, a layout model's regions, confirms them there, and is the only
    witness for recognised text."""
    equations = [region for region in regions.of_kind(seen, "equation") if region.score >= _SEEN]
    if not any(line.spans for line in lines):
        return _recognised(lines, equations)
    fonts = {span.style.font for line in lines for span in line.spans}
    if not any(map(notation.is_math_font, fonts)):
        return Partition([], list(lines))
    facts = {id(line): _facts(line) for line in lines if line.angle == 0 and line.spans}
    text = [line for line in lines if id(line) in facts and facts[id(line)].is_text]
    pieces = [line for line in lines if id(line) in facts and not facts[id(line)].is_text]
    if len(pieces) * (len(lines) + len(rules)) > _MOST_PAIRS:
        return Partition([], list(lines))
    found: list[Formula] = []
    held: set[int] = set()
    grids = _grids(rules, size)
    numbers = [piece for piece in pieces if _NUMBER.fullmatch(piece.text)]
    tall = [piece for piece in pieces if facts[id(piece)].is_tall]
    free = _untied([piece for piece in pieces if piece not in numbers and piece not in tall], text)
    for group in _with_tall(list(_groups(free)), tall):
        parts = _Group(group, [facts[id(line)] for line in group], rules)
        beside = [line for line in text if _is_level(line, parts.box)]
        number = next((line for line in numbers if _is_level(line, parts.box)), None)
        conditions = [line for line in beside if _is_condition(line, parts)]
        certain = regions.covering(equations, parts.box) is not None
        if not parts.is_sound(size) or not (certain or parts.is_apart(text, number)):
            continue
        if any(holds(grid, Boxed(parts.box)) for grid in grids):
            continue
        if any(line not in conditions and not parts.is_elsewhere(line, text) for line in beside):
            continue
        found.append(parts.formula(number, conditions, text))
        held |= {id(line) for line in (*group, *conditions, *([number] if number else []))}
    return Partition(found, [line for line in lines if id(line) not in held])


def _grids(rules: Sequence[Rule], size: float) -> list[Box]:
    """Return the boxes of tables: upright rules with the level rules that cross them, of which there are several."""
    slack = _SLACK * size
    level, upright = bars(rules, slack)
    if len(level) * len(upright) > _MOST_PAIRS:
        return []
    grids = []
    for bar in upright:
        crossing = [
            rule
            for rule in level
            if bar.start - slack <= rule.at <= bar.end + slack and rule.start + size < bar.at < rule.end - size
        ]
        if len(crossing) >= _MIN_CROSSING:
            sides = min(rule.start for rule in crossing), max(rule.end for rule in crossing)
            grids.append((sides[0], bar.start, sides[1], bar.end))
    return grids


def _recognised(lines: Sequence[Line], equations: Sequence[Region]) -> Partition:
    """Return the formulas that the layout model sees in recognised text: regions with a sign of formulas, and without
    much running text."""
    found: list[Formula] = []
    remaining = list(lines)
    for region in equations:
        inside = [line for line in remaining if line.angle == 0 and holds(region.box, line)]
        texts = [line for line in inside if not _NUMBER.fullmatch(line.text.strip())]
        characters = sum(len(line.text) for line in texts)
        worded = sum(len(word) for line in texts for word in re.findall(r"[^\W\d_]{4,}", line.text))
        signed = any(notation.SIGNS.search(line.text) for line in texts)
        if not signed or len(inside) > _MOST_LINES or worded >= 0.4 * characters:
            continue
        number = next((line for line in inside if line not in texts), None)
        box = around([region.box, *(line.box for line in texts)])
        found.append(Formula(box, text=_text(texts), size=texts[0].size, number=number.text.strip() if number else ""))
        held = {id(line) for line in inside}
        remaining = [line for line in remaining if id(line) not in held]
    return Partition(found, remaining)


def _facts(line: Line) -> _Facts:
    words = signs = letters = total = mono = 0
    big = False
    for span in line.spans:
        size = len(span.text)
        total += size
        if notation.is_math_font(span.style.font):
            signs += size
            letters += sum(map(str.isalpha, span.text))
            big = big or bool(_EXTENSION.search(span.style.font))
            continue
        mono += size if span.style.mono else 0
        words += sum(len(word) for word in _WORD.findall(span.text) if not _FUNCTIONS.fullmatch(word))
        signs += len(notation.SIGNS.findall(span.text))
    return _Facts(words, signs, letters, total, big, mono > _CODED * total)


def _untied(pieces: Sequence[Line], text: Sequence[Line]) -> list[Line]:
    """Return the pieces that are not part of a line of text: its formulas, and their raised and lowered figures."""
    tied = list(text)
    free = list(pieces)
    while tied and free:
        near = [piece for piece in free if any(_touch(piece, line) for line in tied)]
        held = {id(piece) for piece in near}
        free = [piece for piece in free if id(piece) not in held]
        tied = near
    return free


def _touch(piece: Line, line: Line) -> bool:
    """Whether the piece continues the line to the left or right."""
    level = min(piece.bottom, line.bottom) - max(piece.top, line.top)
    if level <= 0.25 * min(piece.bottom - piece.top, line.bottom - line.top):
        return False
    near = _TIED * min(piece.size, line.size)
    return piece.left - line.right < near and line.left - piece.right < near


def _groups(pieces: Sequence[Line]) -> Iterator[list[Line]]:
    """Yield the pieces of each formula: those close to one another, in a row or below."""
    waiting = sorted(pieces, key=lambda piece: piece.top)
    while waiting:
        group = [waiting.pop(0)]
        at = 0
        while at < len(group):
            near = [piece for piece in waiting if _go_together(group[at], piece)]
            held = {id(piece) for piece in near}
            waiting = [piece for piece in waiting if id(piece) not in held]
            group += near
            at += 1
        yield group


def _with_tall(groups: list[list[Line]], tall: Sequence[Line]) -> list[list[Line]]:
    """Add each sign that spans rows to the nearest group beside it, if there is one."""
    boxes = [around([piece.box for piece in group]) for group in groups]
    for sign in tall:
        reach = (sign.left, sign.top, sign.right, sign.bottom + (sign.bottom - sign.top))
        near = [
            (max(box[0] - sign.right, sign.left - box[2]), place)
            for place, box in enumerate(boxes)
            if min(reach[3], box[3]) > max(reach[1], box[1])
        ]
        distance, place = min(near, default=(0.0, -1))
        if place >= 0 and distance < _WIDE_GAP * groups[place][0].size:
            groups[place].append(sign)
    return groups


def _go_together(piece: Line, other: Line) -> bool:
    size = min(max(piece.size, other.size), 2 * min(piece.size, other.size))
    across = max(piece.left - other.right, other.left - piece.right)
    along = max(piece.top - other.bottom, other.top - piece.bottom)
    return (along < 0 and across < _WIDE_GAP * size) or (along < _LOW_GAP * size and across < size)


def _is_level(line: Line, box: Box) -> bool:
    return min(line.bottom, box[3]) - max(line.top, box[1]) > 0.3 * (line.bottom - line.top)


def _is_condition(line: Line, parts: "_Group") -> bool:
    """Whether the line is a short text beside the rows of a tall bracket, such as "otherwise", or a word between two
    formulas."""
    width = line.right - line.left
    between = parts.box[0] < line.left and line.right < parts.box[2] and line.text.islower()
    return (parts.big and line.left > parts.box[0] and width < _SHORT * parts.size) or (
        between and width < _BETWEEN * parts.size
    )


class _Group:
    """Pieces that may be one formula."""

    def __init__(self, pieces: Sequence[Line], facts: Sequence[_Facts], rules: Sequence[Rule]) -> None:
        self._pieces = pieces
        self._facts = facts
        # The boxes of signs that span rows hang below their lines.
        level = [piece for piece, fact in zip(pieces, facts, strict=True) if not fact.is_tall]
        self.size = max(piece.size for piece in level)
        top, bottom = min(piece.top for piece in level), max(piece.bottom for piece in level)
        self.box: Box = (min(piece.left for piece in pieces), top, max(piece.right for piece in pieces), bottom)
        self.big = any(fact.big for fact in facts)
        left, right = self.box[0] - self.size, self.box[2] + self.size
        self._has_fraction = any(
            left <= rule.left
            and rule.right <= right
            and top <= (rule.top + rule.bottom) / 2 <= bottom
            and rule.right - rule.left > rule.bottom - rule.top
            for rule in rules
        )

    def is_sound(self, size: float) -> bool:
        """Whether the pieces have the letters and the signs of a formula, in the size of text."""
        signs, total = sum(fact.signs for fact in self._facts), sum(fact.total for fact in self._facts)
        related = any(_OPERATOR.search(piece.text) for piece in self._pieces)
        lettered = any(fact.letters for fact in self._facts)
        shaped = self.big or self._has_fraction or len(self._pieces) > 2
        first = min(self._pieces, key=lambda piece: (piece.left, piece.top)).text
        listed = is_bullet(first) or ITEM.match(first)
        sized = self.size < _LARGE * size and not listed
        return lettered and (related or shaped) and total > 2 and signs >= (0.1 if self.big else 0.25) * total and sized

    def is_apart(self, text: Sequence[Line], number: Line | None) -> bool:
        """Whether the formula does not continue the text above it: it is numbered, has fractions, or is indented."""
        if number is not None or self._has_fraction:
            return True
        above = max(
            (line for line in text if line.bottom < self.box[3] and self._is_over(line)), key=_low, default=None
        )
        below = min((line for line in text if line.top > self.box[1] and self._is_over(line)), key=_low, default=None)
        near = [line for line in (above, below) if line is not None]
        return all(abs(line.left - self.box[0]) > _INDENT * self.size for line in near)

    def _is_over(self, line: Line) -> bool:
        return line.left < self.box[2] and line.right > self.box[0]

    def is_elsewhere(self, line: Line, text: Sequence[Line]) -> bool:
        """Whether a text beside the formula belongs to another column: it is outside the text above and below."""
        near = [other for other in text if self._is_over(other) and not _is_level(other, self.box)]
        near = sorted(near, key=lambda other: abs(other.top - self.box[1]))[:3]
        if not near:
            return False
        left, right = min(other.left for other in near), max(other.right for other in near)
        return line.right <= min(left, self.box[0]) or line.left >= max(right, self.box[2])

    def formula(self, number: Line | None, conditions: Sequence[Line], text: Sequence[Line]) -> Formula:
        left, top, right, bottom = around([self.box, *(line.box for line in conditions)])
        air = (0.6 if self.big else 0.15) * self.size
        # Brackets around rows may have no character.
        beside = self.size if self.big or len(self._pieces) > 2 else 0.0
        upper = [line.bottom for line in text if line.bottom <= top and self._is_over(line)]
        lower = [line.top for line in text if line.top >= bottom and self._is_over(line)]
        end = min(right + beside, number.left) if number and number.left > right else right + beside
        box = (left - beside, max([top - air, *upper]), end, min([bottom + air, *lower]))
        parts = [*self._pieces, *conditions]
        return Formula(
            box,
            text=_text(parts),
            size=self.size,
            number=number.text if number else "",
            words=" ".join(_words(parts)),
        )


def _low(line: Line) -> float:
    return line.bottom


def _text(lines: Sequence[Line]) -> str:
    """Return the words of a formula, a row on each line."""
    return "\n".join(join_lines(cell.text for cell in row.cells) for row in rows(lines))


def _words(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the ordinary words in a formula, in reading order."""
    for row in rows(lines):
        for token in Row(row.cells).tokens:
            word = token.text.strip(".,;:()[]{}")
            ordinary = _ORDINARY.fullmatch(word) and not notation.is_math_font(token.style.font)
            if ordinary and not token.style.shift and not _FUNCTIONS.fullmatch(word):
                yield word
