"""Run RapidOCR in two steps, locating and reading text: in one step it cannot read turned pages."""

import logging
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image

from pipeline.reading.layout.model import area, around

MAX_SIDE_PX = 4_000
"""Pictures with a longer side are scaled down."""

Point = tuple[float, float]
Quad = tuple[Point, Point, Point, Point]
"""Corners in pixels, clockwise from the top left: of the picture when located, of the text itself when read."""

_LEAST_SIDE_PX = 736  # The engine enlarges smaller pictures.
_FEW = 20
_NEARLY = 0.8
_DARK = 160
_AIR_PX = 30
_FILTER = Image.Resampling.LANCZOS


class Text(NamedTuple):
    """The text of a piece of a picture, and the confidence in it and in each of its words (0 to 1). `places`: as in
    `Line`."""

    text: str
    score: float
    words: tuple[float, ...] = ()
    places: tuple[int, ...] = ()


class Engine:
    """A loaded engine, about 0.8 GB. It raises exceptions of its own, OpenCV, onnxruntime and NumPy."""

    def __init__(self, threads: int) -> None:
        from rapidocr import RapidOCR  # noqa: PLC0415  (0.5 GB that pages with a text layer do not need)

        self._engine: Any = RapidOCR(
            params={
                "Global.log_level": "error",
                "Global.use_cls": False,  # It would turn upright lines.
                "Global.max_side_len": MAX_SIDE_PX,
                "EngineConfig.onnxruntime.intra_op_num_threads": max(1, min(threads, os.cpu_count() or 1)),
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )
        logging.getLogger("RapidOCR").setLevel(logging.ERROR)

    def locate(self, image: Image.Image) -> "LocatedText":
        """Locate the text in an RGB image, without reading it: `LocatedText.read` does.

        The engine overlooks single words on an otherwise white page (2 of 3 lines at 200 dpi) unless they are small or
        fill the picture. So if it finds little, it also searches at half the size; if it finds nothing, it searches the
        dark part alone. On full pages, these searches found icons but no more text.
        """
        quads = self._find(image, (0, 0, *image.size), 1.0)
        share = max(0.5, _LEAST_SIDE_PX / min(image.size))
        if len(quads) < _FEW and share < _NEARLY:
            more = self._find(image, (0, 0, *image.size), share)
            quads += [quad for quad in more if not any(_overlap(quad, known) for known in quads)]
        if not quads and (ink := _ink(image)) is not None:
            quads = self._find(image, ink, 1.0)
        return LocatedText(self._engine, self._engine.load_img(image), quads)

    def _find(self, image: Image.Image, box: tuple[int, int, int, int], share: float) -> list[Quad]:
        """Return the places of text in a part of the image, searched at this share of its size."""
        part = image.resize((round((box[2] - box[0]) * share), round((box[3] - box[1]) * share)), _FILTER, box)
        boxes = self._engine(self._engine.load_img(part), use_det=True, use_cls=False, use_rec=False).boxes
        across, down = (box[2] - box[0]) / part.width, (box[3] - box[1]) / part.height
        located = [] if boxes is None else boxes.tolist()
        quads = []
        for corners in located:
            a, b, c, d = ((float(box[0] + x * across), float(box[1] + y * down)) for x, y in corners)
            quads.append((a, b, c, d))
        return quads


class LocatedText:
    """A picture and the places of its text."""

    def __init__(self, engine: Any, pixels: Any, quads: Sequence[Quad]) -> None:
        self._engine = engine
        self._pixels = pixels
        self.quads = quads

    def read(self, quads: Sequence[Quad]) -> list[Text]:
        """Return the text at each of these places of the picture, in their order, read in the direction from a place's
        first corner to its second."""
        import numpy as np  # noqa: PLC0415  (not needed for text layers)

        if not quads:
            return []
        pieces = self._engine.crop_text_regions(self._pixels, np.array(quads, dtype=np.float32))
        self._engine.return_word_box = True  # for the confidence in each character
        recognised = self._engine.recognize_txt(pieces)
        return [
            Text(
                str(text),
                float(score),
                _of_words(str(text), float(score), getattr(info, "confs", ())),
                _places(
                    str(text),
                    [column for word in getattr(info, "word_cols", ()) for column in word],
                    float(getattr(info, "line_txt_len", 0)),
                ),
            )
            for text, score, info in zip(recognised.txts, recognised.scores, recognised.word_results, strict=True)
        ]


def _of_words(text: str, score: float, characters: Sequence[float]) -> tuple[float, ...]:
    """Return each word's confidence: that of its least certain character if known, otherwise that of the text."""
    if len(characters) != len(text):
        return (score,) * len(text.split())
    return tuple(round(min(characters[word.start() : word.end()]), 3) for word in re.finditer(r"\S+", text))


def _places(text: str, columns: Sequence[int], length: float) -> tuple[int, ...]:
    """Return the start and the end of each word in thousandths of the text's length; empty if unknown. `columns`: where
    the engine saw each character that is not a space, in the unit of `length`."""
    words = text.split()
    if length <= 0 or len(columns) != sum(map(len, words)) or not words:
        return ()
    # A character's column is somewhere inside it: half a character of the word's usual width belongs to each side.
    edges: list[float] = []
    at = 0
    for word in words:
        first, last = columns[at], columns[at + len(word) - 1]
        half = (last - first) / (len(word) - 1) / 2 if len(word) > 1 else 1.0
        before = (columns[at - 1] + first) / 2 if at else 0.0
        edges += [max(before, first - half), last + half + 0.5]
        at += len(word)
    for end in range(1, len(edges) - 1, 2):  # words do not overlap
        edges[end] = min(edges[end], edges[end + 1])
    return tuple(min(1000, max(0, round(edge / length * 1000))) for edge in edges)


def _ink(image: Image.Image) -> tuple[int, int, int, int] | None:
    """Return the box of the dark pixels, with a margin; None without dark pixels or if they fill most of the image."""
    dark = image.convert("L").point(lambda value: 255 if value < _DARK else 0).getbbox()
    if dark is None or (dark[2] - dark[0]) * (dark[3] - dark[1]) > 0.5 * image.width * image.height:
        return None
    left, top, right, bottom = dark
    return (
        max(0, left - _AIR_PX),
        max(0, top - _AIR_PX),
        min(image.width, right + _AIR_PX),
        min(image.height, bottom + _AIR_PX),
    )


def _overlap(a: Quad, b: Quad) -> bool:
    """Whether the boxes around the quads share a fifth of the smaller box."""
    box_a, box_b = (around((x, y, x, y) for x, y in quad) for quad in (a, b))
    left, top = max(box_a[0], box_b[0]), max(box_a[1], box_b[1])
    shared = (left, top, min(box_a[2], box_b[2]), min(box_a[3], box_b[3]))
    return area(shared) > 0.2 * min(area(box_a), area(box_b))
