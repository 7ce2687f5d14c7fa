"""Frames as pictures: a perceptual hash of 256 bits, a sketch, and the JPEG for models.

Rule: docs/sources/screenshots.md#intake.

Each format is decoded in one way, so that equal bytes have equal hashes. To hash a JPEG, it is decoded smaller and in
grey, about ten times as fast; for models, the stored file is decoded again.
"""

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageOps

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.reading.ocr.images import DAMAGE, JPEGS, MAX_DECODED_PIXELS, check_scans, normalise
from pipeline.reading.sandbox.limits import MODELS_SIDE_PX

HASH_SIZE = 16
HASH_BITS = HASH_SIZE * HASH_SIZE
BLANK = "0" * (HASH_BITS // 4)
CELL = 8
"""The side of a sketch's cell in pixels. Decoding a JPEG at this scale takes a tenth of the time."""
MAX_FRAME_PIXELS = 16_000_000
"""The most pixels of a frame for models; a 4K screen has 8 million."""
JPEG_QUALITY = 85

_SIDE = 4 * HASH_SIZE
"""The side in pixels of the hashed square, as in `imagehash`."""
_DRAFT_SIDE = 2 * _SIDE
"""The least pixels of a decoded JPEG's shorter side: with fewer, hashes would miss changes of text."""
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_OPAQUE = {"L", "RGB", "1"}


@dataclass(frozen=True)
class Fingerprint:
    """The facts of a decoded frame. `phash`: 64 hex digits; `format`: `PNG`, `JPEG`, …"""

    phash: str
    format: str
    sketch: Image.Image = field(repr=False)
    """The frame in grey at an eighth of its size: see `rules.duplicates`."""


def read_frame(data: bytes) -> Fingerprint:
    """Return the hash, format and sketch of a frame of any mode, alpha or orientation; of an animation, of the first
    picture.

    Raises `UnitError` (permanent): `not_an_image`, `corrupt`, `too_many_pixels` or `too_slow`.
    """
    with _opened(data) as image:
        width = image.width
        # Only JPEG decodes smaller; grey skips the colours as well.
        drafted = image.draft("L", (_DRAFT_SIDE, _DRAFT_SIDE))
        image.load()
        grey = _grey(image)
        # Hash only the picture: the smaller image's last column and row may be padding.
        box = drafted[1] if drafted and grey.size == image.size else None
        sketch = grey.reduce(max(1, CELL * image.width // width))
        return Fingerprint(_hash(grey, box), "JPEG" if image.format == "MPO" else image.format or "", sketch)


def load_image(path: Path) -> Image.Image:
    """Load a stored frame for models and text recognition as upright RGB on white; of an animation, the first picture.

    Raises `OSError`, or `UnitError` (permanent): `not_an_image`, `corrupt`, `too_many_pixels` or `too_slow`.
    """
    with _opened(path.read_bytes()) as image:
        image.load()
        return normalise(image, MAX_FRAME_PIXELS)


def as_jpeg(image: Image.Image, max_side: int = MODELS_SIDE_PX) -> bytes:
    """Return the frame as JPEG for models, its longer side at most `max_side` pixels."""
    smaller = image.copy()
    smaller.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
    out = BytesIO()
    smaller.save(out, "JPEG", quality=JPEG_QUALITY)
    return out.getvalue()


def phash(image: Image.Image) -> str:
    """Return the perceptual hash of a picture as 64 hex digits: the bits of `imagehash.phash(…, hash_size=16)`.

    A picture without contrast gets zeros: its transform has only rounding errors, which vary.
    """
    return _hash(_grey(image))


def _hash(grey: Image.Image, box: tuple[float, float, float, float] | None = None) -> str:
    import imagehash  # noqa: PLC0415  # loads SciPy, which only hashing needs

    square = grey.resize((_SIDE, _SIDE), Image.Resampling.LANCZOS, box)
    darkest, brightest = square.getextrema()
    if darkest == brightest:
        return BLANK
    return str(imagehash.phash(square, hash_size=HASH_SIZE))


def _grey(image: Image.Image) -> Image.Image:
    """Return the picture upright, on white, in grey."""
    if image.mode in {"RGBA", "LA"} and image.getchannel("A").getextrema() == (255, 255):
        image = image.convert(image.mode[:-1])  # Some systems' screenshots have an alpha channel that is all opaque.
    if image.mode in _OPAQUE and not image.has_transparency_data:
        return ImageOps.exif_transpose(image.convert("L"))
    return normalise(image, MAX_FRAME_PIXELS).convert("L")


@contextmanager
def _opened(data: bytes) -> Iterator[Image.Image]:
    """Open a picture, read its header and check its size. Raises `UnitError`, also for decoding errors in the block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ignore odd metadata; the size check below refuses bombs.
        try:
            image = Image.open(BytesIO(data), formats=_FORMATS)
        except Image.DecompressionBombError as error:
            raise _too_many_pixels("far too many") from error
        except DAMAGE as error:
            raise _refused("not_an_image", "this is not a picture of a known type") from error
        with image:
            if image.width * image.height > MAX_DECODED_PIXELS:
                raise _too_many_pixels(f"{image.width} × {image.height}")
            if image.format in JPEGS:
                check_scans(data, "the picture")
            try:
                yield image
            except Image.DecompressionBombError as error:
                raise _too_many_pixels("far too many") from error
            except DAMAGE as error:
                raise _refused("corrupt", "the picture is damaged or cut off") from error


def _too_many_pixels(size: str) -> UnitError:
    return _refused("too_many_pixels", f"the picture has {size} pixels; {MAX_DECODED_PIXELS:,} are accepted")


def _refused(code: str, message: str) -> UnitError:
    return UnitError(message, kind=ErrorKind.PERMANENT, code=code)


class Sketches:
    """Caches sketches of recently stored or compared frames, by file name. Safe between threads."""

    def __init__(self, at_most: int = 64) -> None:
        self._at_most = at_most
        self._sketches: OrderedDict[str, Image.Image] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, file: str, sketch: Image.Image) -> None:
        with self._lock:
            self._sketches[file] = sketch
            self._sketches.move_to_end(file)
            while len(self._sketches) > self._at_most:
                self._sketches.popitem(last=False)

    def get(self, file: str, make: Callable[[], Image.Image]) -> Image.Image:
        """Return the sketch of this file; if it is not cached, call `make` and cache what that returns. Errors of
        `make` reach the caller."""
        with self._lock:
            sketch = self._sketches.get(file)
        if sketch is None:
            sketch = make()
            self.keep(file, sketch)
        return sketch
