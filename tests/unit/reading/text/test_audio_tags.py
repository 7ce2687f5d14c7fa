"""A child process reads the tags of audio files, whatever they claim and unpack to."""

import zlib
from pathlib import Path

import pytest
from mutagen.id3._util import BitPaddedInt

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.reading.sandbox.child import Session
from pipeline.reading.sandbox.limits import Limits
from pipeline.reading.text import audio_tags

AUDIO = (b"\xff\xfb\x90\0" + bytes(413)) * 20
MB = 150


def tagged(path: Path, frames: bytes, size: int | None = None) -> Path:
    path.write_bytes(b"ID3\4\0\0" + BitPaddedInt.to_str(len(frames) if size is None else size) + frames + AUDIO)
    return path


def frame(data: bytes, flags: bytes = b"\0\0") -> bytes:
    return b"TIT2" + BitPaddedInt.to_str(len(data)) + flags + data


def bomb() -> bytes:
    return frame(BitPaddedInt.to_str(MB * 10**6) + zlib.compress(b"\x03" + b"A" * MB * 10**6, 1), b"\0\x09")


def test_tags_that_unpack_to_too_much_are_refused_and_the_next_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile, sound = tagged(tmp_path / "bomb.mp3", bomb()), tagged(tmp_path / "a.mp3", frame(b"\3Rain"))
    assert hostile.stat().st_size < 1_000_000
    monkeypatch.setattr(audio_tags, "_LIMITS", Limits(timeout_s=60, memory_mb=2 * MB))
    with Session() as session:
        with pytest.raises(UnitError) as error:
            audio_tags.read(hostile, session)
        assert (error.value.kind, error.value.code) == (ErrorKind.PERMANENT, "too_large")
        assert audio_tags.read(sound, session)["title"] == "Rain"


def test_texts_are_cut_and_sizes_that_lie_are_the_files_fault(tmp_path: Path) -> None:
    with Session() as session:
        long = tagged(tmp_path / "long.mp3", frame(b"\3" + b"long " * 20_000))
        assert len(audio_tags.read(long, session)["title"]) == audio_tags.MAX_CHARS
        with pytest.raises(UnitError) as error:
            audio_tags.read(tagged(tmp_path / "lies.mp3", b"", 2**28 - 1), session)
        assert error.value.kind is ErrorKind.PERMANENT
        with pytest.raises(FileNotFoundError):
            audio_tags.read(tmp_path / "none.mp3", session)
