"""Pictures of every format have the hashes of imagehash. Other bytes are refused."""

from contextlib import suppress
from io import BytesIO
from pathlib import Path

import imagehash
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.flows.screenshots.rules.duplicates import distance
from pipeline.reading.ocr.fingerprint import HASH_BITS, as_jpeg, load_image, phash, read_frame
from tests.support.frames import Desktop, draw, encoded, noise

SCREEN = draw(Desktop(size=(640, 400), lines=10))
SMALL = {form: encoded(SCREEN.resize((48, 30)), form) for form in ("PNG", "GIF", "JPEG", "WEBP", "TIFF", "BMP")}


def code_of(data: bytes) -> str:
    with pytest.raises(UnitError) as error:
        read_frame(data)
    assert error.value.kind is ErrorKind.PERMANENT
    return error.value.code


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1", "RGBA"])
@pytest.mark.parametrize("size", [(640, 400), (1920, 1080), (64, 64), (10, 700)])
def test_a_hash_has_the_bits_of_imagehash(size: tuple[int, int], mode: str) -> None:
    data = encoded(draw(Desktop(size=(1920, 1080))).resize(size).convert(mode))
    with Image.open(BytesIO(data)) as image:
        assert read_frame(data).phash == str(imagehash.phash(image, hash_size=16))
    assert len(read_frame(data).phash) * 4 == HASH_BITS


@pytest.mark.parametrize("size", [(320, 200), (640, 400), (1366, 768), (1921, 1081), (2560, 1440)])
@pytest.mark.parametrize("quality", [75, 90])
def test_a_jpeg_hashes_and_sketches_like_the_png_of_the_same_screen(size: tuple[int, int], quality: int) -> None:
    image = draw(Desktop(lines=20)).resize(size)
    png, jpeg = read_frame(encoded(image)), read_frame(encoded(image, "JPEG", quality=quality))
    assert distance(png.phash, jpeg.phash) <= 6
    assert png.sketch.size == jpeg.sketch.size


def test_frames_without_contrast_have_equal_hashes_in_any_colour_and_format() -> None:
    colours = ("black", "white", "#777", "#1e90ff")
    hashes = {
        read_frame(encoded(Image.new("RGB", (1300, 700), colour), form)).phash
        for colour in colours
        for form in ("PNG", "JPEG")
    }
    assert hashes == {"0" * 64}


def test_invalid_truncated_and_oversized_pictures_are_refused_with_a_reason() -> None:
    data = encoded(SCREEN)
    assert code_of(b"") == code_of(b"hello, world") == code_of(b"%PDF-1.7\n") == "not_an_image"
    assert code_of(data[: len(data) // 2]) == "corrupt"
    assert code_of(encoded(Image.new("1", (20_000, 20_000)))) == "too_many_pixels"
    assert code_of(encoded(Image.new("L", (10_000, 9_000)), "JPEG")) == "too_many_pixels"


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
def test_a_truncated_jpeg_is_refused_though_it_is_decoded_small(part: float, progressive: bool) -> None:
    data = encoded(draw(), "JPEG", progressive=progressive)
    assert code_of(data[: int(len(data) * part)]) == "corrupt"


@given(st.sampled_from(["PNG", "GIF", "JPEG", "WEBP", "TIFF", "BMP"]), st.data())
def test_damage_raises_nothing_but_unit_errors(form: str, data: st.DataObject) -> None:
    whole = bytearray(SMALL[form])
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(UnitError):
        read_frame(bytes(whole[: data.draw(st.integers(0, len(whole)))]))


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "CMYK", "I;16", "1"])
def test_pictures_of_every_mode_become_rgb_and_have_equal_hashes(tmp_path: Path, mode: str) -> None:
    grey = SCREEN.convert("L")
    image = (
        grey.convert("I").point(lambda value: value * 257).convert("I;16") if mode == "I;16" else SCREEN.convert(mode)
    )
    data = encoded(image, "TIFF")
    path = tmp_path / "frame.tif"
    path.write_bytes(data)
    assert load_image(path).mode == "RGB"
    bits = distance(read_frame(data).phash, phash(SCREEN))
    assert bits <= (40 if mode in {"1", "P"} else 6)


def test_a_jpeg_in_cmyk_is_read() -> None:
    assert distance(read_frame(encoded(SCREEN.convert("CMYK"), "JPEG")).phash, phash(SCREEN)) <= 6


def test_transparent_areas_become_white(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (40, 30), (0, 0, 0, 0))
    clear.paste((0, 0, 0, 255), (0, 0, 10, 30))
    white = Image.new("RGB", (40, 30), "white")
    white.paste((0, 0, 0), (0, 0, 10, 30))
    path = tmp_path / "frame.png"
    path.write_bytes(encoded(clear))
    assert load_image(path).getpixel((30, 5)) == (255, 255, 255)
    assert read_frame(path.read_bytes()).phash == read_frame(encoded(white)).phash


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_a_turned_frame_is_put_upright(tmp_path: Path, form: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "frame"
    path.write_bytes(encoded(draw().transpose(Image.Transpose.ROTATE_90), form, exif=exif))
    assert load_image(path).size == (1920, 1080)
    assert distance(read_frame(path.read_bytes()).phash, phash(draw())) <= 6
    assert ImageOps.exif_transpose(load_image(path)).size == (1920, 1080)


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP"])
def test_the_first_frame_of_an_animation_counts(form: str) -> None:
    moving = encoded(
        SCREEN, form, save_all=True, append_images=[noise("2", 640).convert("RGB").resize(SCREEN.size)], lossless=True
    )
    assert distance(read_frame(moving).phash, phash(SCREEN)) <= 4


def test_models_get_a_jpeg_of_bounded_size_and_the_image_stays_as_it_was() -> None:
    image = SCREEN.copy()
    with Image.open(BytesIO(as_jpeg(image, max_side=100))) as small:
        assert (small.format, max(small.size)) == ("JPEG", 100)
    assert image.size == SCREEN.size


@pytest.mark.parametrize(("first", "second"), [("00", "00"), ("0" * 64, ""), ("0" * 64, "z" * 64)])
def test_only_hashes_of_this_size_are_compared(first: str, second: str) -> None:
    with pytest.raises(ValueError, match=r"hash|invalid literal"):
        distance(first, second)
