"""Notice a model that repeats itself without end, while its reply arrives.

Pages repeat themselves, too: dot leaders, empty cells, ruled lines, refrains, labels. So the number of repeats that
counts as endless depends on the repeated unit: a sentence within a paragraph may recur four times, a row of a table a
hundred times.
"""

import re
from collections import Counter, deque
from collections.abc import Iterator

_WINDOW = 4096
"""The characters of the end that are compared. Half of it is the longest unit that is noticed."""
_STEP = 64
_LINES = 100
_PROBE = 16
_CANDIDATES = 100
"""The units that are tried at the end of a text: a row of equal cells is tried after each number of its cells."""

_WORD = re.compile(r"[^\W\d_ـー]{2}|[\u0e00-\u0eff\u3041-\u30fb\u3400-\u9fff\uac00-\ud7af]")
_CELLS = re.compile(r"\||\t|</?t[dhr]\b|<[felux]cel>|<ched>|<rhed>|<nl>")
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,80}>|<\|[^<>|]{0,40}\|>")
_DIGITS = re.compile(r"[0-9]+")
_BOX = re.compile(
    r"(?:\[|\||bbox=\"|\]\(|\|>)\s*+([0-9]{1,5})[,\s]++([0-9]{1,5})[,\s]++([0-9]{1,5})[,\s]++([0-9]{1,5})(?![0-9])"
)
_BOX_LENGTH = 60
_EQUAL_BOXES = 12


class Repetition:
    """Reads a reply piece by piece, in bounded memory and linear time."""

    def __init__(self) -> None:
        self.endless = False
        self._raw = _Tail()
        self._counted = _Tail(counters=True)
        self._unread: list[str] = []
        self._unread_length = 0
        self._line = ""
        self._lines: deque[str] = deque()
        self._line_counts: Counter[str] = Counter()
        self._before = ""
        self._box: tuple[str, ...] = ()
        self._equal_boxes = 0

    def feed(self, piece: str) -> bool:
        """Read the next piece of the reply; return whether its end repeats endlessly."""
        if not self.endless:
            self._unread.append(piece)
            self._unread_length += len(piece)
            if self._unread_length >= _STEP:
                self._read()
        return self.endless

    def close(self) -> bool:
        """Read what is left; return whether the reply repeats endlessly."""
        if not self.endless:
            self._read()
        return self.endless

    def _read(self) -> None:
        text = "".join(self._unread)
        self._unread, self._unread_length = [], 0
        for start in range(0, len(text), _STEP):
            piece = text[start : start + _STEP]
            if (
                self._raw.repeats(piece)
                or self._counted.repeats(piece)
                or self._one_line(piece)
                or self._one_box(piece)
            ):
                self.endless = True
                return

    def _one_line(self, piece: str) -> bool:
        """Whether one line, but for its numbers, makes four fifths of the last hundred that have words."""
        *ended, rest = piece.split("\n")
        for end in ended:
            line, self._line = _DIGITS.sub("0", (self._line + end).strip()), ""
            if not _WORD.search(line) or _CELLS.search(line):
                continue
            self._lines.append(line)
            self._line_counts[line] += 1
            if len(self._lines) > _LINES:
                oldest = self._lines.popleft()
                self._line_counts[oldest] -= 1
                if not self._line_counts[oldest]:
                    del self._line_counts[oldest]
            if len(self._lines) == _LINES and self._line_counts[line] >= _LINES * 4 // 5:
                return True
        self._line = (self._line + rest)[:_WINDOW]
        return False

    def _one_box(self, piece: str) -> bool:
        """Whether many blocks in a row have the same box."""
        text = self._before + piece
        end = 0
        for match in _BOX.finditer(text):
            if match.end() > len(text) - 1:  # the number may go on
                break
            end = match.end()
            self._equal_boxes = self._equal_boxes + 1 if match.groups() == self._box else 0
            self._box = match.groups()
            if self._equal_boxes >= _EQUAL_BOXES:
                return True
        self._before = text[max(end, len(text) - _BOX_LENGTH) :]
        return False


class _Tail:
    """The last characters of a text, and how long they have been repeating one unit. `counters`: all numbers count as
    equal, so that "Item 17. Item 18." repeats; only long repetitions of words count then."""

    def __init__(self, *, counters: bool = False) -> None:
        self._counters = counters
        self._text = ""
        self._unit_length = 0
        self._run = 0

    def repeats(self, piece: str) -> bool:
        """Whether the text with `piece` at its end repeats a unit endlessly."""
        if self._counters:
            # A number may be cut in two by the pieces.
            piece = _DIGITS.sub("0", piece.lstrip("0123456789") if self._text.endswith("0") else piece)
        self._text = (self._text + piece)[-_WINDOW:]
        text = self._text
        before, self._unit_length = self._unit_length, 0
        for length, seen in _runs(text):
            run = seen
            if seen == _WINDOW:
                run = self._run + len(piece) if length == before else seen
                self._unit_length, self._run = length, run
            if _is_endless(text[-length:], run, counters=self._counters):
                return True
        return False


def _runs(text: str) -> Iterator[tuple[int, int]]:
    """Yield (the length of a unit, the characters at the end of the text that repeat it), of units that occur at least
    twice in a row, the shortest first."""
    # A repeated unit puts the last characters into the text once more; most texts end here.
    probe = text[-_PROBE:]
    at = len(text) - _PROBE
    units: list[int] = []
    for _ in range(_CANDIDATES):
        at = text.rfind(probe, 0, at + _PROBE - 1) if at > 0 else -1
        length = len(text) - _PROBE - at
        if at < 0 or length > len(text) // 2:
            return
        if any(length % unit == 0 for unit in units):
            continue
        low, high = _PROBE, len(text) - length
        while low < high:  # how far back the text equals itself, shifted by the unit
            middle = (low + high + 1) // 2
            if text[-middle:] == text[-middle - length : -length]:
                low = middle
            else:
                high = middle - 1
        if low >= length:
            units.append(length)
            yield length, low + length
        if low + length == len(text):
            return


def _is_endless(unit: str, run: int, *, counters: bool) -> bool:
    length = len(unit)
    repeats = run / length
    cells, line = bool(_CELLS.search(unit)), "\n" in unit
    words = bool(_WORD.search(_TAG.sub("", unit + unit)))
    if counters:
        return repeats > 120 if words else repeats > 1500 and not (cells or line)
    if cells:
        return repeats > 120
    if not words:
        return repeats > 120 if line else run > 4000
    if line and length < 150:
        return repeats > 32
    return repeats > 4 * (1 + 3 / length) and run >= 200
