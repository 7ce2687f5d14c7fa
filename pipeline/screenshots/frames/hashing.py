"""Frames as pictures, and what they look like in 256 bits. Source 000, section 1.1.

A frame is decoded in one way only, from its bytes: a JPEG that is decoded at a smaller size hashes differently.
"""

import struct
import warnings
import zlib
from dataclasses import dataclass
from io import BytesIO

import imagehash
from PIL import Image

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.providers.local.images import MAX_DECODED_PIXELS, is_blank, normalise

HASH_SIZE = 16
HASH_BITS = HASH_SIZE * HASH_SIZE
HEX_CHARS = HASH_BITS // 4
MAX_FRAME_PIXELS = 16_000_000
"""Frames are kept and shown with at most so many; a 4K screen has 8 million."""
MAX_FRAME_BYTES = 64 * 1024 * 1024
JPEG_QUALITY = 85

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
# Pillow's decoders raise all of these for files that are cut off or damaged.
_DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    ArithmeticError,
    struct.error,
    zlib.error,
)


@dataclass(frozen=True)
class Frame:
    """A decoded frame: upright RGB on white, its first picture where it moves. `phash`: 64 hex digits."""

    image: Image.Image
    phash: str
    format: str
    animated: bool


def read_frame(data: bytes) -> Frame:
    """Decode and hash a frame, whatever its mode, alpha or orientation.

    Raises `UnitError` (permanent): `not_an_image`, `corrupt`, `too_many_pixels` or `too_large`.
    """
    if len(data) > MAX_FRAME_BYTES:
        raise _refused("too_large", f"the frame has {len(data):,} bytes, more than {MAX_FRAME_BYTES:,}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Odd metadata is no news; a bomb is refused by its size, below.
        return _decoded(data)


def _decoded(data: bytes) -> Frame:
    try:
        opened = Image.open(BytesIO(data), formats=_FORMATS)
    except Image.DecompressionBombError as error:
        raise _too_many_pixels("far too many") from error
    except _DAMAGE as error:
        raise _refused("not_an_image", "the frame is no picture of a known type") from error
    with opened:
        if opened.width * opened.height > MAX_DECODED_PIXELS:
            raise _too_many_pixels(f"{opened.width} × {opened.height}")
        try:
            # Where there are several, the first: a screenshot that moves shows what there was when it was taken.
            animated = bool(getattr(opened, "is_animated", False))
            opened.seek(0)
            opened.load()
            image = normalise(opened, MAX_FRAME_PIXELS)
        except Image.DecompressionBombError as error:
            raise _too_many_pixels("far too many") from error
        except _DAMAGE as error:
            raise _refused("corrupt", "the frame is damaged or cut off") from error
        return Frame(image, phash(image), opened.format or "", animated)


def phash(image: Image.Image) -> str:
    """The perceptual hash of a decoded frame as 64 hex digits; zeros for one without any contrast.

    Without contrast the transform holds nothing but rounding errors, and two such frames would seem different.
    """
    return "0" * HEX_CHARS if is_blank(image) else str(imagehash.phash(image, hash_size=HASH_SIZE))


def distance(one: str, other: str) -> int:
    """In how many of 256 bits two hashes differ. Raises `ValueError` for what is no hash of this size."""
    if len(one) != HEX_CHARS or len(other) != HEX_CHARS:
        raise ValueError(f"a hash has {HEX_CHARS} hex digits, not {len(one)} and {len(other)}")
    return (int(one, 16) ^ int(other, 16)).bit_count()


def as_jpeg(image: Image.Image, max_side: int = 1568) -> bytes:
    """The frame as models get it: JPEG, its longer side at most `max_side` pixels."""
    smaller = image.copy()
    smaller.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
    out = BytesIO()
    smaller.save(out, "JPEG", quality=JPEG_QUALITY)
    return out.getvalue()


def _too_many_pixels(size: str) -> UnitError:
    return _refused("too_many_pixels", f"the frame has {size} pixels; {MAX_DECODED_PIXELS:,} are accepted")


def _refused(code: str, message: str) -> UnitError:
    return UnitError(message, kind=ErrorKind.PERMANENT, code=code)
