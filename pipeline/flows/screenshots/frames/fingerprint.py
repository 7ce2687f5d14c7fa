"""Frames as pictures, and what they look like in 256 bits. Source 000, section 1.1.

There is one way of decoding for each format, so that the same bytes hash the same. A JPEG is decoded for its hash at a
smaller size and in grey, about ten times as fast; what is shown to models is decoded anew, from the stored file.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import imagehash
from PIL import Image, ImageOps

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.flows.screenshots.frames.sketches import CELL
from pipeline.reading.images import DAMAGE, MAX_DECODED_PIXELS, normalise

HASH_SIZE = 16
HASH_BITS = HASH_SIZE * HASH_SIZE
HEX_CHARS = HASH_BITS // 4
BLANK = "0" * HEX_CHARS
MAX_FRAME_PIXELS = 16_000_000
"""Frames are shown to models from so many pixels at most; a 4K screen has 8 million."""
JPEG_QUALITY = 85

_SIDE = 4 * HASH_SIZE
"""Pixels of the square that is hashed, as `imagehash` has it."""
_DRAFT_SIDE = 2 * _SIDE
"""A JPEG is never decoded with fewer pixels than that on its shorter side: below, hashes would miss changes of text."""
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_OPAQUE = {"L", "RGB", "1"}


@dataclass(frozen=True)
class Fingerprint:
    """What is known of a frame's bytes once they were decoded. `phash`: 64 hex digits; `format`: `PNG`, `JPEG`, …"""

    phash: str
    format: str
    sketch: Image.Image = field(repr=False)
    """The frame in grey at an eighth of its size: see `sketches`."""


def read_frame(data: bytes) -> Fingerprint:
    """Decode and hash a frame, whatever its mode, alpha or orientation; its first picture where it moves.

    Raises `UnitError` (permanent): `not_an_image`, `corrupt` or `too_many_pixels`.
    """
    with _opened(BytesIO(data)) as image:
        width = image.width
        # Another format ignores it. In grey no colour has to be computed either.
        drafted = image.draft("L", (_DRAFT_SIDE, _DRAFT_SIDE))
        image.load()
        grey = _grey(image)
        # What of the smaller image is picture: its last column and row may be so in part only.
        box = drafted[1] if drafted and grey.size == image.size else None
        sketch = grey.reduce(max(1, CELL * image.width // width))
        return Fingerprint(_hash(grey, box), "JPEG" if image.format == "MPO" else image.format or "", sketch)


def load_image(path: Path) -> Image.Image:
    """A stored frame for models and text recognition: upright RGB on white, its first picture where it moves.

    Raises `UnitError` (permanent): as `read_frame`, `missing` or `unreadable`.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise _refused("missing", f"{path.name} is gone") from error
    except OSError as error:
        raise _refused("unreadable", f"{path.name} cannot be read: {error.strerror}") from error
    with _opened(BytesIO(data)) as image:
        image.load()
        return normalise(image, MAX_FRAME_PIXELS)


def as_jpeg(image: Image.Image, max_side: int = 1568) -> bytes:
    """The frame as models get it: JPEG, its longer side at most `max_side` pixels."""
    smaller = image.copy()
    smaller.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
    out = BytesIO()
    smaller.save(out, "JPEG", quality=JPEG_QUALITY)
    return out.getvalue()


def phash(image: Image.Image) -> str:
    """The perceptual hash of a picture as 64 hex digits: the bits of `imagehash.phash(…, hash_size=16)`.

    Zeros for one without any contrast: its transform holds nothing but rounding errors, which would differ.
    """
    return _hash(_grey(image))


def _hash(grey: Image.Image, box: tuple[float, float, float, float] | None = None) -> str:
    square = grey.resize((_SIDE, _SIDE), Image.Resampling.LANCZOS, box)
    darkest, brightest = square.getextrema()
    if darkest == brightest:
        return BLANK
    return str(imagehash.phash(square, hash_size=HASH_SIZE))


def distance(one: str, other: str) -> int:
    """In how many of 256 bits two hashes differ. Raises `ValueError` for what is no hash of this size."""
    if len(one) != HEX_CHARS or len(other) != HEX_CHARS:
        raise ValueError(f"a hash has {HEX_CHARS} hex digits, not {len(one)} and {len(other)}")
    return (int(one, 16) ^ int(other, 16)).bit_count()


def _grey(image: Image.Image) -> Image.Image:
    """The picture upright, on white, in grey; directly where no colour has to be looked at."""
    if image.mode in {"RGBA", "LA"} and image.getchannel("A").getextrema() == (255, 255):
        image = image.convert(image.mode[:-1])  # Screenshots of some systems have an alpha that says nothing.
    if image.mode in _OPAQUE and not image.has_transparency_data:
        return ImageOps.exif_transpose(image.convert("L"))
    return normalise(image, MAX_FRAME_PIXELS).convert("L")


@contextmanager
def _opened(file: BytesIO) -> Iterator[Image.Image]:
    """The picture, its header read and its size checked. Says what is wrong with it, also while it is decoded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Odd metadata is no news; a bomb is refused by its size, below.
        try:
            image = Image.open(file, formats=_FORMATS)
        except Image.DecompressionBombError as error:
            raise _too_many_pixels("far too many") from error
        except DAMAGE as error:
            raise _refused("not_an_image", "this is no picture of a known type") from error
        with image:
            if image.width * image.height > MAX_DECODED_PIXELS:
                raise _too_many_pixels(f"{image.width} × {image.height}")
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
