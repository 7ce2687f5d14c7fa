"""Program listings with a number beside each line: the numbers are not part of the code."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from pipeline.reading.layout.cells import sub_line, text_size
from pipeline.reading.layout.model import DESCENT, Line
from pipeline.reading.layout.rows import rows

_MIN_NUMBERS = 3
_ALIGNED = 0.3  # text sizes between the right ends of two numbers
_STEP = 1.45  # text sizes from a line of code to the next, at most: the rows of tables are further apart
_LEVEL = 0.15  # text sizes between the base lines of a number and of the code beside it


def split(lines: Sequence[Line]) -> tuple[Sequence[Line], list[Line]]:
    """Return (the lines without the numbers of listings, these numbers as lines).

    The numbers count the lines of code, one below the other, in another type than the code beside them."""
    level = [line for line in lines if line.angle == 0 and line.spans]
    numbers = [line for line in level if _is_numbered(line)]
    code = [line for line in level if line.spans[-1].style.mono]
    if len(numbers) < _MIN_NUMBERS or not code:
        return lines, []
    beside = {id(line): after for row in rows(level) for line, after in pairwise(row.cells)}

    def has_code(line: Line) -> bool:
        after = beside.get(id(line))
        return len(line.spans) > 1 or (after is not None and after.spans[0].style.mono and _are_level(line, after))

    counting = [
        line
        for run in _runs(numbers, _STEP * text_size(code))
        if len(run) >= _MIN_NUMBERS and 2 * sum(map(has_code, run)) > len(run)
        for line in run
    ]
    held = {id(line) for line in counting}
    left = [line for line in lines if id(line) not in held or len(line.spans) > 1]
    kept = [sub_line(line, line.spans[1:]) if id(line) in held else line for line in left]
    return kept, [sub_line(line, line.spans[:1]) for line in counting]


def _is_numbered(line: Line) -> bool:
    """Whether the line is a number, with nothing but code behind it."""
    text, style = line.spans[0].text, line.spans[0].style
    is_number = text.isascii() and text.isdecimal() and len(text) < 5 and not style.mono and not style.shift
    return is_number and all(span.style.mono for span in line.spans[1:])


def _runs(numbers: Sequence[Line], step: float) -> Iterator[list[Line]]:
    """Yield the numbers in runs: each is one more than the number above, at most `step` away, and ends where that
    ends."""
    open_runs: dict[int, list[Line]] = {}  # by their next number
    for line in sorted(numbers, key=lambda line: line.bottom):
        number = int(line.spans[0].text)
        run = open_runs.pop(number, [])
        if run and not (
            line.bottom - run[-1].bottom < step
            and abs(line.spans[0].right - run[-1].spans[0].right) < _ALIGNED * line.size
        ):
            yield run
            run = []
        if number + 1 in open_runs:
            yield open_runs[number + 1]
        run.append(line)
        open_runs[number + 1] = run
    yield from open_runs.values()


def _are_level(a: Line, b: Line) -> bool:
    return abs((a.bottom - DESCENT * a.size) - (b.bottom - DESCENT * b.size)) < _LEVEL * b.size
