"""RapidOCR in two steps: where text is in a picture, and what it says. Its own order of work knows no turned pages."""

import logging
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image

MAX_SIDE_PX = 4_000
"""Longest side of a picture that is looked at as it is."""

Point = tuple[float, float]
Quad = tuple[Point, Point, Point, Point]
"""Corners in pixels, clockwise. Where text is found: from the top left one; where it is read: from the text's own."""


class Text(NamedTuple):
    """What a piece of a picture says, and how sure the engine is of it (0 to 1)."""

    text: str
    score: float


class Engine:
    """A loaded engine: about 0.8 GB. It raises types of its own, of OpenCV, of onnxruntime and of NumPy."""

    def __init__(self, threads: int) -> None:
        from rapidocr import RapidOCR  # noqa: PLC0415  (0.5 GB that pages with a text layer do not need)

        self._engine = RapidOCR(
            params={
                "Global.log_level": "error",
                "Global.use_cls": False,  # It turns lines that are upright.
                "Global.max_side_len": MAX_SIDE_PX,
                "EngineConfig.onnxruntime.intra_op_num_threads": max(1, min(threads, os.cpu_count() or 1)),
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )
        logging.getLogger("RapidOCR").setLevel(logging.ERROR)

    def look(self, image: Image.Image) -> "Look":
        """Find the text in an RGB image."""
        pixels = self._engine.load_img(image)
        boxes = self._engine(pixels, use_det=True, use_cls=False, use_rec=False).boxes
        return Look(self._engine, pixels, [] if boxes is None else [_quad(box) for box in boxes.tolist()])


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
        found = self._engine.recognize_txt(pieces)
        return [Text(str(text), float(score)) for text, score in zip(found.txts, found.scores, strict=True)]


def _quad(corners: Sequence[Sequence[float]]) -> Quad:
    a, b, c, d = ((float(x), float(y)) for x, y in corners)
    return (a, b, c, d)
