"""Find places for words from a model, which has no boxes for them, at the lines that local recognition read.

Words that both read alike get the place of the recognised word. The words between them share the places between; so a
word that recognition misread still lies where it stands. Without any common words, the text is spread over the lines.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from typing import NamedTuple

from pipeline.reading.pdf.invisible_text import TextLine

_IDEOGRAPH = "\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
_TOKEN = re.compile(f"[{_IDEOGRAPH}]|[^{_IDEOGRAPH}\\s]+")
_COMMON = 2_500
_ROUNDS = 4
_FEW = 0.2
"""With a smaller share of common words, recognition does not know the script, and its words say nothing."""
_MARGIN = 0.08

Box = tuple[float, float, float, float]


class _Token(NamedTuple):
    text: str
    spaced: bool


class _Slot(NamedTuple):
    """A piece of a line, from `start` to `end` in thousandths of its length."""

    line: int
    start: float
    end: float


_NOWHERE = _Slot(-1, 0, 0)


def placed(text: str, lines: Sequence[TextLine]) -> list[TextLine] | None:
    """Return the words of a text at the places of recognised lines, in the order of the text; None if too few words are
    common to know their places."""
    tokens = list(_tokens(text))
    known, slots = _slots(lines)
    matches = _matches([_plain(token.text) for token in tokens], [_plain(token) for token in known])
    if not tokens or len(matches) < _FEW * len(tokens):
        return None
    places = [_NOWHERE] * len(tokens)
    taken = set(matches.values())
    at = 0
    while at < len(tokens):
        end = at
        while end < len(tokens) and end not in matches:
            end += 1
        for first, last, owned in _gaps(at, end, matches, taken, len(slots)):
            places[first:last] = _shared(tokens[first:last], [slots[slot] for slot in owned], lines)
        if end < len(tokens) and places[end] == _NOWHERE:
            places[end] = slots[matches[end]]
        at = end + 1
    return _lines(tokens, places, lines)


def _gaps(
    start: int, end: int, matches: Mapping[int, int], taken: Collection[int], count: int
) -> Iterator[tuple[int, int, list[int]]]:
    """Yield the parts of `start` to `end`, a run of tokens without a match, each with the slots that it shares: the
    free ones behind the token before it and those before the token behind it, else that of a neighbour."""
    if start == end:
        return
    before, after = matches.get(start - 1), matches.get(end)
    behind = list(takewhile(lambda slot: slot not in taken, range(before + 1, count))) if before is not None else []
    ahead = list(takewhile(lambda slot: slot not in taken, range(after - 1, -1, -1)))[::-1] if after is not None else []
    if behind == ahead:
        ahead = []
    later = min(len(ahead), end - start) if not behind else (end - start) * len(ahead) // (len(ahead) + len(behind))
    middle = end - later
    if later:
        yield middle, end, ahead
    if start < middle and behind:
        yield start, middle, behind
    elif start < middle and before is not None:
        yield start - 1, middle, [before]
    elif start < middle and after is not None:
        yield start, middle if later else end + 1, ahead if later else [after]


def spread(text: str, lines: Sequence[TextLine]) -> list[TextLine]:
    """Return the words of a text spread evenly over these lines, of which there must be one, by their lengths."""
    tokens = list(_tokens(text))
    slots = [_Slot(place, 0, 1000) for place in range(len(lines))]
    return _lines(tokens, _shared(tokens, slots, lines), lines) if tokens else []


def ruled(text: str, box: Box) -> list[TextLine]:
    """Return lines that divide a box evenly and would hold this text, empty themselves."""
    left, top, right, bottom = box
    width, height = max(right - left, 1.0), max(bottom - top, 1.0)
    count = max(1, min(round(math.sqrt(len(text) * 0.5 * height / width)), 200))
    step = height / count
    return [TextLine("", left, top + at * step, right, top + (at + 0.8) * step) for at in range(count)]


def on_page(text: str, width: float, height: float) -> list[TextLine]:
    """Return the words of a text spread over a whole page of this size, within its margins."""
    across, down = _MARGIN * width, _MARGIN * height
    return spread(text, ruled(text, (across, down, width - across, height - down)))


def _tokens(text: str) -> Iterator[_Token]:
    end = -1
    for match in _TOKEN.finditer(text):
        yield _Token(match[0], match.start() != end)
        end = match.end()


def _plain(word: str) -> str:
    folded = unicodedata.normalize("NFKC", word).casefold()
    return "".join(character for character in folded if character.isalnum()) or word


def _slots(lines: Sequence[TextLine]) -> tuple[list[str], list[_Slot]]:
    """Return the tokens of recognised lines and their places."""
    texts: list[str] = []
    slots: list[_Slot] = []
    for number, line in enumerate(lines):
        words = line.text.split()
        places = line.places if len(line.places) == 2 * len(words) else _even(words)
        for at, word in enumerate(words):
            start, end = places[2 * at], places[2 * at + 1]
            for match in _TOKEN.finditer(word):
                share = (end - start) / len(word)
                texts.append(match[0])
                slots.append(_Slot(number, start + match.start() * share, start + match.end() * share))
    return texts, slots


def _even(words: Sequence[str]) -> list[float]:
    total = max(1, sum(map(len, words)) + len(words) - 1)
    places: list[float] = []
    at = 0
    for word in words:
        places += [1000 * at / total, 1000 * (at + len(word)) / total]
        at += len(word) + 1
    return places


def _matches(words: Sequence[str], known: Sequence[str]) -> dict[int, int]:
    """Return the places in `known` of words, by their places in `words`. Repeats on what is left over, since a model
    may read the parts of a page in another order."""
    counts, others = Counter(words), Counter(known)
    frequent = {word for word in counts if counts[word] * others[word] > _COMMON}  # as the zeros of a long table
    left = [place for place, word in enumerate(words) if word not in frequent]
    right = [place for place, word in enumerate(known) if word not in frequent]
    matches: dict[int, int] = {}
    for round_number in range(_ROUNDS):
        matcher = SequenceMatcher(None, [words[at] for at in left], [known[at] for at in right], autojunk=False)
        found = {
            left[block.a + step]: right[block.b + step]
            for block in matcher.get_matching_blocks()
            if round_number == 0 or block.size > 1  # a single word may stand anywhere
            for step in range(block.size)
        }
        if not found:
            break
        matches |= found
        taken = set(found.values())
        left, right = [at for at in left if at not in found], [at for at in right if at not in taken]
    return matches


def _shared(tokens: Sequence[_Token], slots: Sequence[_Slot], lines: Sequence[TextLine]) -> list[_Slot]:
    """Return a place for each token: the slots, in order, divided among them by their lengths. A token stays in one
    line."""
    runs: list[_Slot] = []
    for slot in slots:
        if runs and runs[-1].line == slot.line and slot.start >= runs[-1].start:
            runs[-1] = runs[-1]._replace(end=max(runs[-1].end, slot.end))
        else:
            runs.append(slot)
    lengths = [max((run.end - run.start) * _length(lines[run.line]), 1e-6) for run in runs]
    weights = [len(token.text) + token.spaced for token in tokens]
    total, unit = sum(lengths), sum(lengths) / max(1, sum(weights))
    members: list[list[int]] = [[] for _ in runs]
    done, run, reached = 0.0, 0, lengths[0]
    for place, weight in enumerate(weights):
        middle = min((done + weight / 2) * unit, total)
        while middle > reached and run < len(runs) - 1:
            run += 1
            reached += lengths[run]
        members[run].append(place)
        done += weight
    result = [runs[0]] * len(tokens)
    for part, places in zip(runs, members, strict=True):
        whole = sum(weights[place] for place in places)
        start = part.start
        for place in places:
            end = start + (part.end - part.start) * weights[place] / whole
            # The space before a word is not part of it.
            gap = (end - start) / weights[place] if tokens[place].spaced and place != places[0] else 0.0
            result[place] = _Slot(part.line, start + gap, end)
            start = end
    return result


def _length(line: TextLine) -> float:
    return line.right - line.left if line.angle in {0, 180} else line.bottom - line.top


def _lines(tokens: Sequence[_Token], places: Sequence[_Slot], lines: Iterable[TextLine]) -> list[TextLine]:
    """Return the tokens as lines, in the order of their first tokens."""
    by_line: dict[int, list[tuple[str, float, float]]] = {}
    before = -1
    for token, place in zip(tokens, places, strict=True):
        words = by_line.setdefault(place.line, [])
        if words and not token.spaced and before == place.line:
            text, start, end = words[-1]
            words[-1] = (text + token.text, min(start, place.start), max(end, place.end))
        else:
            words.append((token.text, place.start, place.end))
        before = place.line
    known = list(lines)
    result = []
    for number, words in by_line.items():
        ordered = sorted(words, key=lambda word: word[1])
        edges = [round(edge) for _, start, end in ordered for edge in (start, max(start + 1, end))]
        result.append(known[number]._replace(text=" ".join(word for word, _, _ in ordered), places=edges))
    return result
