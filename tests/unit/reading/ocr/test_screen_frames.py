"""Only child processes read frames: they refuse a frame beyond their limits, and read the next one."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.reading.ocr import images, screen_frames
from pipeline.reading.ocr.fingerprint import as_jpeg, load_image
from pipeline.reading.ocr.fingerprint import read_frame as read_here
from pipeline.reading.sandbox.limits import Limits
from tests.support.frames import draw, encoded

SCREEN = draw()


def of_many_scans(scans: int, side: int = 4000) -> bytes:
    """A progressive JPEG that repeats its last scan: 31 bytes that take 30 ms."""
    out = BytesIO()
    Image.new("L", (side, side), 128).save(out, "JPEG", progressive=True, quality=50)
    data = out.getvalue()
    end = data.rindex(b"\xff\xd9")
    return data[:end] + data[data.rindex(b"\xff\xda") : end] * scans + data[end:]


def test_a_jpeg_that_repeats_its_scans_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "scans.jpg"
    path.write_bytes(of_many_scans(600, 64))
    for read in (lambda: read_here(path.read_bytes()), lambda: images.load_picture(path, 1, 1000)):
        with pytest.raises(UnitError, match="more than 500 scans") as error:
            read()
        assert (error.value.kind, error.value.code) == (ErrorKind.PERMANENT, "too_slow")


def of_a_palette(side: int) -> bytes:
    """A picture of a few KB whose pixels index a palette with transparency."""
    image = Image.new("P", (side, side), 3)
    image.putpalette(bytes(range(256)) * 3)
    return encoded(image, transparency=bytes(range(256)))


def refusal(path: Path) -> UnitError:
    with pytest.raises(UnitError) as caught:
        screen_frames.read_frame(path)
    return caught.value


def test_a_child_reads_a_frame_like_this_process(tmp_path: Path) -> None:
    path = tmp_path / "screen.png"
    path.write_bytes(encoded(SCREEN))
    in_child, in_process = screen_frames.read_frame(path), read_here(path.read_bytes())
    assert (in_child.phash, in_child.format, in_child.sketch.tobytes()) == (
        in_process.phash,
        in_process.format,
        in_process.sketch.tobytes(),
    )
    assert screen_frames.jpeg_of(path) == as_jpeg(load_image(path))


def test_a_missing_or_damaged_stored_frame_is_a_permanent_error(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(encoded(SCREEN)[:500])
    for name, code in (("none.png", "missing"), ("bad.png", "corrupt"), (".", "unreadable")):
        with pytest.raises(UnitError) as error:
            screen_frames.jpeg_of(tmp_path / name)
        assert (error.value.kind, error.value.code) == (ErrorKind.PERMANENT, code)


@pytest.mark.parametrize(
    ("make", "limits", "code"),
    [
        (lambda: of_many_scans(400), Limits(timeout_s=0.5), "too_slow"),
        (lambda: of_a_palette(9_000), Limits(memory_mb=250), "too_large"),
    ],
    ids=["scans", "palette"],
)
def test_a_small_bomb_is_a_permanent_error_and_the_next_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[], bytes], limits: Limits, code: str
) -> None:
    data = make()
    assert len(data) < 1_000_000
    bomb, sound = tmp_path / "bomb.png", tmp_path / "sound.png"
    bomb.write_bytes(data)
    sound.write_bytes(encoded(SCREEN))
    monkeypatch.setattr(screen_frames, "_CAPS", limits)
    error = refusal(bomb)
    assert (error.kind, error.code) == (ErrorKind.PERMANENT, code)
    assert "the picture" in str(error)
    assert "bomb" not in str(error)
    assert "split it" not in str(error)
    monkeypatch.undo()
    assert screen_frames.read_frame(sound).format == "PNG"


def test_a_picture_put_on_white_in_parts_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image.effect_noise((90, 70), 80).convert("P")
    image.info["transparency"] = bytes(range(256))
    whole = images.normalise(image, 10_000).tobytes()
    monkeypatch.setattr(images, "_PIXELS_AT_ONCE", 1000)
    assert images.normalise(image, 10_000).tobytes() == whole
