"""Find the reading order of lines with Hebrew or Arabic letters from the places of their glyphs.

A PDF gives the places of glyphs, and PDFium guesses their reading order. It reverses words that are set glyph by glyph
and words with dots and dashes (`org.example`), moves the dots of numbers, and mirrors brackets. So this module first
sorts the pieces of a line from left to right, as displayed, and then restores their reading order. Libraries for
bidirectional text only do the reverse: from reading order to display order.
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
_BEFORE_NUMBERS = "#№"
_AFTER_NUMBERS = "%\u066a‰°"
_CURRENCIES = "$¢£¤¥₪€₹₺₽﷼"
_UNITS = re.compile("[KMGT]B|[kMG]Hz|[ckm]m|[km]g|ml|[kM]Wh?")
_OPENING = tuple(pair[0] for pair in _PAIRS)
_LEVEL = 0.8
"""The least distance between base lines, in text sizes."""

_EDGE = 0.1
"""The share of a letter's width, at either side, where a mark may belong to the neighbouring letter."""

_MAX_SIGNS = 3
_GAP, _SEEN_GAP = 0.1, 0.06
"""The least space between two words, in text sizes; the second applies where PDFium reports a space."""

_PERSIAN = re.compile("[پچژکگی]")
_UNJOINED = frozenset("اآأإٱدذرزژوؤةۀىءێۆۇۋڕ")
NON_JOINER = "\u200c"
"""Keeps letters of a Persian word from being joined; a PDF shows that only by their distance."""


class Piece(NamedTuple):
    """A part of a line with characters of one kind. `start` and `end`: its place in PDFium's text."""

    word: Word
    kind: Kind
    start: int
    end: int


class Part(NamedTuple):
    """A stretch of characters of one kind in a line, by its start and end."""

    kind: Kind
    start: int
    end: int


def concerns(text: str, *, leftwards: bool) -> bool:
    """Whether the order of this line depends on its direction: it has letters that are read leftwards, or is a list's
    number on a page that mostly is (`leftwards`)."""
    if RIGHT_TO_LEFT.search(text):
        return True
    return leftwards and len(text) < 8 and not any(map(str.isalpha, text)) and any(map(str.isdigit, text))


def parts(text: str, start: int, end: int) -> Iterator[Part]:
    """Yield the stretches of one kind in `text[start:end]`, in PDFium's order and without white space; each neutral
    sign is a part of its own."""
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
                new = "right"  # A glyph that its font names as a letter of another script.
        if new != kind or new == "neutral":
            if kind:
                yield Part(kind, begin, index)
            kind, begin = new, index
    if kind:
        yield Part(kind, begin, end)


def _is_word(text: str, index: int, end: int) -> bool:
    """Whether at least three letters that are read rightwards begin here."""
    return end - index > 2 and all(unicodedata.bidirectional(text[place]) == "L" for place in range(index, index + 3))


def normalised(text: str) -> str:
    """Return the text in plain letters: without their shapes inside words, lines that stretch words, and signs that set
    the direction."""
    text = _FORMS.sub(lambda match: unicodedata.normalize("NFKC", match[0]).replace(" ", ""), text)
    return _STRETCH.sub("", _CONTROLS.sub("", text))


def spelled(text: str, pieces: Sequence[Piece], box: Callable[[int], Box]) -> list[Piece]:
    """Return the pieces with their letters in the order of their places from right to left, and each mark after its
    letter.

    `box` gives the place of a character of `text`. Pieces that are only marks disappear if letters are near them.
    """
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
        if cut[piece.start] > 1:  # The word has several styles.
            kept.append(piece)
            continue
        own = lettered.get(piece.start, []) if piece.kind == "right" else []
        if own:
            order = "".join(text[place] for index in own for place in (index, *marks.get(index, ())))
            boxes = [places[place] for index in own for place in (index, *marks.get(index, ()))]
            left, right = min(box[0] for box in boxes), max(box[2] for box in boxes)
            kept.append(piece._replace(word=piece.word._replace(text=order, left=left, right=right)))
        elif piece.kind != "right" or not letters:
            kept.append(piece)
    return kept


def _places(text: str, pieces: Sequence[Piece], box: Callable[[int], Box]) -> dict[int, Box]:
    """Return the places of the letters and marks of leftward pieces, by index in `text`; a glyph without extent takes
    the place of the previous one."""
    places: dict[int, Box] = {}
    for piece in pieces:
        if piece.kind == "right":
            last = piece.word[1:5]
            for index in range(piece.start, piece.end):
                if text[index] != GONE:
                    own = box(index)
                    last = places[index] = own if any(own) else last
    return places


def _letter_of(mark: int, near: Sequence[int], places: Mapping[int, Box]) -> int:
    """Return the index of the letter among those near a mark to which the mark belongs: the previous letter in the text
    if they touch, unless the mark stands on another. PDFium divides a glyph of a letter with marks into parts by
    width."""
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
    """Group neighbouring pieces of one direction and base line, each group from left to right."""
    groups: list[list[Piece]] = []
    before: Word | None = None
    for piece in pieces:
        word = piece.word
        if (
            before is None
            or before.angle != word.angle
            or abs(before.foot - word.foot) > _LEVEL * max(before.size, word.size)
        ):
            groups.append([])
        groups[-1].append(piece)
        before = word
    return [sorted(level, key=lambda piece: piece.word.start + piece.word.end) for level in groups]


def read_order(seen: Sequence[Piece], text: str, *, leftwards: bool) -> list[Word]:
    """Return the words of one stretch of a line, given from left to right, in reading order.

    `leftwards`: the page's text is read leftwards. `text`: PDFium's text, which shows where PDFium sees spaces.
    """
    whole = "".join(piece.word.text for piece in seen)
    has_letters = any(piece.kind in {"right", "left"} for piece in seen)
    backwards = (leftwards and (bool(RIGHT_TO_LEFT.search(whole)) or not has_letters)) or is_right_to_left(whole)
    line = _Line(seen, [_is_spaced(a, b, text) for a, b in pairwise(seen)])
    order = line.backwards(0, len(seen)) if backwards else line.forwards()
    turned = _with_brackets([(seen[index].word, spaced) for index, spaced in order])
    return _joined(turned, persian=bool(_PERSIAN.search(text)))


class _Line:
    """Pieces from left to right, and whether a space follows each but the last."""

    def __init__(self, pieces: Sequence[Piece], spaced: Sequence[bool]) -> None:
        self.pieces = pieces
        self.spaced = spaced
        # Beside Arabic letters, the parts of 2023-10-07 and $50 are read leftwards; beside Hebrew letters they are not.
        arabic = any(_ARABIC.search(piece.word.text) for piece in pieces)
        self._in_numbers = _IN_NUMBERS if arabic else _IN_NUMBERS + "-"
        self._beside_numbers = "" if arabic else _CURRENCIES

    def text(self, index: int) -> str:
        return self.pieces[index].word.text

    def forwards(self) -> list[tuple[int, bool]]:
        """Return (index of a piece, whether a space precedes it) in reading order, for a line that is read
        rightwards."""
        order: list[tuple[int, bool]] = []
        index = 0
        while index < len(self.pieces):
            end = index + 1
            if self.pieces[index].kind == "right":
                others = (at for at in range(end, len(self.pieces)) if self.pieces[at].kind == "left")
                limit = next(others, len(self.pieces))
                end = 1 + max(at for at in range(index, limit) if self.pieces[at].kind == "right")
            (first, _), *rest = self.backwards(index, end)
            order += [(first, index > 0 and self.spaced[index - 1]), *rest]
            index = end
        return order

    def backwards(self, begin: int, end: int) -> list[tuple[int, bool]]:
        """Return (index of a piece, whether a space precedes it) in reading order for the pieces from `begin` to before
        `end`, if they are read leftwards; rightward stretches among them keep their order."""
        stretches: list[range] = []
        index = floor = begin
        while index < end:
            first = last = index
            if self.pieces[index].kind in {"left", "number"}:
                first, last = self._with_signs(index, self._end_of_rightward(index, end), floor, end)
                while stretches and stretches[-1].start >= first:
                    stretches.pop()
                floor = last + 1
            stretches.append(range(first, last + 1))
            index = last + 1
        order: list[tuple[int, bool]] = []
        for stretch in reversed(stretches):
            order.append((stretch[0], stretch.stop < end and self.spaced[stretch.stop - 1]))
            order += [(at, self.spaced[at - 1]) for at in stretch[1:]]
        return order

    def _end_of_rightward(self, first: int, end: int) -> int:
        """Return the index of the last piece of the rightward stretch that begins at `first`."""
        last = first
        for index in range(first + 1, end):
            kind = self.pieces[index].kind
            if kind == "right" or (kind != "neutral" and not self._goes_on(first, last, index)):
                break
            last = index if kind != "neutral" else last
        return last

    def _goes_on(self, first: int, last: int, index: int) -> bool:
        """Whether letters or digits at `index` continue the stretch from `first` to `last` in its direction."""
        apart = any(self.spaced[last:index])
        if self.pieces[last].kind == "left":
            # A unit is read after its number, at whichever side it stands.
            unit = first == last == index - 1 and _UNITS.fullmatch(self.text(last))
            return not (unit and apart and self.pieces[index].kind == "number")
        lettered = self.pieces[index].kind == "left"
        if index == last + 1:
            return lettered or not apart
        inside = self._in_numbers + (_AFTER_NUMBERS if lettered else "")
        return not apart and (self._is_lettered(first, last) or (index == last + 2 and self.text(last + 1) in inside))

    def _is_lettered(self, first: int, last: int) -> bool:
        return any(piece.kind == "left" for piece in self.pieces[first : last + 1])

    def _with_signs(self, first: int, last: int, floor: int, end: int) -> tuple[int, int]:
        """Return the first and last index of the stretch, extended by the signs at its ends that belong to it."""
        lettered = self._is_lettered(first, last)
        belonging = _CURRENCIES + _IN_CODE if lettered else self._beside_numbers
        for _ in range(_MAX_SIGNS):
            left = self.text(first - 1) if first > floor and not self.spaced[first - 1] else ""
            right = self.text(last + 1) if last + 1 < end and not self.spaced[last] else ""
            text = "".join(map(self.text, range(first, last + 1)))
            quoted = lettered and bool(left) and bool(right) and left in _QUOTES and right in _QUOTES
            before = belonging + ("" if lettered else _BEFORE_NUMBERS) + _unpaired(text, opening=False)
            after = belonging + _AFTER_NUMBERS + (_AFTER_CODE if lettered else "") + _unpaired(text, opening=True)
            takes_left = bool(left) and (quoted or left in before)
            takes_right = bool(right) and (quoted or right in after)
            if not takes_left and not takes_right:
                break
            first, last = first - takes_left, last + takes_right
        return first, last


def _unpaired(text: str, *, opening: bool) -> str:
    """Return, joined to one text, the pairs of brackets (such as `()`) whose signs occur an odd number of times, most
    of them opening (or closing) ones."""
    counts = ((pair, text.count(pair[0]), text.count(pair[1])) for pair in _PAIRS)
    return "".join(pair for pair, opens, closes in counts if (opens + closes) % 2 and (opens > closes) == opening)


def _is_spaced(first: Piece, second: Piece, text: str) -> bool:
    """Whether a space separates neighbours of a line.

    PDFium moves spaces along with the pieces that it reverses, and reports some between letters that are not joined."""
    gap = second.word.left - first.word.right
    size = max(first.word.size, second.word.size)
    before, after = sorted((first, second), key=lambda piece: piece.start)
    between = text[before.end : after.start]
    return gap > (_SEEN_GAP if between and not between.strip() else _GAP) * size


def _with_brackets(words: Sequence[tuple[Word, bool]]) -> list[tuple[Word, bool]]:
    """Return the words with brackets that open and close according to the spaces around them: some PDFs draw brackets
    as displayed, others as meant."""
    open_ones: Counter[str] = Counter()
    turned: list[tuple[Word, bool]] = []
    for place, (word, spaced) in enumerate(words):
        pair = _FAMILIES.get(word.text)
        if not pair:
            turned.append((word, spaced))
            continue
        ends = place + 1 == len(words) or words[place + 1][1] or words[place + 1][0].text in _STOPS
        begins = place == 0 or spaced or turned[-1][0].text in _OPENING
        closes = open_ones[pair] > 0 if begins == ends else ends
        open_ones[pair] += -1 if closes else 1
        turned.append((word._replace(text=pair[closes]), spaced))
    return turned


def _joined(spaced_words: Sequence[tuple[Word, bool]], *, persian: bool) -> list[Word]:
    """Join touching pieces of one style into words."""
    words: list[Word] = []
    for word, spaced in spaced_words:
        before = words[-1] if words else None
        if before is None or spaced or (before.style, before.size, before.angle) != (word.style, word.size, word.angle):
            words.append(word._replace(text=normalised(word.text), spaced=spaced or before is None))
            continue
        left, top, right, bottom = around([before[1:5], word[1:5]])
        apart = persian and word.text[0].isalpha() and before.text[-1].isalpha() and before.text[-1] not in _UNJOINED
        text = normalised(before.text + (NON_JOINER if apart else "") + word.text)
        words[-1] = before._replace(text=text, left=left, top=top, right=right, bottom=bottom)
    return words
