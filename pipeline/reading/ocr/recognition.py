"""Recognise text on this machine. The first picture that needs the engine starts it.

One engine (about 0.8 GB) serves a process, one picture at a time. It must start after a fork, since its threads do not
survive a fork. Its wheel contains its models, so nothing is downloaded.
"""

import math
import os
import threading
from typing import NamedTuple

from PIL import Image

from pipeline.engine.errors import ErrorKind, UnitError, told
from pipeline.reading.layout.certainty import DOUBTFUL, UNCERTAIN
from pipeline.reading.layout.model import Line, Rule
from pipeline.reading.ocr import direction, markers, orientation, typography
from pipeline.reading.ocr.engine import MAX_SIDE_PX, Engine
from pipeline.reading.ocr.images import shrink
from pipeline.reading.sandbox.limits import MAX_PIXELS

_USUAL_PIXELS = 3_000_000
_USUAL_DPI = 200

_MAX_ASPECT = 7  # The engine enlarges the shorter side to 736 pixels: a strip must not become a gigapixel.


class _Shared:
    """The process's engine and its lock; a forked child starts with new ones."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.lock = threading.Lock()
        self.engine: Engine | None = None


_SHARED = _Shared()


class Reading(NamedTuple):
    """The text of a picture.

    `confidence`: the engine's confidence, 0 to 1; None if nothing looks like text. `lean`: the degrees that the picture
    leans clockwise. `rules`: the rules in the picture, if the caller searched for them."""

    lines: list[Line]
    confidence: float | None
    lean: float = 0.0
    engines: tuple[str, ...] = ("rapidocr",)
    rules: tuple[Rule, ...] = ()

    @property
    def is_unsure(self) -> bool:
        """Whether a word may be wrong, or something that looks like text could not be read."""
        doubtful = self.confidence is not None and self.confidence < DOUBTFUL
        return doubtful or any(sure < UNCERTAIN for line in self.lines for sure in line.sure)


def recognise(image: Image.Image, threads: int) -> list[Line]:
    """Return the lines of text in an RGB image, with boxes in its pixels. Raises `UnitError` if recognition fails."""
    return read(image, threads).lines


def read(image: Image.Image, threads: int) -> Reading:
    """Return the lines of text in an RGB image, with boxes in its pixels, the confidence in them, and the image's lean;
    no lines for a blank image.

    Each line has its angle. In a picture that leans, boxes are placed as if it did not.

    The process's engine computes with `threads` (at least 1): the cores divided by the processes that recognise. The
    first call of a process decides. Raises `UnitError`: `ocr_unavailable` (permanent) without an engine, `ocr_failed`
    (transient) if the engine cannot read the image.
    """
    smaller = bounded(image)
    with _SHARED.lock:
        try:
            engine = _SHARED.engine = _SHARED.engine or Engine(threads)
        except Exception as error:
            message = f"The OCR engine cannot be started: {told(error)}"
            raise UnitError(message, kind=ErrorKind.PERMANENT, code="ocr_unavailable") from error
        try:
            located = engine.locate(padded(smaller))
            pieces = direction.read_pieces(located.quads, located.read)
        except Exception as error:  # types of the engine, OpenCV, onnxruntime and NumPy
            raise UnitError(f"Text recognition failed: {told(error)}", code="ocr_failed") from error
    enlarged = image.width / smaller.width
    grey = smaller.convert("L")
    legible = direction.legible(pieces)
    marked = markers.marked(legible, grey)
    lines = typography.typed(orientation.as_lines(marked, (smaller.width / 2, smaller.height / 2)), legible, grey)
    lean = orientation.skew([piece.corners for piece in legible])
    return Reading([orientation.scaled(line, enlarged) for line in lines], direction.confidence(pieces), lean)


def threads_for(processes: int) -> int:
    """Return how many threads, at least 1, each of `processes` processes that recognise at the same time should use."""
    return max(1, (os.cpu_count() or 1) // processes)


def pixels_at(dpi: int) -> int:
    """Return how many pixels the picture of a page has at most at this resolution: those of A4 at 175 dpi, more only if
    `dpi` exceeds 200.

    More pixels cost memory and time without improving recognition of text of common sizes.
    """
    return min(MAX_PIXELS, round(_USUAL_PIXELS * max(1.0, dpi / _USUAL_DPI) ** 2))


def bounded(image: Image.Image) -> Image.Image:
    """Return the image, or a smaller one that fits the engine's memory."""
    image = shrink(image, MAX_PIXELS)
    if max(image.size) <= MAX_SIDE_PX:
        return image
    scale = MAX_SIDE_PX / max(image.size)
    # A line one pixel wide stays one pixel wide: `ImageOps.contain` would make it zero.
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))


def padded(image: Image.Image) -> Image.Image:
    """Return the image; a long strip is extended with white below or to the right, so that the engine does not enlarge
    it to a gigapixel."""
    least = math.ceil(max(image.size) / _MAX_ASPECT)
    if min(image.size) >= least:
        return image
    canvas = Image.new("RGB", (max(image.width, least), max(image.height, least)), "white")
    canvas.paste(image, (0, 0))
    return canvas
