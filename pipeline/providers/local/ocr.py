"""Text recognition on this machine, by an engine that is made when the first picture needs it.

One engine serves a process (about 0.8 GB), one picture at a time. It is made after a fork, never before: its threads
do not survive one. Its models ship in its wheel, so nothing is downloaded.
"""

import logging
import math
import os
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image, ImageOps

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.providers.local.images import shrink
from pipeline.providers.local.layout.model import Line

MAX_PIXELS = 3_000_000
"""Pixels of a picture that are looked at; larger ones are scaled down. An A4 page at 175 dpi: more costs memory and
time and recognises no more."""

_MAX_SIDE_PX = 4_000
_MAX_ASPECT = 7  # The engine enlarges the shorter side to 736 pixels: a strip must not become a gigapixel.
_SIZE_OF_HEIGHT = 0.75  # Boxes are drawn around ascenders, descenders and some air.


class _Shared:
    """The process's engine and the lock around it; both start anew in a forked child."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.lock = threading.Lock()
        self.engine: Any = None


_SHARED = _Shared()


class Found(NamedTuple):
    """One recognised piece of text; `corners` are (x, y) in pixels, clockwise from its own top left."""

    text: str
    corners: Sequence[Sequence[float]]


def recognise(image: Image.Image, threads: int) -> list[Line]:
    """Lines of text in an RGB image, with boxes in its pixels; none for a blank one.

    `threads` (at least 1) are what the process's engine computes with: the cores divided by the processes that
    recognise. The first call of a process decides. Raises `UnitError`: `ocr_unavailable` (permanent) where there is
    no engine, `ocr_failed` (transient) where it could not read the image.
    """
    looked_at = bounded(image)
    with _SHARED.lock:
        if _SHARED.engine is None:
            _SHARED.engine = _make_engine(threads)
        found = _run(_SHARED.engine, padded(looked_at))
    enlarged = image.width / looked_at.width
    lines = (as_line(piece) for piece in found if piece.text.strip())
    return [_enlarged(line, enlarged) for line in lines]


def _enlarged(line: Line, scale: float) -> Line:
    left, top, right, bottom, size = (value * scale for value in line[1:6])
    return Line(line.text, left, top, right, bottom, size)


def bounded(image: Image.Image) -> Image.Image:
    """The image, or a smaller one that the engine has memory for."""
    image = shrink(image, MAX_PIXELS)
    return image if max(image.size) <= _MAX_SIDE_PX else ImageOps.contain(image, (_MAX_SIDE_PX, _MAX_SIDE_PX))


def padded(image: Image.Image) -> Image.Image:
    """The image at the top left of a white one that is no long strip."""
    least = math.ceil(max(image.size) / _MAX_ASPECT)
    if min(image.size) >= least:
        return image
    canvas = Image.new("RGB", (max(image.width, least), max(image.height, least)), "white")
    canvas.paste(image, (0, 0))
    return canvas


def as_line(piece: Found) -> Line:
    """A recognised piece as a line; text that leans a little keeps the height that it has along its own baseline."""
    xs, ys = [float(x) for x, _ in piece.corners], [float(y) for _, y in piece.corners]
    across, along = max(xs) - min(xs), max(ys) - min(ys)
    if along > 1.5 * across:  # runs up or down the page
        return Line(piece.text, min(xs), min(ys), max(xs), max(ys), _SIZE_OF_HEIGHT * across)
    height = (ys[3] - ys[0] + ys[2] - ys[1]) / 2 or along
    middle = sum(ys) / 4
    top, bottom = middle - height / 2, middle + height / 2
    return Line(piece.text, min(xs), min(top, bottom), max(xs), max(top, bottom), _SIZE_OF_HEIGHT * abs(height))


def _make_engine(threads: int) -> Any:
    try:
        from rapidocr import RapidOCR  # noqa: PLC0415  (0.5 GB that pages with a text layer do not need)

        engine = RapidOCR(
            params={
                "Global.log_level": "error",
                "Global.use_cls": False,  # It turns lines that are upright.
                "Global.max_side_len": _MAX_SIDE_PX,
                "EngineConfig.onnxruntime.intra_op_num_threads": max(1, min(threads, os.cpu_count() or 1)),
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )
    except Exception as error:
        raise UnitError(
            f"The OCR engine cannot be started: {error}", kind=ErrorKind.PERMANENT, code="ocr_unavailable"
        ) from error
    logging.getLogger("RapidOCR").setLevel(logging.ERROR)
    return engine


def _run(engine: Any, image: Image.Image) -> list[Found]:
    try:
        answer = engine(image)
        texts, boxes = answer.txts, answer.boxes
        if texts is None or boxes is None:
            return []
        return [Found(str(text), box.tolist()) for text, box in zip(texts, boxes, strict=True)]
    except Exception as error:  # It raises types of its own, of OpenCV, of onnxruntime and of NumPy.
        raise UnitError(f"Text recognition failed: {error}", code="ocr_failed") from error
