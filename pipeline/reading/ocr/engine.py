"""RapidOCR in two steps, where text is in a picture and what it says: on its own it does not read turned pages."""

import logging
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image

from pipeline.reading.layout.model import area, around

MAX_SIDE_PX = 4_000
"""The longest side of a picture that is not scaled down."""

Point = tuple[float, float]
Quad = tuple[Point, Point, Point, Point]
"""Corners in pixels, clockwise: from the top left one where text is found, from the text's own where it is read."""

_LEAST_SIDE_PX = 736  # The engine enlarges what is smaller.
_FEW = 20
_NEARLY = 0.8
_DARK = 160
_AIR_PX = 30
_FILTER = Image.Resampling.LANCZOS


class Text(NamedTuple):
    """What a piece of a picture says, and how sure the engine is of it and of each of its words (0 to 1)."""

    text: str
    score: float
    words: tuple[float, ...] = ()


class Engine:
    """A loaded engine: about 0.8 GB. It raises its own exceptions and those of OpenCV, onnxruntime and NumPy."""

    def __init__(self, threads: int) -> None:
        from rapidocr import RapidOCR  # noqa: PLC0415  (0.5 GB that pages with a text layer do not need)

        self._engine: Any = RapidOCR(
            params={
                "Global.log_level": "error",
                "Global.use_cls": False,  # It would turn lines that are upright.
                "Global.max_side_len": MAX_SIDE_PX,
                "EngineConfig.onnxruntime.intra_op_num_threads": max(1, min(threads, os.cpu_count() or 1)),
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )
        logging.getLogger("RapidOCR").setLevel(logging.ERROR)

    def look(self, image: Image.Image) -> "Look":
        """Find the text in an RGB image.

        The engine overlooks single words on an otherwise white page (2 of 3 lines at 200 dpi) unless they are small or
        fill the picture. So if it finds little, it looks at half the size, too, and if it finds nothing, at what is not
        white. On full pages, that found icons but no more text.
        """
        quads = self._find(image, (0, 0, *image.size), 1.0)
        share = max(0.5, _LEAST_SIDE_PX / min(image.size))
        if len(quads) < _FEW and share < _NEARLY:
            more = self._find(image, (0, 0, *image.size), share)
            quads += [quad for quad in more if not any(_overlap(quad, known) for known in quads)]
        if not quads and (ink := _ink(image)) is not None:
            quads = self._find(image, ink, 1.0)
        return Look(self._engine, self._engine.load_img(image), quads)

    def _find(self, image: Image.Image, box: tuple[int, int, int, int], share: float) -> list[Quad]:
        """Places of text in a part of the image, looked at in this share of its size."""
        part = image.resize((round((box[2] - box[0]) * share), round((box[3] - box[1]) * share)), _FILTER, box)
        boxes = self._engine(self._engine.load_img(part), use_det=True, use_cls=False, use_rec=False).boxes
        across, down = (box[2] - box[0]) / part.width, (box[3] - box[1]) / part.height
        found = [] if boxes is None else boxes.tolist()
        quads = []
        for corners in found:
            a, b, c, d = ((float(box[0] + x * across), float(box[1] + y * down)) for x, y in corners)
            quads.append((a, b, c, d))
        return quads


class Look:
    """A picture with the places of its text."""

    def __init__(self, engine: Any, pixels: Any, quads: Sequence[Quad]) -> None:
        self._engine = engine
        self._pixels = pixels
        self.quads = quads

    def read(self, quads: Sequence[Quad]) -> list[Text]:
        """What each piece says, read from its first corner to its second."""
        import numpy as np  # noqa: PLC0415  (not needed for text layers)

        if not quads:
            return []
        pieces = self._engine.crop_text_regions(self._pixels, np.array(quads, dtype=np.float32))
        self._engine.return_word_box = True  # for how sure it is of each character
        found = self._engine.recognize_txt(pieces)
        return [
            Text(str(text), float(score), _of_words(str(text), float(score), getattr(info, "confs", ())))
            for text, score, info in zip(found.txts, found.scores, found.word_results, strict=True)
        ]


def _of_words(text: str, score: float, characters: Sequence[float]) -> tuple[float, ...]:
    """How sure the engine is of each word: as of its least sure character, if it says; else as of the whole."""
    if len(characters) != len(text):
        return (score,) * len(text.split())
    return tuple(round(min(characters[word.start() : word.end()]), 3) for word in re.finditer(r"\S+", text))


def _ink(image: Image.Image) -> tuple[int, int, int, int] | None:
    """The box of what is dark, with a margin; None if there is nothing, or if it takes up most of the image."""
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
    """Whether the boxes around them share a fifth of the smaller one."""
    box_a, box_b = (around((x, y, x, y) for x, y in quad) for quad in (a, b))
    left, top = max(box_a[0], box_b[0]), max(box_a[1], box_b[1])
    shared = (left, top, min(box_a[2], box_b[2]), min(box_a[3], box_b[3]))
    return area(shared) > 0.2 * min(area(box_a), area(box_b))
