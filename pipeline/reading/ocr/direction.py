"""The direction of the text in a picture: across, upside down, or up or down the page.

Text is found whatever its direction; only reading it tells. Reading the right way, the engine is sure (0.95 to 0.99 on
the pages tried), upside down it is not (0.59 to 0.69). So a few pieces are read first. Those of an upright page are not
read again, so that finding its direction costs nothing.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipeline.reading.ocr.engine import Quad, Text

Read = Callable[[Sequence[Quad]], list[Text]]

_SAMPLE = 6  # as many as the engine reads at once
_LONG = 2.0  # length by height, from which on the shape of a piece tells its direction
_TALL = 1.5  # height by width, from which on a piece seems to run up or down
_SHORT = 3.0  # height by width, below which it may still be a narrow letter
_SURE = 0.9
_LEAST_SURE = 0.75
_BETTER = 0.05
_LETTERS = 3  # 6890 reads just as well upside down
_LONGER_THAN_ICONS = 3.0  # length by height
_LEAST = 0.5  # below, it is not text but a rule or a detail of a picture


class Found(NamedTuple):
    """A recognised piece of text; its corners in pixels, clockwise from its own top left. `words`: how sure the engine
    is of each word."""

    text: str
    corners: Quad
    words: tuple[float, ...] = ()


class Piece(NamedTuple):
    """A piece of a picture read in its direction, whether it says something or not; corners as `Found` has them."""

    text: str
    corners: Quad
    score: float
    words: tuple[float, ...] = ()


def read_all(quads: Sequence[Quad], read: Read) -> list[Found]:
    """The texts of all pieces, each read in its direction; those that say nothing are left out."""
    return telling(read_pieces(quads, read))


def telling(pieces: Sequence[Piece]) -> list[Found]:
    """The pieces that say something."""
    return [
        Found(piece.text, piece.corners, piece.words)
        for piece in pieces
        if piece.score >= _LEAST and piece.text.strip()
    ]


def confidence(pieces: Sequence[Piece]) -> float | None:
    """How sure the engine is of all that looks like text, 0 to 1; None if nothing does.

    By length, not by characters: a line in a script that the engine does not know is read as nothing, or as one sign.
    What says nothing and is no longer than a short word is rather an icon.
    """
    length = sure = 0.0
    for piece in pieces:
        along, across = _sides(piece.corners)
        says = piece.score >= _LEAST and piece.text.strip()
        if says or along > _LONGER_THAN_ICONS * across:
            length += along
            sure += along * (piece.score if piece.text.strip() else 0.0)
    return sure / length if length else None


def read_pieces(quads: Sequence[Quad], read: Read) -> list[Piece]:
    """All pieces, each read in its direction."""
    pieces = _Pieces(quads, read)
    turn = _page_turn(pieces)
    sideways = {index for index, quad in enumerate(quads) if _ratio(turned(quad, turn)) >= _TALL}
    best = {index: turn for index in range(len(quads)) if index not in sideways}
    pieces.read(list(best), turn)
    best |= _sideways_turns(pieces, sorted(sideways), turn)
    texts = {index: pieces.text(index, angle) for index, angle in best.items()}
    return [
        Piece(text.text, turned(quads[index], best[index]), text.score, text.words)
        for index, text in sorted(texts.items())
    ]


def turned(quad: Quad, angle: int) -> Quad:
    """The corners from the text's own top left one, for text turned clockwise by 0, 90, 180 or 270 degrees."""
    first = angle // 90
    a, b, c, d = quad[first:] + quad[:first]
    return (a, b, c, d)


class _Pieces:
    """Reads pieces of a picture, each at most once per direction."""

    def __init__(self, quads: Sequence[Quad], read: Read) -> None:
        self.quads = quads
        self._read = read
        self._known: dict[tuple[int, int], Text] = {}

    def read(self, indices: Sequence[int], angle: int) -> None:
        wanted = [index for index in indices if (index, angle) not in self._known]
        found = self._read([turned(self.quads[index], angle) for index in wanted])
        self._known |= {(index, angle): text for index, text in zip(wanted, found, strict=True)}

    def text(self, index: int, angle: int) -> Text:
        return self._known[index, angle]

    def certainty(self, indices: Sequence[int], angle: int) -> float:
        """How sure the engine is of these pieces in this direction, 0 to 1."""
        self.read(indices, angle)
        return sum(self.text(index, angle).score for index in indices) / len(indices) if indices else 0.0

    def letters(self, indices: Sequence[int], angle: int) -> int:
        """How many letters these pieces have in this direction; they must have been read in it."""
        return sum(map(str.isalpha, "".join(self.text(index, angle).text for index in indices)))


def _page_turn(pieces: _Pieces) -> int:
    """How many degrees most of the text is turned clockwise."""
    lengths = {index: max(_sides(quad)) for index, quad in enumerate(pieces.quads)}
    longest = sorted(lengths, key=lambda index: -lengths[index])
    telling = [index for index in longest if not 1 / _LONG < _ratio(pieces.quads[index]) < _LONG]
    upright = sum(lengths[index] for index in telling if _ratio(pieces.quads[index]) > 1)
    if not telling:
        return _surest(pieces, longest[:_SAMPLE], (0, 90, 270, 180))
    tall = upright > 0.5 * sum(lengths[index] for index in telling)
    alike = [index for index in telling if (_ratio(pieces.quads[index]) > 1) == tall]
    return _surest(pieces, alike[:_SAMPLE], (90, 270) if tall else (0, 180))


def _surest(pieces: _Pieces, sample: Sequence[int], angles: Sequence[int]) -> int:
    """The angle that the engine is surest of; 0 if it is sure of none, as with vertical writing and drawings."""
    scores: dict[int, float] = {}
    for angle in angles:
        scores[angle] = pieces.certainty(sample, angle)
        if scores[angle] >= _SURE and pieces.letters(sample, angle) >= _LETTERS:
            return angle
    best = max(scores, key=lambda angle: scores[angle])
    # Smudged text is usually upright, so a small difference does not count.
    return best if scores[best] >= max(_LEAST_SURE, scores.get(0, 0.0) + _BETTER) else 0


def _sideways_turns(pieces: _Pieces, indices: Sequence[int], turn: int) -> dict[int, int]:
    """The directions of pieces at right angles to the others: up first, as margins and axes are labelled."""
    best: dict[int, tuple[float, int]] = dict.fromkeys(indices, (-1.0, turn))
    for angle in ((turn + 270) % 360, (turn + 90) % 360, turn):
        open_ones = [index for index in indices if best[index][0] < _SURE]
        if angle == turn:
            open_ones = [index for index in open_ones if _ratio(turned(pieces.quads[index], turn)) < _SHORT]
        pieces.read(open_ones, angle)
        for index in open_ones:
            best[index] = max(best[index], (pieces.text(index, angle).score, angle))
    return {index: angle for index, (_, angle) in best.items()}


def _sides(quad: Quad) -> tuple[float, float]:
    """Length of the first side and of the second."""
    return math.dist(quad[0], quad[1]), math.dist(quad[1], quad[2])


def _ratio(quad: Quad) -> float:
    """Height by width."""
    width, height = _sides(quad)
    return height / max(width, 1e-6)
