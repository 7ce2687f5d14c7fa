"""Find the direction of the text in a picture: across, upside down, or up or down the page.

The engine locates text in any direction; only reading it shows the direction. Its confidence is 0.95 to 0.99 on upright
test pages, and 0.59 to 0.69 on the same pages upside down. So it reads a few pieces first. On an upright page these
readings are reused, so that finding the direction costs nothing.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipeline.reading.ocr.engine import Quad, Text

Read = Callable[[Sequence[Quad]], list[Text]]

_SAMPLE = 6
_LONG = 2.0  # length by height; a longer piece shows its direction by its shape
_TALL = 1.5  # height by width; a taller piece seems to run up or down
_SHORT = 3.0  # height by width; a lower piece may still be a narrow letter
_SURE = 0.9
_LEAST_SURE = 0.75
_BETTER = 0.05
_LETTERS = 3  # 6890 reads as well upside down
_LONGER_THAN_ICONS = 3.0  # length by height
_LEAST = 0.5  # a lower score means a rule or a detail of a picture


class RecognisedText(NamedTuple):
    """A recognised piece of text; its corners in pixels, clockwise from its own top left. `words`: the confidence in
    each word; `places`: as in `Line`."""

    text: str
    corners: Quad
    words: tuple[float, ...] = ()
    places: tuple[int, ...] = ()


class Piece(NamedTuple):
    """A piece of a picture read in its direction, legible or not; corners as in `RecognisedText`."""

    text: str
    corners: Quad
    score: float
    words: tuple[float, ...] = ()
    places: tuple[int, ...] = ()


def read_all(quads: Sequence[Quad], read: Read) -> list[RecognisedText]:
    """Return the legible texts at these places, each read in its own direction. `read`: recognises the text at places
    whose first corner is its top left."""
    return legible(read_pieces(quads, read))


def legible(pieces: Sequence[Piece]) -> list[RecognisedText]:
    """Return the texts with a sufficient score; drop the others."""
    return [
        RecognisedText(piece.text, piece.corners, piece.words, piece.places)
        for piece in pieces
        if piece.score >= _LEAST and piece.text.strip()
    ]


def confidence(pieces: Sequence[Piece]) -> float | None:
    """Return the confidence in everything that looks like text, 0 to 1; None if nothing does.

    Weighted by length, not by characters: the engine reads a line in an unknown script as nothing, or as one sign. An
    illegible piece no longer than a short word counts as an icon.
    """
    length = sure = 0.0
    for piece in pieces:
        along, across = _sides(piece.corners)
        is_legible = piece.score >= _LEAST and piece.text.strip()
        if is_legible or along > _LONGER_THAN_ICONS * across:
            length += along
            sure += along * (piece.score if piece.text.strip() else 0.0)
    return sure / length if length else None


def read_pieces(quads: Sequence[Quad], read: Read) -> list[Piece]:
    """Return the text at each place, legible or not, read in its own direction, in the order of the places."""
    pieces = _Pieces(quads, read)
    turn = _page_turn(pieces)
    sideways = {index for index, quad in enumerate(quads) if _ratio(turned(quad, turn)) >= _TALL}
    best = {index: turn for index in range(len(quads)) if index not in sideways}
    pieces.read(list(best), turn)
    best |= _sideways_turns(pieces, sorted(sideways), turn)
    texts = {index: pieces.text(index, angle) for index, angle in best.items()}
    return [
        Piece(text.text, turned(quads[index], best[index]), text.score, text.words, text.places)
        for index, text in sorted(texts.items())
    ]


def turned(quad: Quad, angle: int) -> Quad:
    """Reorder the corners to start at the text's own top left, for text turned clockwise by 0, 90, 180 or 270."""
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
        missing = [index for index in indices if (index, angle) not in self._known]
        texts = self._read([turned(self.quads[index], angle) for index in missing])
        self._known |= {(index, angle): text for index, text in zip(missing, texts, strict=True)}

    def text(self, index: int, angle: int) -> Text:
        return self._known[index, angle]

    def certainty(self, indices: Sequence[int], angle: int) -> float:
        """Return the mean confidence in these pieces in this direction, 0 to 1."""
        self.read(indices, angle)
        return sum(self.text(index, angle).score for index in indices) / len(indices) if indices else 0.0

    def letters(self, indices: Sequence[int], angle: int) -> int:
        """Count the letters of these pieces, which must have been read in this direction."""
        return sum(map(str.isalpha, "".join(self.text(index, angle).text for index in indices)))


def _page_turn(pieces: _Pieces) -> int:
    """Return by how many degrees most of the text is turned clockwise: 0, 90, 180 or 270."""
    lengths = {index: max(_sides(quad)) for index, quad in enumerate(pieces.quads)}
    longest = sorted(lengths, key=lambda index: -lengths[index])
    oblong = [index for index in longest if not 1 / _LONG < _ratio(pieces.quads[index]) < _LONG]
    upright = sum(lengths[index] for index in oblong if _ratio(pieces.quads[index]) > 1)
    if not oblong:
        return _surest(pieces, longest[:_SAMPLE], (0, 90, 270, 180))
    tall = upright > 0.5 * sum(lengths[index] for index in oblong)
    alike = [index for index in oblong if (_ratio(pieces.quads[index]) > 1) == tall]
    return _surest(pieces, alike[:_SAMPLE], (90, 270) if tall else (0, 180))


def _surest(pieces: _Pieces, sample: Sequence[int], angles: Sequence[int]) -> int:
    """Return the angle with the most confidence; 0 if none has enough, as with vertical writing and drawings."""
    scores: dict[int, float] = {}
    for angle in angles:
        scores[angle] = pieces.certainty(sample, angle)
        if scores[angle] >= _SURE and pieces.letters(sample, angle) >= _LETTERS:
            return angle
    best = max(scores, key=lambda angle: scores[angle])
    # Smudged text is usually upright, so a small difference does not count.
    return best if scores[best] >= max(_LEAST_SURE, scores.get(0, 0.0) + _BETTER) else 0


def _sideways_turns(pieces: _Pieces, indices: Sequence[int], turn: int) -> dict[int, int]:
    """Return the clockwise turns, by index, of pieces at right angles to the others; try upwards first, like labels of
    axes."""
    best: dict[int, tuple[float, int]] = dict.fromkeys(indices, (-1.0, turn))
    for angle in ((turn + 270) % 360, (turn + 90) % 360, turn):
        undecided = [index for index in indices if best[index][0] < _SURE]
        if angle == turn:
            undecided = [index for index in undecided if _ratio(turned(pieces.quads[index], turn)) < _SHORT]
        pieces.read(undecided, angle)
        for index in undecided:
            best[index] = max(best[index], (pieces.text(index, angle).score, angle))
    return {index: angle for index, (_, angle) in best.items()}


def _sides(quad: Quad) -> tuple[float, float]:
    """Return the lengths of the first and the second side."""
    return math.dist(quad[0], quad[1]), math.dist(quad[1], quad[2])


def _ratio(quad: Quad) -> float:
    """Return height divided by width."""
    width, height = _sides(quad)
    return height / max(width, 1e-6)
