"""Find words that make no sense, without a dictionary: by their shape, recognition's confidence, and words over them.

If a form prints two values over one another, recognition reads "BOBtha5782Harrison" and is sure of the page as a
whole. One sign alone proves nothing: codes have odd shapes, and recognition is unsure of one clean word in two hundred.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import compress
from operator import attrgetter, lt
from typing import NamedTuple

from pipeline.reading.layout import certainty
from pipeline.reading.layout.certainty import UNCERTAIN
from pipeline.reading.layout.model import Block, Line

_GUESSED = 0.45
"""Recognition guessed a word below this confidence: clean words of five letters or more have 0.5 or more."""

_MIN_CHARACTERS, _MIN_LETTERS = 5, 3
_LETTER, _LOWER, _UPPER = "A-Za-zÀ-ÖØ-öø-ž", "a-zß-öø-ÿ", "A-ZÀ-ÖØ-Þ"
_OTHER_SCRIPT = "Ͱ-ԯ぀-鿿가-힣"
_LETTERS = re.compile(f"[{_LETTER}]")
_WORD = re.compile(f"[{_LETTER}0-9]")
_FOREIGN = re.compile(f"[{_OTHER_SCRIPT}]")
_ODD = re.compile(
    rf"[{_LOWER}][0-9]+[{_LETTER}]|[{_LETTER}]{{2}}[0-9]+[{_LOWER}]|[0-9][{_UPPER}]?[{_LOWER}]{{3}}"  # "A7arren"
    rf"|[{_LOWER}][{_UPPER}]{{2,}}[{_LOWER}]|(?<![{_LETTER}])[{_UPPER}]{{2,}}[{_LOWER}]{{2}}"  # "tNRi", "PRcitaN"
    rf"|(?:[{_UPPER}][{_LOWER}]{{1,2}}){{2}}[{_UPPER}]"  # "BiBhaR"
    rf"|[{_LETTER}][?#&@;:,$%]{{1,2}}[{_LETTER}]|::"  # "R@driguez"
    rf"|[{_LETTER}][{_OTHER_SCRIPT}]|[{_OTHER_SCRIPT}][{_LETTER}]"  # "rgyβey"
)
_ADDRESS = re.compile(r"://|www\.|@\w+[._]|\w\.\w{2,4}$")

_LEFT, _RIGHT = attrgetter("left"), attrgetter("right")
_MAX_WORDS, _MAX_BESIDE = 5_000, 200
_MOST, _MOST_CHARACTERS = 20, 200


def illegible(blocks: Iterable[Block], lines: Iterable[Line]) -> list[str]:
    """Return at most 20 words of a page that make no sense, each cut at 200 characters: badly recognised ones, then
    words of the text layer that another word covers. `lines`: the lines of the blocks."""
    recognised = [word.text for block in blocks for word in certainty.words(block) if _is_garbled(word)]
    return [word[:_MOST_CHARACTERS] for word in [*recognised, *_covered(lines)][:_MOST]]


def is_garbled(line: Line) -> bool:
    """Whether recognition could not read a word of the line."""
    words = zip(line.text.split(), line.sure, strict=False) if line.sure else ()
    return any(_is_garbled(certainty.Word(*word)) for word in words)


def _is_garbled(word: certainty.Word) -> bool:
    """Whether recognition guessed the word, or was unsure of it and its characters do not fit together."""
    text, sure = word
    # A line of Chinese has no spaces: among thirty characters, one is always unsure.
    if sure >= UNCERTAIN or len(_WORD.findall(text)) < max(_MIN_CHARACTERS, 2 * len(_FOREIGN.findall(text))):
        return False
    if len(_LETTERS.findall(text)) < _MIN_LETTERS:
        return False
    return sure < _GUESSED or (bool(_ODD.search(text)) and not _ADDRESS.search(text))


class _Placed(NamedTuple):
    """A word of a text layer and its box."""

    text: str
    left: float
    right: float
    top: float
    bottom: float

    def covers(self, other: "_Placed") -> bool:
        """Whether two words of similar size overlap by half or more, and neither is the other's shadow."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        if wide < min(self.right - self.left, other.right - other.left) / 2 or self.text == other.text:
            return False
        low, tall = sorted((self.bottom - self.top, other.bottom - other.top))
        high = min(self.bottom, other.bottom) - max(self.top, other.top)
        return tall < 2 * low and high >= low / 2


def _covered(lines: Iterable[Line]) -> Iterator[str]:
    """Yield words of a text layer that another word covers."""
    words = sorted(_placed(_crowded(lines)), key=lambda word: word.top)[:_MAX_WORDS]
    tops = [word.top for word in words]
    for place, word in enumerate(words):
        end = bisect_left(tops, word.bottom, place + 1, min(len(words), place + _MAX_BESIDE))
        near = [other for other in words[place + 1 : end] if other.left < word.right and other.right > word.left]
        if any(map(word.covers, near)):
            yield word.text


def _crowded(lines: Iterable[Line]) -> list[Line]:
    """Return the level lines that overlap another one, or whose own words overlap. On most pages these are few."""
    level = sorted((line for line in lines if line.angle == 0 and line.spans), key=lambda line: line.top)
    crowded = [any(map(lt, map(_LEFT, line.spans[1:]), map(_RIGHT, line.spans))) for line in level]
    for place, line in enumerate(level):
        for other in range(place + 1, min(len(level), place + _MAX_BESIDE)):
            if level[other].top >= line.bottom:
                break
            if level[other].left < line.right and level[other].right > line.left:
                crowded[place] = crowded[other] = True
    return list(compress(level, crowded))


def _placed(lines: Iterable[Line]) -> Iterator[_Placed]:
    for line in lines:
        for span in line.spans:
            if len(_WORD.findall(span.text)) >= _MIN_LETTERS:
                yield _Placed(span.text, span.left, span.right, line.top, line.bottom)
