import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.screenshots.frames.deduplicating import Seen, judge, pressure, recent
from pipeline.screenshots.frames.hashing import HASH_BITS, as_jpeg, distance, read_frame
from pipeline.screenshots.states import Verdict
from pipeline.settings import ScreenshotSettings

NOW = datetime(2026, 1, 12, 16, tzinfo=UTC)
SETTINGS = ScreenshotSettings()


def window(lines: int = 12, seed: int = 1) -> Image.Image:
    """A small window with lines of "text"."""
    picker = random.Random(seed)
    image = Image.new("RGB", (480, 300), "white")
    draw = ImageDraw.Draw(image)
    for line in range(lines):
        x = 10
        while x < 420:
            width = picker.randint(5, 40)
            draw.rectangle((x, 12 + line * 22, x + width, 22 + line * 22), fill="black")
            x += width + 8
    return image


def encoded(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    out = BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


SMALL = {form: encoded(window().resize((48, 30)), form) for form in ("PNG", "GIF", "JPEG", "WEBP", "TIFF", "BMP")}


def code_of(data: bytes) -> str:
    with pytest.raises(UnitError) as error:
        read_frame(data)
    assert error.value.kind is ErrorKind.PERMANENT
    return error.value.code


def test_hash_has_256_bits_and_is_the_same_for_the_same_bytes() -> None:
    data = encoded(window())
    one, other = read_frame(data), read_frame(data)
    assert one.phash == other.phash
    assert len(one.phash) * 4 == HASH_BITS


def test_a_cursor_is_a_duplicate_and_another_window_is_not() -> None:
    before = window().resize((1920, 1200))
    cursor = before.copy()
    ImageDraw.Draw(cursor).rectangle((1760, 800, 1761, 816), fill="black")
    hashed = read_frame(encoded(before)).phash
    assert distance(hashed, read_frame(encoded(cursor)).phash) <= SETTINGS.dedup_threshold
    assert distance(hashed, read_frame(encoded(window(seed=2).resize((1920, 1200)))).phash) > 64


def test_frames_without_contrast_are_alike_whatever_their_colour() -> None:
    hashes = {read_frame(encoded(Image.new("RGB", (300, 200), colour))).phash for colour in ("black", "white", "#777")}
    assert hashes == {"0" * 64}


def test_what_is_no_picture_or_cut_off_or_far_too_large_is_refused_with_its_reason() -> None:
    data = encoded(window())
    assert code_of(b"") == code_of(b"hello, world") == code_of(b"%PDF-1.7\n") == "not_an_image"
    assert code_of(data[: len(data) // 2]) == "corrupt"
    assert code_of(encoded(Image.new("1", (20_000, 20_000)))) == "too_many_pixels"


@given(st.sampled_from(["PNG", "GIF", "JPEG", "WEBP", "TIFF", "BMP"]), st.data())
def test_damage_raises_nothing_but_unit_errors(form: str, data: st.DataObject) -> None:
    whole = bytearray(SMALL[form])
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(UnitError):
        read_frame(bytes(whole[: data.draw(st.integers(0, len(whole)))]))


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "CMYK", "I;16", "1"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    image = Image.new("I;16", (40, 30), 500) if mode == "I;16" else window().convert(mode)
    frame = read_frame(encoded(image, "TIFF"))
    assert frame.image.mode == "RGB"
    assert not frame.animated


def test_what_is_transparent_is_white() -> None:
    clear = Image.new("RGBA", (40, 30), (0, 0, 0, 0))
    assert read_frame(encoded(clear)).image.getpixel((5, 5)) == (255, 255, 255)


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP"])
def test_of_a_picture_that_moves_the_first_one_counts(form: str) -> None:
    moving = encoded(window(), form, save_all=True, append_images=[window(seed=2), window(seed=3)], lossless=True)
    frame = read_frame(moving)
    assert frame.animated
    assert distance(frame.phash, read_frame(encoded(window())).phash) <= 2


def test_models_get_a_jpeg_of_bounded_size() -> None:
    with Image.open(BytesIO(as_jpeg(window(), max_side=100))) as image:
        assert (image.format, max(image.size)) == ("JPEG", 100)


@pytest.mark.parametrize(("one", "other"), [("00", "00"), ("0" * 64, ""), ("0" * 64, "z" * 64)])
def test_only_hashes_of_this_size_are_compared(one: str, other: str) -> None:
    with pytest.raises(ValueError, match=r"hash|invalid literal"):
        distance(one, other)


def hash_of(bits: int) -> str:
    return f"{(1 << bits) - 1:064x}"


def seen(number: int, bits: int, age_s: float = 0) -> Seen:
    return Seen(number, hash_of(bits), NOW - timedelta(seconds=age_s))


def test_a_rejection_names_its_distance_threshold_and_nearest_frame() -> None:
    found = judge(hash_of(0), [seen(1, 40), seen(2, 6), seen(3, 6)], 6)
    assert (found.verdict, found.distance, found.nearest, found.threshold) == (Verdict.DUPLICATE, 6, 2, 6)
    assert judge(hash_of(0), [seen(1, 7)], 6).verdict is Verdict.ACCEPTED
    assert judge(hash_of(0), [], 6).nearest is None


def test_compared_with_the_last_few_frames_of_the_window_and_those_from_the_future() -> None:
    frames = [seen(number, 0, age_s=number) for number in range(20)] + [seen(98, 0, 601), seen(99, 0, -3600)]
    found = [frame.id for frame in recent(frames, NOW, SETTINGS)]
    assert found == [99, *range(SETTINGS.dedup_frames - 1)]


def test_pressure_widens_the_threshold_first_then_makes_batches_longer() -> None:
    at = SETTINGS.pressure_batches
    levels = [pressure(waiting, 0, SETTINGS) for waiting in (0, at - 1, at, 2 * at)]
    assert [one.level for one in levels] == [0, 0, 1, 2]
    assert [one.threshold for one in levels] == [6, 6, 10, 10]
    assert [(one.batch_size, one.batch_timeout_s) for one in levels] == [(5, 30), (5, 30), (5, 30), (10, 60)]


def test_pressure_ends_at_half_of_what_began_it() -> None:
    at = SETTINGS.pressure_batches
    assert pressure(at - 1, 1, SETTINGS).level == 1
    assert pressure(at // 2, 1, SETTINGS).level == 0
    assert pressure(at + 1, 2, SETTINGS).level == 2
    assert pressure(at, 2, SETTINGS).level == 1
    assert pressure(0, 2, SETTINGS).level == 0
