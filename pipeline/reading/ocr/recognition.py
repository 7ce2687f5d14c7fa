"""Text recognition on this machine. The first picture that needs the engine starts it.

One engine (about 0.8 GB) serves a process, one picture at a time. It must start after a fork, since its threads do not
survive one. Its models are in its wheel, so nothing is downloaded.
"""

import math
import os
import threading
from typing import NamedTuple

from PIL import Image

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.reading.layout.certainty import DOUBTFUL, UNCERTAIN
from pipeline.reading.layout.model import Line, Rule
from pipeline.reading.ocr import direction, orientation
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
    """What was read in a picture.

    `confidence`: how sure the engine is of it, 0 to 1; None if nothing looks like text. `lean`: by how many degrees
    the picture leans clockwise. `rules`: those in the picture, if somebody looked for them."""

    lines: list[Line]
    confidence: float | None
    lean: float = 0.0
    engines: tuple[str, ...] = ("rapidocr",)
    rules: tuple[Rule, ...] = ()

    @property
    def is_unsure(self) -> bool:
        """Whether a word may be wrong, or what looks like text could not be read."""
        doubtful = self.confidence is not None and self.confidence < DOUBTFUL
        return doubtful or any(sure < UNCERTAIN for line in self.lines for sure in line.sure)


def recognise(image: Image.Image, threads: int) -> list[Line]:
    """The lines of `read`."""
    return read(image, threads).lines


def read(image: Image.Image, threads: int) -> Reading:
    """Lines of text in an RGB image, with boxes in its pixels; none for a blank one.

    Each has the angle in which it runs. Boxes of a picture that leans are where they would be if it did not.

    `threads` (at least 1) are what the process's engine computes with: the cores divided by the processes that
    recognise. The first call of a process decides. Raises `UnitError`: `ocr_unavailable` (permanent) where there is
    no engine, `ocr_failed` (transient) where it could not read the image.
    """
    looked_at = bounded(image)
    with _SHARED.lock:
        try:
            engine = _SHARED.engine = _SHARED.engine or Engine(threads)
        except Exception as error:
            message = f"The OCR engine cannot be started: {error}"
            raise UnitError(message, kind=ErrorKind.PERMANENT, code="ocr_unavailable") from error
        try:
            look = engine.look(padded(looked_at))
            pieces = direction.read_pieces(look.quads, look.read)
        except Exception as error:  # It raises types of its own, of OpenCV, of onnxruntime and of NumPy.
            raise UnitError(f"Text recognition failed: {error}", code="ocr_failed") from error
    enlarged = image.width / looked_at.width
    telling = direction.telling(pieces)
    lines = orientation.as_lines(telling, (looked_at.width / 2, looked_at.height / 2))
    lean = orientation.skew([piece.corners for piece in telling])
    return Reading([orientation.scaled(line, enlarged) for line in lines], direction.confidence(pieces), lean)


def threads_for(processes: int) -> int:
    """How many threads one of `processes` that recognise at the same time may use."""
    return max(1, (os.cpu_count() or 1) // processes)


def pixels_at(dpi: int) -> int:
    """The most pixels of a page in this resolution: A4 at 175 dpi, more only if `dpi` is more than 200.

    More pixels cost memory and time, and recognise no more text of common sizes.
    """
    return min(MAX_PIXELS, round(_USUAL_PIXELS * max(1.0, dpi / _USUAL_DPI) ** 2))


def bounded(image: Image.Image) -> Image.Image:
    """The image, or a smaller one that the engine has enough memory for."""
    image = shrink(image, MAX_PIXELS)
    if max(image.size) <= MAX_SIDE_PX:
        return image
    scale = MAX_SIDE_PX / max(image.size)
    # A line one pixel wide stays one pixel wide: `ImageOps.contain` would make it none.
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))


def padded(image: Image.Image) -> Image.Image:
    """The image, or if it is a long strip, one with white below or beside it."""
    least = math.ceil(max(image.size) / _MAX_ASPECT)
    if min(image.size) >= least:
        return image
    canvas = Image.new("RGB", (max(image.width, least), max(image.height, least)), "white")
    canvas.paste(image, (0, 0))
    return canvas
