"""Read lines of text from Tesseract's table of words. The table is not trusted: invalid rows are left out."""

import math
from pathlib import Path
from statistics import fmean

from PIL import Image

from pipeline.reading.layout.certainty import DOUBTFUL
from pipeline.reading.layout.model import Line, around
from pipeline.reading.ocr import images
from pipeline.reading.ocr.combination import combined
from pipeline.reading.ocr.recognition import Reading
from pipeline.reading.ocr.second_opinion import PICTURE, WORDS

NAME = "tesseract"

_MAX_WORDS = 20_000
_MAX_BYTES = 16 * 2**20
_MAX_LENGTH = 200
_WORD = "5"  # the level of rows with words
_COLUMNS = 12
_SIZE_OF_HEIGHT = 0.75


def improved(reading: Reading, picture: Image.Image, folder: Path) -> Reading:
    """Return the reading improved by Tesseract's words, if `second_opinion.read` has put them in this folder. Otherwise
    return it unchanged; if the reading is doubtful, put the picture into the folder for Tesseract."""
    try:
        with (folder / WORDS).open(encoding="utf-8", errors="replace", newline="\n") as file:
            table = file.read(_MAX_BYTES)
    except FileNotFoundError:
        if reading.confidence is not None and reading.confidence < DOUBTFUL:
            images.save(picture.convert("L"), folder / PICTURE, "PPM")
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
    return [_line(words) for words in rows.values()]


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


def _line(words: list[Line]) -> Line:
    left, top, right, bottom = around([word.box for word in words])
    text = " ".join(word.text for word in words)
    sure = tuple(word.sure[0] for word in words)
    return Line(text, left, top, right, bottom, _SIZE_OF_HEIGHT * (bottom - top), sure=sure)
