import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pipeline.engine.errors import UnitError
from pipeline.reading.ocr.rendition import Rendition
from pipeline.reading.pdf import pdfium
from pipeline.reading.pdf.conversion import open_source
from pipeline.reading.pdf.pages import Options
from pipeline.reading.pdf.source_check import inspect
from pipeline.settings import DocumentSettings
from tests.support.samples import HEIC_FOLDER, sized_pdf, text_pdf

LIMITS = DocumentSettings()


def render_pages(path, numbers, folder, dpi, max_pixels):
    with open_source(path, Options()) as source:
        for number in numbers:
            yield number, source.render(number, folder, Rendition(dpi), max_pixels)


def test_pages_are_rendered_one_at_a_time_as_complete_files(tmp_path):
    path = text_pdf(tmp_path / "a.pdf", [["one"], ["two"], []])
    folder = tmp_path / "pages"
    pictures = render_pages(path, [1, 3], folder, 72, 10**6)
    number, first = next(pictures)
    assert (number, first.parent, first.exists()) == (1, folder, True)
    with Image.open(first) as image:
        assert (image.mode, image.size) == ("RGB", (612, 792))
        assert min(image.convert("L").tobytes()) < 100
    assert [number for number, _ in pictures] == [3]
    assert sorted(item.name for item in folder.iterdir() if item.suffix != ".json") == [
        "page-0001.jpg",
        "page-0003.png",
    ]


def test_flat_pages_are_png_and_others_jpeg(tmp_path):
    path = text_pdf(tmp_path / "a.pdf", [["letters have soft edges of many greys"], []])
    names = [item.name for _, item in render_pages(path, [1, 2], tmp_path / "out", 150, 10**7)]
    assert names == ["page-0001.jpg", "page-0002.png"]


@pytest.mark.parametrize("box", ["0 0 14400 14400", "0 0 14400 1", "0 0 1 14400", "0 0 0.01 0.01", "0 0 7000 3"])
def test_hostile_page_sizes_are_rendered_within_the_pixels_allowed(tmp_path, box):
    path = sized_pdf(tmp_path / "a.pdf", box)
    ((_, picture),) = render_pages(path, [1], tmp_path, 600, 100_000)
    with Image.open(picture) as image:
        assert image.width * image.height <= 100_000
        assert max(image.size) <= pdfium.MAX_SIDE_PX


@given(st.floats(0.001, 14_400), st.floats(0.001, 14_400), st.floats(36, 600), st.integers(10_000, 25_000_000))
def test_scale_keeps_pixels_and_resolution_bounded(width, height, dpi, max_pixels):
    scale = pdfium.bounded_scale(width, height, dpi, max_pixels)
    assert 0 < scale <= dpi / 72
    assert math.ceil(width * scale) * math.ceil(height * scale) <= max_pixels


def test_page_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(self, target, **options):
        target.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Image.Image, "save", fail)
    with pytest.raises(UnitError) as caught:
        list(render_pages(sized_pdf(tmp_path / "a.pdf", "0 0 9 9"), [1], tmp_path / "out", 72, 10**6))
    assert caught.value.code == "io"
    assert list((tmp_path / "out").iterdir()) == []


def rendered(tmp_path, image, name="a.png", max_pixels=10**6, **options):
    image.save(tmp_path / name, **options)
    inspect(tmp_path / name, LIMITS)
    ((_, picture),) = render_pages(tmp_path / name, [1], tmp_path / "out", 72, max_pixels)
    with Image.open(picture) as page:
        assert page.mode == "RGB"
        return page.copy()


def test_transparency_becomes_white(tmp_path):
    image = Image.new("RGBA", (4, 2), (255, 0, 0, 255))
    image.putpixel((0, 0), (0, 0, 0, 0))
    assert rendered(tmp_path, image).getpixel((0, 0)) == (255, 255, 255)
    palette = image.convert("P")
    palette.info["transparency"] = palette.getpixel((0, 0))
    assert rendered(tmp_path, palette, transparency=palette.getpixel((0, 0))).getpixel((0, 0)) == (255, 255, 255)
    assert rendered(tmp_path, Image.new("LA", (2, 2), (0, 0))).getpixel((1, 1)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("mode", "colour", "name", "expected"),
    [
        ("1", 1, "a.png", 255),
        ("L", 77, "a.png", 77),
        ("P", 0, "a.png", 0),
        ("I;16", 40_000, "a.png", 156),
        ("I;16", 40_000, "a.tiff", 156),
        ("F", 3.5, "a.tiff", 0),
        ("CMYK", (0, 0, 0, 0), "a.jpg", 255),
        ("CMYK", (0, 0, 0, 255), "a.tiff", 0),
    ],
)
def test_all_colour_modes_become_rgb(tmp_path, mode, colour, name, expected):
    image = Image.new(mode, (40, 30), colour)
    assert rendered(tmp_path, image, name).getpixel((5, 5)) == pytest.approx((expected,) * 3, abs=2)


def test_photos_are_turned_upright(tmp_path):
    image = Image.new("RGB", (300, 200), "white")
    exif = image.getexif()
    exif[0x0112] = 6
    assert rendered(tmp_path, image, "a.jpg", exif=exif).size == (200, 300)
    assert rendered(tmp_path, image, "a.jpg", max_pixels=15_000, exif=exif).size == (100, 150)
    [(_, picture)] = render_pages(HEIC_FOLDER / "photo.heic", [1], tmp_path / "out", 72, 10**6)
    with Image.open(picture) as upright:
        assert upright.size == (900, 500)


@pytest.mark.parametrize("mode", ["1", "P", "RGBA", "I;16", "CMYK"])
def test_pictures_are_made_smaller_where_they_have_too_many_pixels(tmp_path, mode):
    image = rendered(tmp_path, Image.new(mode, (900, 600)), "a.tiff", max_pixels=20_000)
    assert image.width * image.height <= 20_000
    assert image.width / image.height == pytest.approx(1.5, abs=0.02)


def test_frames_of_a_tiff_are_rendered_each(tmp_path):
    frames = [Image.new("L", (10 * n, 10)) for n in (1, 2, 3)]
    frames[0].save(tmp_path / "a.tiff", save_all=True, append_images=frames[1:])
    widths = []
    for _, picture in render_pages(tmp_path / "a.tiff", [2, 3], tmp_path / "out", 72, 10**6):
        with Image.open(picture) as image:
            widths.append(image.width)
    assert widths == [20, 30]
