"""The order in which lines with Hebrew or Arabic letters are read, from the places of their glyphs.

A PDF says where glyphs are, and PDFium guesses from that in which order they are read. It turns words around that are
set glyph by glyph, and what has dots and dashes in it (`org.example`), moves the dots of numbers, and mirrors
brackets. So the pieces of a line are put in the order in which they are seen, from left to right, and that is turned
back. Libraries for bidirectional text only do the reverse: from the order of reading to that of display.
"""

import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from pipeline.reading.layout.model import Box, around
from pipeline.reading.layout.text import RIGHT_TO_LEFT, is_right_to_left
from pipeline.reading.pdf.diacritics import GONE
from pipeline.reading.pdf.words import Word

Kind = Literal["right", "left", "number", "neutral"]
"""Letters that are read leftwards ("right" to left), letters that are read rightwards, digits, and the rest."""

_KINDS: dict[str, Kind] = {"R": "right", "AL": "right", "L": "left", "EN": "number", "AN": "number"}
_ADDED = {"NSM", "BN"}
"""Marks over letters, and signs without a width."""

_FORMS = re.compile("[\ufb1d-\ufd3d\ufd40-\ufdf9\ufe70-\ufefc]+")
_STRETCH = re.compile(r"(?<=[\u0620-\u063f\u0641-\u06ff])\u0640+(?=[\u0620-\u063f\u0641-\u06ff])")
_CONTROLS = re.compile("[\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]")
_PAIRS = ("()", "[]", "{}", "«»", "‹›")
_FAMILIES = {character: pair for pair in _PAIRS for character in pair}
_STOPS = ".,;:!?،؛؟"
_QUOTES = "\"'`‘’“”"
_IN_NUMBERS = ".,:/\u066b\u066c"
_ARABIC = re.compile("[\u0620-\u064a\u0671-\u06d3]")
_IN_CODE = "/\\_@&=~"
_AFTER_CODE = "+#"
_PERCENT = "%\u066a"
_CURRENCIES = "$¢£¤¥₪€₹₺₽﷼"
_OPENING = tuple(pair[0] for pair in _PAIRS)
_LEVEL = 0.8
"""How much lower or higher the text on another base line is, in text sizes."""

_EDGE = 0.1
"""Share of a letter's width, at either side, where a mark may belong to its neighbour."""

_MAX_SIGNS = 3
_GAP, _SEEN_GAP = 0.1, 0.06
"""The least space between two words, in text sizes, and where PDFium sees one."""

_PERSIAN = re.compile("[پچژکگی]")
_UNJOINED = frozenset("اآأإٱدذرزژوؤةۀىءێۆۇۋڕ")
NON_JOINER = "\u200c"
"""Keeps letters of a Persian word from being joined: a PDF only has them apart."""


class Piece(NamedTuple):
    """A part of a line that holds characters of one kind. `start` and `end` are its place in PDFium's text."""

    word: Word
    kind: Kind
    start: int
    end: int


class Part(NamedTuple):
    """A stretch of characters of one kind in a line, given by its start and end."""

    kind: Kind
    start: int
    end: int


def concerns(text: str, *, leftwards: bool) -> bool:
    """Whether the order of this line depends on its direction: it has letters that are read leftwards, or is a list's
    number on a page of such text."""
    if RIGHT_TO_LEFT.search(text):
        return True
    return leftwards and len(text) < 8 and not any(map(str.isalpha, text)) and any(map(str.isdigit, text))


def parts(text: str, start: int, end: int) -> Iterator[Part]:
    """The parts of a line, in PDFium's order; white space is in none."""
    kind: Kind | None = None
    begin = start
    for index in range(start, end):
        character = text[index]
        bidirectional = unicodedata.bidirectional(character)
        if character.isspace():
            new: Kind | None = None
        elif bidirectional in _ADDED and kind:
            continue
        else:
            new = _KINDS.get(bidirectional, "right" if bidirectional in _ADDED else "neutral")
            if new == "left" and not character.isascii() and kind == "right" and not _is_word(text, index, end):
                new = "right"  # A glyph whose font calls it a letter of another script.
        if new != kind or new == "neutral":
            if kind:
                yield Part(kind, begin, index)
            kind, begin = new, index
    if kind:
        yield Part(kind, begin, end)


def _is_word(text: str, index: int, end: int) -> bool:
    """Whether more than two letters that are read rightwards begin here."""
    return end - index > 2 and all(unicodedata.bidirectional(text[place]) == "L" for place in range(index, index + 3))


def normalised(text: str) -> str:
    """The text in plain letters: without the shapes they have in a word, the lines that stretch words, and signs that
    set the direction."""
    text = _FORMS.sub(lambda found: unicodedata.normalize("NFKC", found[0]).replace(" ", ""), text)
    return _STRETCH.sub("", _CONTROLS.sub("", text))


def spelled(text: str, pieces: Sequence[Piece], box: Callable[[int], Box]) -> list[Piece]:
    """The pieces with letters in the order of their places, and marks after the letters that they are over or under.

    `box` gives the place of a character of `text`. Pieces of marks only are gone if there are letters near them."""
    places = _places(text, pieces, box)
    letters = [index for index in places if not unicodedata.combining(text[index])]
    letters.sort(key=lambda index: -_middle(places[index]))
    middles = [-_middle(places[index]) for index in letters]
    marks: dict[int, list[int]] = {}
    for mark in (index for index in places if unicodedata.combining(text[index])):
        at = bisect_right(middles, -_middle(places[mark]))
        if near := letters[max(0, at - 2) : at + 2]:
            marks.setdefault(_letter_of(mark, near, places), []).append(mark)
    kept = []
    cut = Counter(piece.start for piece in pieces)
    lettered: dict[int, list[int]] = {}
    starts = sorted(cut)
    for index in letters:
        lettered.setdefault(starts[bisect_right(starts, index) - 1], []).append(index)
    for piece in pieces:
        if cut[piece.start] > 1:  # It is set in several styles.
            kept.append(piece)
            continue
        own = lettered.get(piece.start, []) if piece.kind == "right" else []
        if own:
            order = "".join(text[one] for index in own for one in (index, *marks.get(index, ())))
            boxes = [places[one] for index in own for one in (index, *marks.get(index, ()))]
            left, right = min(box[0] for box in boxes), max(box[2] for box in boxes)
            kept.append(piece._replace(word=piece.word._replace(text=order, left=left, right=right)))
        elif piece.kind != "right" or not letters:
            kept.append(piece)
    return kept


def _places(text: str, pieces: Sequence[Piece], box: Callable[[int], Box]) -> dict[int, Box]:
    """Where the letters and marks are; one whose glyph has no extent is where the one before it is."""
    places: dict[int, Box] = {}
    for piece in pieces:
        if piece.kind == "right":
            last = piece.word[1:5]
            for index in range(piece.start, piece.end):
                if text[index] != GONE:
                    found = box(index)
                    last = places[index] = found if any(found) else last
    return places


def _letter_of(mark: int, near: Sequence[int], places: Mapping[int, Box]) -> int:
    """Which of the letters near a mark it belongs to: the one before it in the text if they touch, unless it stands on
    another. Where a glyph is a letter with its marks, PDFium gives each a part of the glyph's width."""
    left, _, right, _ = places[mark]
    middle = (left + right) / 2
    earlier = [index for index in near if index < mark and not any(index < other < mark for other in near)]
    inside = [
        i for i in near if _EDGE * (places[i][2] - places[i][0]) < min(middle - places[i][0], places[i][2] - middle)
    ]
    touching = [index for index in earlier if places[index][0] <= right and left <= places[index][2]]
    before = [index for index in near if _middle(places[index]) >= middle]
    return ([i for i in inside if i in earlier] or inside or touching or before[-1:] or [near[0]])[0]


def _middle(box: Box) -> float:
    return (box[0] + box[2]) / 2


def levels(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces of each direction and base line, from left to right."""
    found: list[list[Piece]] = []
    before: Word | None = None
    for piece in pieces:
        word = piece.word
        if (
            before is None
            or before.angle != word.angle
            or abs(before.foot - word.foot) > _LEVEL * max(before.size, word.size)
        ):
            found.append([])
        found[-1].append(piece)
        before = word
    return [sorted(level, key=lambda piece: piece.word.start + piece.word.end) for level in found]


def read_order(seen: Sequence[Piece], text: str, *, leftwards: bool) -> list[Word]:
    """The words of one stretch of a line, given from left to right, in the order they are read.

    `leftwards`: the page's text is. `text` is PDFium's, which tells where it saw spaces.
    """
    whole = "".join(piece.word.text for piece in seen)
    has_letters = any(piece.kind in {"right", "left"} for piece in seen)
    backwards = (leftwards and (bool(RIGHT_TO_LEFT.search(whole)) or not has_letters)) or is_right_to_left(whole)
    line = _Line(seen, [_is_spaced(a, b, text) for a, b in pairwise(seen)])
    order = line.backwards(0, len(seen)) if backwards else line.forwards()
    turned = _with_brackets([(seen[index].word, spaced) for index, spaced in order])
    return _joined(turned, persian=bool(_PERSIAN.search(text)))


class _Line:
    """Pieces from left to right, and whether there is a space after each but the last."""

    def __init__(self, pieces: Sequence[Piece], spaced: Sequence[bool]) -> None:
        self.pieces = pieces
        self.spaced = spaced
        # Beside Arabic letters, the parts of 2023-10-07 are read leftwards; beside Hebrew ones they are not.
        arabic = any(_ARABIC.search(piece.word.text) for piece in pieces)
        self._in_numbers = _IN_NUMBERS if arabic else _IN_NUMBERS + "-"

    def text(self, index: int) -> str:
        return self.pieces[index].word.text

    def forwards(self) -> list[tuple[int, bool]]:
        """(piece, whether a space comes before it) in the order of reading, if only some are read leftwards."""
        found: list[tuple[int, bool]] = []
        index = 0
        while index < len(self.pieces):
            end = index + 1
            if self.pieces[index].kind == "right":
                others = (at for at in range(end, len(self.pieces)) if self.pieces[at].kind == "left")
                limit = next(others, len(self.pieces))
                end = 1 + max(at for at in range(index, limit) if self.pieces[at].kind == "right")
            (first, _), *rest = self.backwards(index, end)
            found += [(first, index > 0 and self.spaced[index - 1]), *rest]
            index = end
        return found

    def backwards(self, begin: int, end: int) -> list[tuple[int, bool]]:
        """The same for the pieces from `begin` to `end` if they are read leftwards: what is read rightwards among them
        keeps its order."""
        found: list[range] = []
        index = floor = begin
        while index < end:
            first = last = index
            if self.pieces[index].kind in {"left", "number"}:
                first, last = self._with_signs(index, self._end_of_rightward(index, end), floor, end)
                while found and found[-1].start >= first:
                    found.pop()
                floor = last + 1
            found.append(range(first, last + 1))
            index = last + 1
        order: list[tuple[int, bool]] = []
        for stretch in reversed(found):
            order.append((stretch[0], stretch.stop < end and self.spaced[stretch.stop - 1]))
            order += [(at, self.spaced[at - 1]) for at in stretch[1:]]
        return order

    def _end_of_rightward(self, first: int, end: int) -> int:
        """The last piece of the stretch that begins here and is read rightwards."""
        last = first
        for index in range(first + 1, end):
            kind = self.pieces[index].kind
            if kind == "right" or (kind != "neutral" and not self._goes_on(last, index)):
                break
            last = index if kind != "neutral" else last
        return last

    def _goes_on(self, last: int, index: int) -> bool:
        """Whether letters or digits at `index` continue those at `last` in their direction."""
        if self.pieces[last].kind == "left":
            return True
        apart = any(self.spaced[last:index])
        if index == last + 1:
            return self.pieces[index].kind == "left" or not apart
        return not apart and index == last + 2 and self.text(last + 1) in self._in_numbers

    def _with_signs(self, first: int, last: int, floor: int, end: int) -> tuple[int, int]:
        """The stretch from `first` to `last` with the signs at its ends that belong to it."""
        lettered = any(piece.kind == "left" for piece in self.pieces[first : last + 1])
        for _ in range(_MAX_SIGNS):
            left = self.text(first - 1) if first > floor and not self.spaced[first - 1] else ""
            right = self.text(last + 1) if last + 1 < end and not self.spaced[last] else ""
            unpaired = _unpaired("".join(map(self.text, range(first, last + 1))))
            quoted = lettered and bool(left) and bool(right) and left in _QUOTES and right in _QUOTES
            belonging = unpaired + _CURRENCIES + (_IN_CODE if lettered else "")
            takes_left = bool(left) and (quoted or left in belonging)
            takes_right = bool(right) and (quoted or right in belonging + _PERCENT + (_AFTER_CODE if lettered else ""))
            if not takes_left and not takes_right:
                break
            first, last = first - takes_left, last + takes_right
        return first, last


def _unpaired(text: str) -> str:
    """The brackets of the kinds of which there is an odd number."""
    return "".join(pair for pair in _PAIRS if sum(map(text.count, pair)) % 2)


def _is_spaced(first: Piece, second: Piece, text: str) -> bool:
    """Whether there is a space between neighbours of a line.

    PDFium moves spaces about with the pieces that it turns, and sees some where letters only are not joined."""
    gap = second.word.left - first.word.right
    size = max(first.word.size, second.word.size)
    before, after = sorted((first, second), key=lambda piece: piece.start)
    between = text[before.end : after.start]
    return gap > (_SEEN_GAP if between and not between.strip() else _GAP) * size


def _with_brackets(found: Sequence[tuple[Word, bool]]) -> list[tuple[Word, bool]]:
    """The words, with brackets that open and close as the spaces around them say: which way they are drawn may be what
    is seen, or what is meant."""
    open_ones: Counter[str] = Counter()
    turned: list[tuple[Word, bool]] = []
    for place, (word, spaced) in enumerate(found):
        pair = _FAMILIES.get(word.text)
        if not pair:
            turned.append((word, spaced))
            continue
        ends = place + 1 == len(found) or found[place + 1][1] or found[place + 1][0].text in _STOPS
        begins = place == 0 or spaced or turned[-1][0].text in _OPENING
        closes = open_ones[pair] > 0 if begins == ends else ends
        open_ones[pair] += -1 if closes else 1
        turned.append((word._replace(text=pair[closes]), spaced))
    return turned


def _joined(found: Sequence[tuple[Word, bool]], *, persian: bool) -> list[Word]:
    """The words, with pieces in one style that touch as one."""
    words: list[Word] = []
    for word, spaced in found:
        before = words[-1] if words else None
        if before is None or spaced or (before.style, before.size, before.angle) != (word.style, word.size, word.angle):
            words.append(word._replace(text=normalised(word.text), spaced=spaced or before is None))
            continue
        left, top, right, bottom = around([before[1:5], word[1:5]])
        apart = persian and word.text[0].isalpha() and before.text[-1].isalpha() and before.text[-1] not in _UNJOINED
        text = normalised(before.text + (NON_JOINER if apart else "") + word.text)
        words[-1] = before._replace(text=text, left=left, top=top, right=right, bottom=bottom)
    return words
