"""Load picture files as RGB images of a bounded size, whatever their mode, depth, transparency or orientation."""

import math
import mmap
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pi_heif
from PIL import Image, ImageOps, TiffImagePlugin

from pipeline.engine.errors import ErrorKind, UnitError, told
from pipeline.reading.files.filetype import detect_file
from pipeline.reading.ocr.rendition import PictureFacts, Rendition

MAX_DECODED_PIXELS = 89_000_000
"""The most pixels to decode: A3 at 600 dpi fits, a decompression bomb does not. Just below the size at which Pillow
warns."""

MAX_SCANS = 500
"""The most scans of a JPEG: cameras and programs write about ten, and each scan of 31 bytes may take 30 ms."""

_FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP")
_SCAN = b"\xff\xda"
JPEGS = {"JPEG", "MPO"}
"""Pillow's names for JPEG formats."""
DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    ArithmeticError,
    RuntimeError,
    struct.error,
    zlib.error,
)
"""Pillow's decoders and libheif raise all of these for truncated or damaged files."""
_PIXELS_AT_ONCE = 4_000_000
_FLAT_COLOURS = 16
TURNS = {
    90: Image.Transpose.ROTATE_90,
    180: Image.Transpose.ROTATE_180,
    270: Image.Transpose.ROTATE_270,
}
"""Pillow's turns by degrees, anticlockwise: the turn that makes text upright, by its clockwise turn."""
_RESIZABLE = {"L", "LA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"}


@contextmanager
def open_picture(path: Path) -> Iterator[Image.Image]:
    """Open the picture file at `path`: read its header and check its size, without decoding its pixels.

    Raises `UnitError` (permanent), also for errors in the block: `unsupported`, `corrupt`, `too_many_pixels`, `missing`
    or `unreadable`.
    """
    with _damage_as_unit_errors(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ignore odd metadata; a bomb is refused by its size.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(path, formats=_heif() if detect_file(path) == "heic" else _FORMATS) as image:
            check_pixels(image, path)
            if image.format in JPEGS:
                with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    check_scans(data, path.name)
            yield image


def _heif() -> tuple[str]:
    """Register the decoder of HEIC, which only such pictures need, and return its name."""
    pi_heif.register_heif_opener()
    return ("HEIF",)


def check_scans(data: bytes | mmap.mmap, name: str) -> None:
    """Raise `UnitError` with code `too_slow` if a JPEG has more than `MAX_SCANS` scans."""
    position = 0
    for _ in range(MAX_SCANS + 1):
        position = data.find(_SCAN, position) + 1
        if not position:
            return
    message = f"{name} has more than {MAX_SCANS} scans, which take too long to read; save it as a baseline JPEG."
    raise UnitError(message, kind=ErrorKind.PERMANENT, code="too_slow")


def check_pixels(image: Image.Image, path: Path) -> None:
    """Raise `UnitError` with code `too_many_pixels` if the picture has more than `MAX_DECODED_PIXELS` pixels. Decodes
    nothing."""
    if image.width * image.height > MAX_DECODED_PIXELS:
        raise _too_many_pixels(path, f"{image.width} × {image.height} pixels")


def seek_frame(image: Image.Image, number: int, path: Path) -> bool:
    """Go to frame `number` (from 1) of an opened picture; False if it is missing. Only a TIFF has several: of an
    animation or a burst, the first picture counts.

    Raises `UnitError` with code `too_many_pixels` if decoding the frame would take too much memory.
    """
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        return number == 1
    try:
        image.seek(number - 1)
    except EOFError:
        return False
    check_pixels(image, path)
    return True


def load_picture(path: Path, number: int, max_pixels: int) -> Image.Image:
    """Return frame `number` (from 1) of the picture, upright on white as RGB, with at most `max_pixels` pixels. Raises
    `UnitError` (permanent)."""
    with open_picture(path) as image:
        if not seek_frame(image, number, path):
            raise UnitError(f"{path.name} has no page {number}.", kind=ErrorKind.PERMANENT, code="no_page")
        if _excess(image, max_pixels) > 1:
            image.draft(None, _bounded_size(image, max_pixels))  # JPEG decodes at half its size in half the time.
        image.load()
        return normalise(image, max_pixels)


def normalise(image: Image.Image, max_pixels: int) -> Image.Image:
    """Return the image upright, on white, as RGB, with at most `max_pixels` pixels."""
    if image.mode in _RESIZABLE:  # Shrink before converting: the conversions take several times the memory.
        image = shrink(image, max_pixels)
    return shrink(_to_rgb(ImageOps.exif_transpose(image)), max_pixels)


def shrink(image: Image.Image, max_pixels: int) -> Image.Image:
    """Return the image itself if it has at most `max_pixels` pixels; otherwise a smaller one of the same shape."""
    if _excess(image, max_pixels) <= 1:
        return image
    smaller = image.resize(_bounded_size(image, max_pixels), Image.Resampling.LANCZOS, reducing_gap=3.0)
    smaller.info = image.info  # Its orientation and transparency still apply.
    if image.getexif():
        smaller.getexif().update(image.getexif())
    return smaller


def save(image: Image.Image, path: Path, file_format: str, **options: int) -> None:
    """Write a picture to `path` whole or not at all; make the folder if necessary. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        image.save(partial, format=file_format, **options)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def is_blank(image: Image.Image) -> bool:
    """Whether all pixels have the same brightness."""
    darkest, brightest = image.convert("L").getextrema()
    return darkest == brightest


def is_printed(image: Image.Image) -> bool:
    """Whether a hundredth of the picture or more differs clearly from its background."""
    small = image.convert("L").resize((min(image.width, 400), min(image.height, 400)), Image.Resampling.BOX)
    counts = small.histogram()
    background = counts.index(max(counts))
    return sum(counts[: max(0, background - 32)]) + sum(counts[background + 33 :]) >= small.width * small.height / 100


def _excess(image: Image.Image, max_pixels: int) -> float:
    return math.sqrt(image.width * image.height / max_pixels)


def _bounded_size(image: Image.Image, max_pixels: int) -> tuple[int, int]:
    excess = _excess(image, max_pixels)
    width, height = max(1, int(image.width / excess)), max(1, int(image.height / excess))
    return min(width, max_pixels), min(height, max_pixels)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        image = image.convert("I")
        brightest = image.getextrema()[1]
        assert isinstance(brightest, int)
        if brightest > 255:  # 16 bits: Pillow's conversion would clip everything above 255 to white.
            image = image.point(lambda value: value * (1 / 256))
        image = image.convert("L")
    elif image.mode == "F":
        darkest, brightest = image.getextrema()
        assert isinstance(darkest, float)
        assert isinstance(brightest, float)
        span = max(brightest - darkest, 1e-9)
        image = image.point(lambda value: value * (255 / span) - darkest * 255 / span).convert("L")
    return _on_white(image) if image.has_transparency_data else image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    """Return the image as RGB on white, converted a few rows at a time: at once it takes four times the memory of the
    result."""
    result = Image.new("RGB", image.size)
    rows = max(1, _PIXELS_AT_ONCE // image.width)
    for top in range(0, image.height, rows):
        part = image.crop((0, top, image.width, min(top + rows, image.height))).convert("RGBA")
        result.paste(Image.alpha_composite(Image.new("RGBA", part.size, "white"), part), (0, top))
    return result


def _too_many_pixels(path: Path, size: str) -> UnitError:
    return UnitError(
        f"{path.name} has {size}, more than the {MAX_DECODED_PIXELS:,} that are accepted; scale it down.",
        kind=ErrorKind.PERMANENT,
        code="too_many_pixels",
    )


@contextmanager
def _damage_as_unit_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_many_pixels(path, "too many pixels") from error
    except FileNotFoundError as error:
        raise UnitError(f"{path} does not exist.", kind=ErrorKind.PERMANENT, code="missing") from error
    except PermissionError as error:
        message = f"{path.name} cannot be read; check its permissions."
        raise UnitError(message, kind=ErrorKind.PERMANENT, code="unreadable") from error
    except DAMAGE as error:
        message = f"{path.name} is damaged or cut off; export or download it again."
        raise UnitError(message, kind=ErrorKind.PERMANENT, code="corrupt") from error


def save_page(
    picture: Image.Image,
    folder: Path,
    number: int,
    rendition: Rendition,
    page: tuple[float, float, str],
    words: Sequence[str] = (),
) -> Path:
    """Write the picture of page `number` to `folder` as `page-0001.png` or `.jpg`, whole or not at all, with its facts
    beside it, and return its path. `page`: the page's width, height and their unit; `words`: those of its text layer.
    Raises `UnitError` (transient)."""
    if rendition.turn:
        picture = picture.transpose(TURNS[rendition.turn])
        page = (page[1], page[0], page[2]) if rendition.turn != 180 else page
    # JPEG is as small as PNG and written nine times as fast; drawings of few colours are smaller and exact as PNG.
    as_png = rendition.format == "png" or (rendition.format == "auto" and picture.getcolors(_FLAT_COLOURS) is not None)
    path = folder / f"page-{number:04d}.{'png' if as_png else 'jpg'}"
    blank = True if is_blank(picture) else False if is_printed(picture) else None
    facts = PictureFacts(rendition, *picture.size, round(page[0], 2), round(page[1], 2), page[2], blank, words)
    try:
        if as_png:
            save(picture, path, "PNG", compress_level=6)
        else:
            save(picture, path, "JPEG", quality=90, subsampling=0)
        facts.write(path)
    except OSError as error:
        raise UnitError(f"The picture of page {number} cannot be written: {told(error)}", code="io") from error
    return path
