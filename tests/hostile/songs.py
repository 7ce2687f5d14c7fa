"""Audio files with false or hostile tags."""

import struct
from collections.abc import Callable
from pathlib import Path

from tests.hostile.inputs import Hostile, written

ENDS = "listed|left out"


def _frame(name: bytes, data: bytes, size: int | None = None) -> bytes:
    return name + struct.pack(">I", len(data) if size is None else size) + b"\0\0" + data


def _syncsafe(size: int) -> bytes:
    return bytes((size >> shift) & 0x7F for shift in (21, 14, 7, 0))


def _mp3(frames: bytes, size: int | None = None) -> Callable[[Path], object]:
    return written(
        b"ID3\3\0\0" + _syncsafe(len(frames) if size is None else size) + frames + (b"\xff\xfb\x90\0" + b"\0" * 413) * 4
    )


def _titled(title: str) -> Callable[[Path], object]:
    return _mp3(_frame(b"TIT2", b"\1" + title.encode("utf-16", "surrogatepass")))


def _atom(name: bytes, data: bytes, size: int | None = None) -> bytes:
    return struct.pack(">I", 8 + len(data) if size is None else size) + name + data


def _nested(levels: int) -> bytes:
    data = b""
    for _ in range(levels):
        data = _atom(b"moov", data)
    return _atom(b"ftyp", b"M4A \0\0\0\0") + data


_FLAC = b"fLaC" + b"\0\0\0\x22" + b"\x10\0\x10\0" + b"\0" * 6 + b"\x0a\xc4\x42\xf0\0\0\0\0" + b"\0" * 16

SONGS = [
    Hostile("escapes.mp3", _titled("\x1b]0;owned\x07\x1b[31m red \x9b2J \u202egnp.exe"), "listed", pinned=True),
    Hostile("markup.mp3", _titled("[link=http://127.0.0.1:9][red]click[/red][/link] {0} %s"), "listed"),
    Hostile("sixty-thousand.mp3", _titled("long " * 12_000), "listed"),
    Hostile("zeros.mp3", _titled("a\0b\0" * 500), "listed", pinned=True),
    Hostile("halves.mp3", _titled("\ud800\udfff\ud800"), "listed", pinned=True),
    Hostile("sql.mp3", _titled("'; DROP TABLE songs; --"), "listed"),
    Hostile("like.mp3", _titled("%_\\%_" * 900), "listed"),
    Hostile("size.mp3", _mp3(b"", 2**28 - 1), ENDS, pinned=True),
    Hostile("frame-size.mp3", _mp3(_frame(b"TIT2", b"\0x", 2**32 - 1)), ENDS),
    Hostile("frames.mp3", _mp3(_frame(b"TXXX", b"\0a\0b") * 50_000), ENDS),
    Hostile("picture.mp3", _mp3(_frame(b"APIC", b"\0image/png\0\3\0" + b"\0" * 8_000_000)), ENDS),
    Hostile(
        "packed.mp3",
        _mp3(b"TIT2" + struct.pack(">I", 100) + b"\0\x80" + struct.pack(">I", 2**31) + b"x\x9c" + b"\0" * 94),
        ENDS,
    ),
    Hostile(
        "years.mp3",
        _mp3(_frame(b"TYER", b"\x009999999999999") + _frame(b"TLEN", b"\0" + b"9" * 300)),
        ENDS,
        pinned=True,
    ),
    Hostile("empty.mp3", written(b""), ENDS),
    Hostile(
        "comments.ogg",
        written(
            b"OggS\0\2"
            + b"\0" * 20
            + b"\1\x1e\1vorbis\0\0\0\0\2\x44\xac\0\0"
            + b"\0" * 12
            + b"\xb8\1"
            + b"OggS\0\0"
            + b"\0" * 20
            + b"\1\xff\3vorbis"
            + b"\xff" * 300
        ),
        ENDS,
    ),
    Hostile("blocks.flac", written(_FLAC + b"\4\xff\xff\xff" + b"\xff" * 300), ENDS),
    Hostile("comments.flac", written(_FLAC + b"\x84\0\0\x0c" + b"\0\0\0\0" + b"\xff\xff\xff\xff" + b"\0" * 4), ENDS),
    Hostile("nested.m4a", written(_nested(3000)), ENDS),
    Hostile("no-size.m4a", written(_atom(b"ftyp", b"M4A \0\0\0\0") + _atom(b"moov", b"", 0) * 9), ENDS),
    Hostile("size.m4a", written(_atom(b"ftyp", b"M4A \0\0\0\0") + _atom(b"moov", b"\xff" * 16, 1)), ENDS),
    Hostile(
        "length.wav", written(b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0" + b"\xff" * 16 + b"data\xff\xff\xff\xff"), ENDS
    ),
    Hostile(
        "items.ape",
        written(b"MAC " + b"\0" * 500 + b"APETAGEX\xd0\x07\0\0" + struct.pack("<III", 2**31, 2**31, 0) + b"\0" * 8),
        ENDS,
    ),
    Hostile("objects.wma", written(bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c") + b"\xff" * 400), ENDS),
]
