"""Run RapidOCR in two steps, locating and reading text: in one step it cannot read turned pages."""

import logging
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, ImageDraw

from pipeline.reading.layout.model import area, around

MAX_SIDE_PX = 4_000
"""Pictures with a longer side are scaled down."""

Point = tuple[float, float]
Quad = tuple[Point, Point, Point, Point]
"""Corners in pixels, clockwise from the top left: of the picture when located, of the text itself when read."""

_MODELS = Path(__file__).parent / "models"
"""RapidOCR's own models in 8-bit integers (`deploy/smaller_models.py`): they search three times as fast, and read one
and a half times as fast."""
_SEARCHED_SIDE_PX = 640
"""The shorter side of the picture that is searched first. Text of 10 points on A4 is found as well as at twice the
side, in a fifth of the time."""
_LEAST_SIDE_PX = 736
"""Smaller pictures are enlarged to this side: some are scans at 50 dpi."""
_LEAST_SEEN_PX, _SEEN_PX = 10.0, 13.0
"""Heights of text in the searched picture. With lines lower than the first, the picture is searched again at the size
that makes them as high as the second: at 8 pixels, neighbouring lines merge."""
_LOWEST = 10
"""One line in this many decides whether lines are low."""
_NARROWEST_PX = 192
"""The engine reads each piece in its own width, or this wide if it is narrower: narrower pieces lose their first sign.
Its own 320 pixels, and batches as wide as their widest piece, take half as long again without a better reading."""
_STEP = 32
"""The detector's pictures have multiples of this many pixels a side."""
_GROWTH, _SMALL_GROWTH = 1.6, 1.1
"""The detector sees the middle of each line, whose box grows by this share of its height. In small pictures the middle
seems higher: the same growth would reach into neighbouring lines, and make the letters to read smaller."""
_FEW = 20
_NEARLY = 0.8
_DARK = 160
_AIR_PX = 30
_REDUCING, _ENLARGING = Image.Resampling.LANCZOS, Image.Resampling.BILINEAR


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
                "Det.limit_side_len": 32,  # `locate` chooses the size.
                "Det.model_path": str(_MODELS / "PP-OCRv6_det_small_int8.onnx"),
                "Rec.model_path": str(_MODELS / "PP-OCRv6_rec_small_int8.onnx"),
                "Rec.rec_batch_num": 1,
                "Rec.rec_img_shape": [3, 48, _NARROWEST_PX],
                "EngineConfig.onnxruntime.intra_op_num_threads": max(1, min(threads, os.cpu_count() or 1)),
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )
        logging.getLogger("RapidOCR").setLevel(logging.ERROR)
        self._detector: Any = self._engine._load_det_model()  # type: ignore[no-untyped-call]  # noqa: SLF001

    def locate(self, image: Image.Image) -> "LocatedText":
        """Locate the text in an RGB image, without reading it: `LocatedText.read` does.

        Searching takes time by the pixel, so search a small picture first, and a larger one if the text is low in it.
        If that finds few lines, search the rest of the ink at full size: the engine overlooks single words on an
        otherwise white page unless they are small or fill the picture.
        """
        side = min(image.size)
        share = (_SEARCHED_SIDE_PX if side >= _LEAST_SIDE_PX else _LEAST_SIDE_PX) / side
        quads = self._find(image, (0, 0, *image.size), share)
        heights = sorted(min(math.dist(a, b), math.dist(b, c)) * share for a, b, c, _ in quads)
        if heights and share < _NEARLY and (low := heights[len(heights) // _LOWEST]) < _LEAST_SEEN_PX:
            share = min(1.0, share * _SEEN_PX / low)
            quads = self._find(image, (0, 0, *image.size), share)
        if len(quads) < _FEW and share < 1 and (ink := _ink(image, quads)) is not None:
            more = self._find(image, ink, 1.0)
            quads += [quad for quad in more if not any(_overlap(quad, known) for known in quads)]
        return LocatedText(self._engine, self._engine.load_img(image), quads)

    def _find(self, image: Image.Image, box: tuple[int, int, int, int], share: float) -> list[Quad]:
        """Return the places of text in a part of the image, searched at this share of its size.

        The detector's map of text is enlarged before places are taken from it, so that they are as exact as the image.
        """
        import cv2  # noqa: PLC0415  (not needed for text layers)

        left, top, right, bottom = box
        across, down = (_STEP * max(1, round(side * share / _STEP)) for side in (right - left, bottom - top))
        part = self._engine.load_img(image.resize((across, down), _REDUCING if share < 1 else _ENLARGING, box))
        chances = self._detector.session(self._detector.get_preprocess()(part))[0, 0]
        if share < 1:
            chances = cv2.resize(chances, (right - left, bottom - top))
        self._detector.postprocess_op.unclip_ratio = _GROWTH if share >= _NEARLY else _SMALL_GROWTH
        boxes, _ = self._detector.postprocess_op(chances[None, None], (bottom - top, right - left))
        quads = []
        for corners in self._detector.sorted_boxes(boxes):
            a, b, c, d = ((float(left + x), float(top + y)) for x, y in corners)
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


def _ink(image: Image.Image, quads: Sequence[Quad]) -> tuple[int, int, int, int] | None:
    """Return the box of the dark pixels outside of the quads, with a margin; None if there are none."""
    grey = image.convert("L")
    draw = ImageDraw.Draw(grey)
    for quad in quads:
        draw.polygon(quad, fill=255)
    dark = grey.point(lambda value: 255 if value < _DARK else 0).getbbox()
    if dark is None:
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
