"""Names frames without a window title after large text in the middle, not after toolbars."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from pipeline.flows.screenshots.rules.schemas import clipped

MAX_HEADING = 80
DASHES = re.compile(r"(?<!\s)\s+[-–—|·]\s+")
"""The separators between document and program in a window's title."""
FILE = re.compile(
    r"(?<![\w./@-])[\w-]+(?:\.[\w-]+)*\.(?:py|ts|tsx|js|rs|go|java|c|cpp|h|md|txt|pdf|docx?|xlsx?|pptx?"
    r"|csv|json|ya?ml|toml|sql|html?|css|sh|ipynb|png|jpe?g)\b",
    re.IGNORECASE,
)
_LEAST_LETTERS = 5
_WIDE = 3
"""The letters that a Chinese, Japanese or Korean character counts as."""
_LARGE = 1.25
"""Multiple of a frame's usual text size: measured sizes of one font differ by less."""
_BAR = 0.12
"""The upper share of a frame in which titles of windows stand."""
_TOP = 0.045
"""The same for a window that fills the screen: its menus are below, where a file's name rarely names the window."""
_CENTRED, _TOUCHES, _NEAR = 0.06, 0.01, 0.2
_EDGES = (0.15, 0.12, 0.85, 0.95)
"""Left, top, right and bottom: lines wholly outside are more often bars than content."""

_CONTROLS = re.compile(
    r"\b(?:file|edit|view|go|run|insert|format|styles?|tools?|window|help|history|bookmarks|selection|terminal|table|form|"
    r"home|autosave|off|back|forward|reload|search|settings|options|share|save|close|undo|redo|copy|paste|menu|activities|applications|"
    r"places|log ?in|log ?out|sign ?in|sign ?up|support|pricing|products|most visited|getting started|"
    r"datei|bearbeiten|ansicht|chronik|lesezeichen|extras|hilfe|einfügen|fenster|suchen|einstellungen|anmelden|abmelden|"
    r"fichier|édition|affichage|historique|marque-pages|outils|aide|insertion|fenêtre|"
    r"archivo|editar|ver|historial|marcadores|herramientas|ayuda|ventana|insertar)\b"
    r"|文件|编辑|查看|视图|插入|格式|工具|窗口|帮助|历史|书签|转到|选择|运行|终端|设置|搜索"
    r"|ファイル|編集|表示|挿入|書式|ツール|ウィンドウ|ヘルプ|履歴|ブックマーク",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"://|^\s*www\.|^\s*[\w-]+(?:\.[\w-]+)+/\S*\s*$")
_CLOCK_WORDS = re.compile(
    r"\b(?:(?:mon|tues?|wed(?:nes)?|thur?s?|fri|sat(?:ur)?|sun)(?:day)?|january|february|march|april|may|june|july|august|"
    r"september|october|november|december|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|am|pm|utc)\b",
    re.IGNORECASE,
)


class Box(NamedTuple):
    """Left, top, right and bottom, as shares of the frame's width and height."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def is_at_edge(self) -> bool:
        left, top, right, bottom = _EDGES
        return self.right < left or self.bottom < top or self.left > right or self.top > bottom


@dataclass(frozen=True)
class SeenLine:
    """A recognised line, and its box if known."""

    text: str
    box: Box | None = None


def lines_of(text: str) -> list[SeenLine]:
    """Split a text without boxes into lines."""
    return [SeenLine(" ".join(line.split())) for line in text.splitlines() if line.strip()]


def telling(frames: Mapping[int, Sequence[SeenLine]]) -> dict[int, list[SeenLine]]:
    """Return each frame's lines that may name it: no menus, addresses or clocks, and no lines that appear at the edges
    of several frames."""
    edges = Counter(text for lines in frames.values() for text in {_key(line) for line in lines if _is_at_edge(line)})
    by_frame = {}
    for frame, lines in frames.items():
        usual = _usual_height(lines)
        by_frame[frame] = [
            line
            for line in lines
            if not _is_control(line, usual)
            and not _is_address(line.text)
            and not _is_clock(line.text)
            and not (_is_at_edge(line) and edges[_key(line)] > 1)
        ]
    return by_frame


def heading(lines: Sequence[SeenLine]) -> str:
    """Return the line, of those that `telling` returns, by which a person would name the frame; empty if none has
    enough letters."""
    usual = _usual_height(lines)
    worded = [line for line in lines if _letters(line.text) >= _LEAST_LETTERS]
    # Of equally good lines, the highest on the frame.
    best = max(worded, key=lambda line: _weight(line, usual), default=None)
    return clipped(best.text, MAX_HEADING) if best else ""


def last_resort(lines: Iterable[SeenLine]) -> str:
    """Return the first line with enough letters that is not a menu, even a date or an address; empty without one."""
    worded = (line for line in lines if _letters(line.text) >= _LEAST_LETTERS and not _is_control(line, 0.0))
    return next((clipped(line.text, MAX_HEADING) for line in worded), "")


def window_title(lines: Sequence[SeenLine]) -> str:
    """Return a window's title from its bar: `pool.py - Code`, a file's name, or a line alone in the middle; else empty.

    Buttons and fields may stand beside it. Of several tabs side by side, none counts: the active one is unknown.
    """
    for line in lines:
        box = line.box
        if box is None or box.bottom > _BAR or _letters(line.text) < _LEAST_LETTERS or _is_control(line, 0.0):
            continue
        named = len(DASHES.split(line.text)) > 1 or bool(FILE.search(line.text) and box.bottom <= _TOP)
        is_name = not _is_address(line.text) and not _is_clock(line.text)
        centred = is_name and box.bottom <= _TOP and abs(box.left + box.right - 1) < _CENTRED
        reach = 1.0 if named else _NEAR
        if (named or centred) and not any(_is_beside(other, box, reach) for other in lines if other is not line):
            return line.text
    return ""


def _is_beside(line: SeenLine, box: Box, reach: float) -> bool:
    """Whether a line that is not a button stands in the same row, at most `reach` away.

    A line that touches the box continues it, and one or two characters are an icon.
    """
    if line.box is None or _letters(line.text) < _LEAST_LETTERS - 1 or _is_control(line, 0.0):
        return False
    shared = min(line.box.bottom, box.bottom) - max(line.box.top, box.top)
    apart = max(line.box.left - box.right, box.left - line.box.right)
    in_row = shared > 0.5 * min(line.box.bottom - line.box.top, box.bottom - box.top)
    return in_row and abs(apart) >= _TOUCHES and apart <= reach


def _weight(line: SeenLine, usual: float) -> float:
    weight = 1.0
    if line.box is not None:
        times = (line.box.bottom - line.box.top) / usual if usual else 1.0
        weight = times**2 if times >= _LARGE else 1.0
        weight *= 0.5 if line.box.is_at_edge else 1.0
    return weight * (0.7 if _letters(line.text) < 8 or len(line.text) > MAX_HEADING else 1.0)


def _usual_height(lines: Sequence[SeenLine]) -> float:
    heights = [line.box.bottom - line.box.top for line in lines if line.box is not None]
    return median(heights) if heights else 0.0


def _is_at_edge(line: SeenLine) -> bool:
    return line.box is not None and line.box.is_at_edge


def _is_control(line: SeenLine, usual: float) -> bool:
    """Whether a line has mostly words of menus and buttons. Large lines are titles of pages instead."""
    if line.box is not None and usual and (line.box.bottom - line.box.top) >= _LARGE * usual:
        return False
    return _letters(_CONTROLS.sub("", line.text)) <= 0.4 * _letters(line.text)


def _is_address(text: str) -> bool:
    return bool(_ADDRESS.search(text))


def _is_clock(text: str) -> bool:
    rest = _CLOCK_WORDS.sub("", text)
    return rest != text and _letters(rest) < 3


def _letters(text: str) -> int:
    return sum(_WIDE if ord(letter) >= 0x2E80 else 1 for letter in text if letter.isalpha())


def _key(line: SeenLine) -> str:
    return line.text.casefold()
