"""Furigana: small kana beside Chinese characters that say how to read them."""

import re
from collections.abc import Sequence

from pipeline.reading.layout.model import Line

_KANA = re.compile(r"[\u3041-\u30ff\s]+")
_CHINESE = re.compile(r"[\u3400-\u9fff\U00020000-\U0003134f]")
_SMALLER = 0.65  # than the text beside them
_NEAR = 0.7  # text sizes
_MOST = 1_000_000


def split(lines: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """Return (lines, the furigana beside them); read between the lines, furigana would tear their sentences apart."""
    small = [line for line in lines if _KANA.fullmatch(line.text)]
    chinese = [line for line in lines if _CHINESE.search(line.text)] if small else []
    if len(small) * len(chinese) > _MOST:
        return list(lines), []
    furigana = [line for line in small if any(_belongs(line, text) for text in chinese)]
    held = {id(line) for line in furigana}
    return [line for line in lines if id(line) not in held], furigana


def _belongs(kana: Line, text: Line) -> bool:
    if kana.angle != text.angle or kana.size > _SMALLER * text.size:
        return False
    if text.angle == 90:
        away, start, end = kana.left - text.right, kana.top - text.top, text.bottom - kana.bottom
    else:
        away, start, end = text.top - kana.bottom, kana.left - text.left, text.right - kana.right
    return -_NEAR * text.size < away < _NEAR * text.size and min(start, end) > -text.size
