"""Read lines of text from Tesseract's table of words. The table is not trusted: invalid rows are left out."""

import math
import re
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from unicodedata import name

from PIL import Image, ImageDraw, ImageStat

from pipeline.reading.layout.certainty import DOUBTFUL, UNCERTAIN
from pipeline.reading.layout.model import Line, around
from pipeline.reading.layout.text import RIGHT_TO_LEFT, is_right_to_left
from pipeline.reading.ocr import images, orientation
from pipeline.reading.ocr.combination import combined
from pipeline.reading.ocr.recognition import Reading
from pipeline.reading.ocr.second_opinion import DOUBTFUL_LINES, PAGE, SCRIPT, WORDS

NAME = "tesseract"

_MAX_WORDS = 20_000
_MAX_BYTES = 16 * 2**20
_MAX_LENGTH = 200
_WORD = "5"  # the level of rows with words
_COLUMNS = 12
_SIZE_OF_HEIGHT = 0.75
_GAP = 2.0  # sizes
_LIST_NUMBER = re.compile(r"([.:])(\d+)")
_MARGIN = 0.1
"""By this share of their heights, the boxes of lines are enlarged: letters may reach out of them."""
_KNOWN = 0.8
"""Recognition is less sure of pages in scripts that it does not know."""


def improved(reading: Reading, picture: Image.Image, folder: Path) -> Reading:
    """Return the reading improved by Tesseract's words, if `second_opinion.read` has put them in this folder. Otherwise
    return it unchanged; if the reading is doubtful, put the picture into the folder, made if missing, for Tesseract,
    without the lines that are sure if the page is Latin; else the picture to find the script in, too."""
    try:
        with (folder / WORDS).open(encoding="utf-8", errors="replace", newline="\n") as file:
            table = file.read(_MAX_BYTES)
    except FileNotFoundError:
        if reading.confidence is not None and reading.confidence < DOUBTFUL:
            folder.mkdir(mode=0o700, exist_ok=True)
            grey = picture.convert("L")
            # In a script that recognition does not know, it may be sure of a line and have read only its numbers.
            latin = _is_latin(reading)
            images.save(_without_sure_lines(grey, reading) if latin else grey, folder / DOUBTFUL_LINES, "PPM")
            if latin:
                (folder / SCRIPT).write_text("Script: Latin\n", encoding="utf-8")
            else:
                images.save(grey, folder / PAGE, "PPM")
        return reading
    lines = combined(reading.lines, parse(table, picture.width, picture.height))
    known = set(map(id, reading.lines))
    if all(id(line) in known for line in lines):
        return reading
    characters = sum(len(line.text) for line in lines)
    sure = sum(len(line.text) * fmean(line.sure or (1.0,)) for line in lines) / max(characters, 1)
    return reading._replace(
        lines=lines, confidence=max(reading.confidence or 0.0, sure), engines=(*reading.engines, NAME)
    )


def _is_latin(reading: Reading) -> bool:
    """Whether recognition is sure of most letters of the page, and they are Latin."""
    letters = latin = 0
    for line in reading.lines:
        for word, sure in zip(line.text.split(), line.sure, strict=False):
            own = [letter for letter in word if letter.isalpha()]
            letters += len(own)
            latin += sum("LATIN" in name(letter, "") for letter in own) if sure >= UNCERTAIN else 0
    return (reading.confidence or 0.0) >= _KNOWN and 2 * latin > letters


def _without_sure_lines(grey: Image.Image, reading: Reading) -> Image.Image:
    """Return the picture with paper in place of the lines that are sure. All else stays: the other lines, and what may
    be text that recognition overlooked."""
    cleared, doubtful = grey.copy(), Image.new("L", grey.size)
    clear, keep = ImageDraw.Draw(cleared), ImageDraw.Draw(doubtful)
    for line in reading.lines:
        air = _MARGIN * min(line.right - line.left, line.bottom - line.top)
        left, top, right, bottom = line.left - air, line.top - air, line.right + air, line.bottom + air
        box = ((left, top), (right, top), (right, bottom), (left, bottom))
        corners = orientation.rotated(box, reading.lean, (grey.width / 2, grey.height / 2))  # the picture may lean
        if min(line.sure, default=0.0) >= UNCERTAIN:
            xs, ys = zip(*corners, strict=True)
            first, highest = max(0, int(min(xs))), max(0, int(min(ys)))
            around_it = grey.crop((first, highest, max(first, int(max(xs))) + 1, max(highest, int(max(ys))) + 1))
            clear.polygon(corners, fill=int(ImageStat.Stat(around_it).median[0]))
        else:
            keep.polygon(corners, fill=255)
    cleared.paste(grey, mask=doubtful)  # where boxes overlap
    return cleared


def parse(table: str, width: int, height: int) -> list[Line]:
    """Return the lines that the words of Tesseract's table form, with boxes in pixels; leave out invalid rows."""
    rows: dict[tuple[str, ...], list[Line]] = {}
    for row in table.split("\n", _MAX_WORDS)[:_MAX_WORDS]:
        cells = row.split("\t")
        if len(cells) != _COLUMNS or cells[0] != _WORD:
            continue
        word = _word(cells, width, height)
        if word is not None:
            rows.setdefault(tuple(cells[1:5]), []).append(word)
    leftwards = is_right_to_left("".join(word.text for words in rows.values() for word in words))
    if not leftwards:
        return [_line(words) for words in rows.values()]
    return [_line(_leftward(part)) for words in rows.values() for part in _parts(words)]


def _word(cells: list[str], width: int, height: int) -> Line | None:
    try:
        left, top, across, down, sure = map(float, cells[6:11])
    except ValueError:
        return None
    text = "".join(character for character in cells[11] if character.isprintable() and not character.isspace())
    inside = 0 <= left < left + across <= width and 0 <= top < top + down <= height
    if not text or len(text) > _MAX_LENGTH or not inside or not math.isfinite(sure) or not 0 <= sure <= 100:
        return None
    return Line(text, left, top, left + across, top + down, _SIZE_OF_HEIGHT * down, sure=(round(sure / 100, 3),))


def _parts(words: list[Line]) -> list[list[Line]]:
    """Cut a line at wide gaps: its parts may be cells."""
    parts: list[list[Line]] = []
    for word in words:
        left, _, right, _ = around([other.box for other in parts[-1]]) if parts else word.box
        size = max(other.size for other in [word, *(parts[-1] if parts else [])])
        if not parts or max(word.left - right, left - word.right) > _GAP * size:
            parts.append([])
        parts[-1].append(word)
    return parts


def _leftward(words: list[Line]) -> list[Line]:
    """Return the words of a line on a page read leftwards in reading order. Tesseract gives some lines, which begin
    with a list's number or end with a Latin word, as displayed: from left to right."""
    displayed = all(before.left < word.left for before, word in pairwise(words))
    if not displayed or not any(RIGHT_TO_LEFT.search(word.text) for word in words):
        return words
    runs: list[list[Line]] = []
    latin = False  # whether the last run is of Latin words, and numbers after them
    for word in words:
        leftward = bool(RIGHT_TO_LEFT.search(word.text))
        if latin and not leftward:
            runs[-1].append(word)
        else:
            runs.append([word])
            latin = not leftward and any(map(str.isalpha, word.text))
    ordered = [word for run in reversed(runs) for word in run]
    number = _LIST_NUMBER.fullmatch(ordered[0].text)
    return [ordered[0]._replace(text=number[2] + number[1]), *ordered[1:]] if number else ordered


def _line(words: list[Line]) -> Line:
    left, top, right, bottom = around([word.box for word in words])
    text = " ".join(word.text for word in words)
    sure = tuple(word.sure[0] for word in words)
    return Line(text, left, top, right, bottom, _SIZE_OF_HEIGHT * (bottom - top), sure=sure)
