"""Program listings with a number beside each line: the numbers are not part of the code."""

from collections.abc import Sequence

from pipeline.reading.layout.cells import sub_line, text_size
from pipeline.reading.layout.model import Line

_MIN_NUMBERS = 3
_ALIGNED = 0.3  # text sizes between the right ends of two numbers
_STEP = 1.45  # text sizes from a line of code to the next, at most: the rows of tables are further apart
_LEVEL = 0.15  # text sizes between the base lines of a number and of the code beside it
_DESCENT = 0.25  # text sizes from a base line to a line's foot


def split(lines: Sequence[Line]) -> tuple[Sequence[Line], list[Line]]:
    """Return (the lines without the numbers of listings, these numbers as lines).

    The numbers count the lines of code, one below the other, in another type than the code beside them."""
    numbers = [line for line in lines if _is_numbered(line)]
    code = [line for line in lines if line.angle == 0 and line.spans and line.spans[-1].style.mono]
    if len(numbers) < _MIN_NUMBERS or not code:
        return lines, []
    step = _STEP * text_size(code)
    counting = [line for run in _runs(numbers, step) if _count_code(run, code) for line in run]
    held = {id(line) for line in counting}
    left = [line for line in lines if id(line) not in held or len(line.spans) > 1]
    code = [sub_line(line, line.spans[1:]) if id(line) in held else line for line in left]
    return code, [sub_line(line, line.spans[:1]) for line in counting]


def _is_numbered(line: Line) -> bool:
    """Whether the line is a number, with nothing but code behind it."""
    if line.angle or not line.spans or line.spans[0].style.mono or line.spans[0].style.shift:
        return False
    text = line.spans[0].text
    return text.isascii() and text.isdecimal() and len(text) < 5 and all(span.style.mono for span in line.spans[1:])


def _runs(numbers: Sequence[Line], step: float) -> list[list[Line]]:
    """Return the numbers in runs: each is one more than the number above, at most `step` away, and ends where that
    ends."""
    runs: list[list[Line]] = []
    for line in sorted(numbers, key=lambda line: line.bottom):
        for run in runs[::-1]:
            before = run[-1]
            near = abs(before.spans[0].right - line.spans[0].right) < _ALIGNED * line.size
            follows = int(line.spans[0].text) - int(before.spans[0].text) == 1
            if near and follows and line.bottom - before.bottom < step:
                run.append(line)
                break
        else:
            runs.append([line])
    return [run for run in runs if len(run) >= _MIN_NUMBERS]


def _count_code(run: Sequence[Line], code: Sequence[Line]) -> bool:
    """Whether code is beside most of the numbers."""

    def is_beside(line: Line, other: Line) -> bool:
        rise = (other.bottom - _DESCENT * other.size) - (line.bottom - _DESCENT * line.size)
        return abs(rise) < _LEVEL * other.size and other.left > line.right

    beside = [len(line.spans) > 1 or any(is_beside(line, other) for other in code) for line in run]
    return 2 * sum(beside) > len(run)
