"""Pictures that unpack to too much, never end, or are something else."""

import io
import struct
import zlib
from pathlib import Path

from PIL import Image

from tests.hostile.inputs import Hostile, written
from tests.support.samples import HEIC_FOLDER

MB = 2**20
_REFUSED = "(REFUSED|refused): "
_BOUNDED = r"(REFUSED|FAILED|refused|COMPLETED|accepted|duplicate)"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(width: int, height: int, depth: int, colour: int, data: bytes, *further: bytes) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"".join(
        [b"\x89PNG\r\n\x1a\n", _chunk(b"IHDR", head), *further, _chunk(b"IDAT", data), _chunk(b"IEND", b"")]
    )


def _rows(width_bytes: int, height: int) -> bytes:
    """Pack rows of zeros with little memory."""
    packer, row = zlib.compressobj(9), b"\0" * (width_bytes + 1)
    return b"".join(packer.compress(row) for _ in range(height)) + packer.flush()


_HEIC = HEIC_FOLDER / "huge.heic"
_PALETTE = _chunk(b"PLTE", bytes(range(256)) * 3)
_SEEN = _chunk(b"tRNS", b"\x80" * 256)


def _palette(path: Path) -> None:
    """Return 88 KB of 90 million pixels. With transparency they become 360 MB, and so does their copy."""
    path.write_bytes(_png(9400, 9400, 8, 3, _rows(9400, 9400), _PALETTE, _SEEN))


def _jpeg(width: int, height: int, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((width, height), 90).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def many_scans(path: Path, scans: int = 3_000, size: int = 2000) -> None:
    """Return a progressive JPEG that repeats its smallest scan. Each scan passes over the whole picture: seconds of
    work. The reader's own tests have JPEGs that take minutes."""
    data = bytearray(_jpeg(64, 64, progressive=True))
    frame = data.index(b"\xff\xc2")
    data[frame + 5 : frame + 9] = struct.pack(">HH", size, size)
    last = data.rindex(b"\xff\xda")
    path.write_bytes(bytes(data[:last]) + bytes(data[last:-2]) * 1 + data[last : last + 12] * scans + b"\xff\xd9")


def _resized(width: int, height: int) -> bytes:
    """Return a small JPEG that declares a large size."""
    data = bytearray(_jpeg(64, 64))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _tiff(entries: list[tuple[int, int, int, int]], following: int = 0, tail: bytes = b"") -> bytes:
    """Return a directory of entries (tag, type, count, value)."""
    body = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<I", 8) + body + struct.pack("<I", following) + tail


def _tiff_of(
    width: int, height: int, *further: tuple[int, int, int, int], following: int = 0, tail: bytes = b""
) -> bytes:
    common = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (277, 3, 1, 1)]
    return _tiff(sorted([*common, *further]), following, tail)


def _packed_tiff() -> bytes:
    data = zlib.compress(b"\0" * 81 * MB, 9)
    start = 8 + 2 + 9 * 12 + 4
    entries = [(256, 4, 1, 9216), (257, 4, 1, 9216), (258, 3, 1, 8), (259, 3, 1, 8), (262, 3, 1, 1)]
    entries += [(273, 4, 1, start), (277, 3, 1, 1), (278, 4, 1, 9216), (279, 4, 1, len(data))]
    return _tiff(entries, tail=data)


def _tiff_frames(count: int) -> bytes:
    """Return a TIFF of `count` frames of one pixel."""
    size = 2 + 10 * 12 + 4
    out = bytearray(b"II*\0" + struct.pack("<I", 8))
    for number in range(count):
        entries = [(256, 4, 1, 1), (257, 4, 1, 1), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 0)]
        entries += [(277, 3, 1, 1), (278, 4, 1, 1), (279, 4, 1, 1), (284, 3, 1, 1)]
        out += struct.pack("<H", 10) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
        out += struct.pack("<I", 8 + size * (number + 1) if number < count - 1 else 0)
    return bytes(out)


_GIF_FRAME = b",\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0"


def _texts(path: Path) -> None:
    """Return a PNG whose comments unpack to 200 MB."""
    text = b"a\0\0" + zlib.compress(b"\x1b" * 4 * MB, 9)
    path.write_bytes(_png(8, 8, 8, 0, _rows(8, 8), *[_chunk(b"zTXt", text)] * 50))


def _profile() -> bytes:
    """Return a PNG whose colour profile unpacks to 64 MB."""
    profile = _chunk(b"iCCP", b"x\0\0" + zlib.compress(b"\0" * 64 * MB, 9))
    return _png(8, 8, 8, 0, _rows(8, 8), profile)


PICTURES = [
    Hostile("palette.png", _palette, _BOUNDED),
    Hostile("two-milliards-wide.png", written(_png(2**31 - 1, 2**31 - 1, 8, 2, zlib.compress(b""))), _REFUSED),
    Hostile("no-width.png", written(_png(0, 0, 8, 2, zlib.compress(b""))), _REFUSED),
    Hostile("twelve-thousand.png", written(lambda: _png(12_000, 12_000, 1, 0, _rows(1500, 12_000))), _REFUSED),
    Hostile(
        "more-than-it-says.png",
        written(lambda: _png(8, 8, 8, 0, zlib.compress(b"\0" * 128 * MB, 9))),
        _BOUNDED,
        pinned=True,
    ),
    Hostile("less-than-it-says.png", written(_png(900, 900, 8, 0, zlib.compress(b"\0" * 99))), _REFUSED),
    Hostile("profile.png", written(_profile), _BOUNDED),
    Hostile("texts.png", _texts, _BOUNDED),
    Hostile(
        "many-chunks.png",
        written(lambda: _png(8, 8, 8, 0, _rows(8, 8), *[_chunk(b"tEXt", b"a\0b")] * 200_000)),
        _BOUNDED,
    ),
    Hostile("wrong-sum.png", written(_png(8, 8, 8, 0, _rows(8, 8))[:-30] + b"\0" * 30), _REFUSED),
    Hostile("signature.png", written(b"\x89PNG\r\n\x1a\n"), _REFUSED),
    Hostile(
        "many-scans.jpg",
        many_scans,
        _BOUNDED,
    ),
    Hostile("milliards.jpg", written(_resized(65_500, 65_500)), _REFUSED, pinned=True),
    Hostile("cut.jpg", written(_resized(8000, 8000)), _BOUNDED),
    Hostile("no-end.jpg", written(_jpeg(64, 64)[:-200]), _REFUSED),
    Hostile("exif.jpg", written(_jpeg(64, 64, exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\xff" * 30_000)), _BOUNDED),
    Hostile("directory-of-itself.tif", written(_tiff_of(8, 8, (273, 4, 1, 8), (279, 4, 1, 64), following=8)), _BOUNDED),
    Hostile("strips.tif", written(_tiff_of(8, 8, (273, 4, 2**31, 8), (279, 4, 2**31, 8))), _REFUSED),
    Hostile("milliards.tif", written(_tiff_of(2**31, 2**31, (273, 4, 1, 8), (279, 4, 1, 2**31))), _REFUSED),
    Hostile(
        "tiles.tif",
        written(_tiff_of(9000, 9000, (322, 4, 1, 1), (323, 4, 1, 1), (324, 4, 1, 8), (325, 4, 1, 1))),
        _BOUNDED,
    ),
    Hostile("packed.tif", written(_packed_tiff), _BOUNDED),
    Hostile("frames.tif", written(lambda: _tiff_frames(50_000)), _BOUNDED),
    Hostile(
        "sixteen-thousand.webp",
        written(lambda: _saved(Image.new("L", (16_383, 5_000)), "WEBP", lossless=True)),
        _BOUNDED,
    ),
    Hostile("cut.webp", written(_saved(Image.new("L", (300, 300)), "WEBP")[:60]), _REFUSED),
    Hostile("length.webp", written(b"RIFF\xff\xff\xff\xffWEBPVP8X\xff\xff\xff\xff" + b"\xff" * 20), _REFUSED),
    Hostile(
        "postscript.png", written(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd)(r)file\n"), _REFUSED
    ),
    Hostile(
        "drawing.png",
        written(b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'),
        _REFUSED,
    ),
    Hostile("photoshop.png", written(b"8BPS\0\1" + b"\0" * 6 + b"\0\3\0\0\xff\xff\0\0\xff\xff\0\x08\0\3"), _REFUSED),
    Hostile("nothing.png", written(b""), _REFUSED),
    Hostile("huge.heic", written(_HEIC.read_bytes), _REFUSED),
    Hostile("cut.heic", written(lambda: _HEIC.read_bytes()[:9000]), _REFUSED),
    Hostile("boxes.heic", written(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic\xff\xff\xff\xffmeta" + b"\xff" * 999), _REFUSED),
    Hostile(
        "screen.gif",
        written(b"GIF89a\xff\xff\xff\xff\xf0\0\0" + b"\0" * 6 + b",\0\0\0\0\xff\xff\xff\xff\0\x08\xff"),
        _REFUSED,
    ),
    Hostile(
        "frames.gif",
        written(b"GIF89a\1\0\1\0\xf0\0\0" + b"\0" * 6 + _GIF_FRAME * 100_000 + b";"),
        _BOUNDED,
        pinned=True,
    ),
    Hostile(
        "lengths.bmp",
        written(b"BM" + struct.pack("<IIIIiiHHIIIIII", 99, 0, 54, 40, 30_000, -30_000, 1, 24, 0, 0, 0, 0, 0, 0)),
        _REFUSED,
    ),
    Hostile(
        "runs.bmp",
        written(
            b"BM"
            + struct.pack("<IIIIiiHHIIIIII", 99, 0, 54, 40, 9000, 9000, 1, 8, 1, 0, 0, 0, 256, 0)
            + b"\0" * 1024
            + b"\xff\1" * 999
        ),
        _BOUNDED,
    ),
]
"""Pictures for documents and screenshots, which do not take HEIC."""
