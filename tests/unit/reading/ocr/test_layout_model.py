"""The layout model as second witness: when conversion calls it, its answers, and conversion without it."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.reading.layout import rotation
from pipeline.reading.layout.model import Line, Region
from pipeline.reading.layout.page import PageContent
from pipeline.reading.layout.regions import covering
from pipeline.reading.ocr import layout_model, recognition
from pipeline.reading.pdf import conversion, pdfium, text_layer
from pipeline.reading.pdf.pages import Options
from pipeline.reading.pdf.text_layer import TextLayer
from tests.support.corpus import corpus_file
from tests.support.samples import Sheet, pdf_bytes, picture_of, shown_lines, with_table

PAPER = "documents/multi-column-2p.pdf"
LEFT, RIGHT = (70, 480, 290, 706), (306, 226, 527, 763)


def look_at(turn=None, angle=0):
    """Return the model's regions on a turned page of two columns."""
    with pdfium.open_document(corpus_file(PAPER)) as document, document.page(1) as page:
        (width, height), picture = page.size, page.render(150, layout_model.PIXELS)
    if turn is not None:
        picture = picture.transpose(turn)
        width, height = (height, width) if angle == 90 else (width, height)
    lines = (Line("upright or not", 0, 0, 100, 10, 10.0, (), angle),)
    return layout_model.regions(picture, PageContent(width, height, lines), threads=1), (width, height)


@pytest.fixture
def seen(monkeypatch):
    """Replace the model by one without regions. Return a list of its calls."""
    calls = []
    monkeypatch.setattr(layout_model, "regions", lambda picture, content, _threads: calls.append(content) or ())
    return calls


@pytest.fixture
def unavailable(monkeypatch):
    shared = layout_model._Shared()
    monkeypatch.setattr(layout_model, "_SHARED", shared)
    monkeypatch.setattr(layout_model, "_MODEL", Path("models/absent.onnx"))
    return shared


def columns_pdf(path):
    """Write a page of two columns of short lines with a drawing below, which geometry alone may not understand."""
    left = [f"left {n} of the text that fills the column" for n in range(30)]
    right = [f"right {n} of the text that fills it too" for n in range(30)]
    rows = [
        b"BT /F1 9 Tf %d %d Td (%s) Tj ET" % (x, 740 - 14 * n, text.encode())
        for x, texts in ((60, left), (320, right))
        for n, text in enumerate(texts)
    ]
    path.write_bytes(pdf_bytes([Sheet(b"\n".join([*rows, b"80 80 m 150 200 220 20 290 140 c S"]))]))
    return path


def convert(path, **options):
    with conversion.open_source(path, Options(**options)) as source:
        return source.convert(1)


@pytest.mark.slow
def test_columns_of_a_real_page_are_seen():
    regions, _ = look_at()
    for column in (LEFT, RIGHT):
        text = covering(regions, column, 0.9)
        assert text is not None
        assert (text.kind, text.score > 0.8) == ("text", True)
    assert all(0 <= box[0] < box[2] <= 596 and 0 <= box[1] < box[3] <= 842 for _, box, _ in regions)


@pytest.mark.slow
@pytest.mark.parametrize(("turn", "angle"), [(Image.Transpose.ROTATE_270, 90), (Image.Transpose.ROTATE_180, 180)])
def test_a_turned_page_is_shown_upright_and_its_regions_are_where_they_are_on_it(turn, angle):
    upright, _ = look_at()
    turned, (width, height) = look_at(turn, angle)
    assert [region.kind for region in turned] == [region.kind for region in upright]
    back = rotation.upright(PageContent(width, height, (), regions=turned), angle).regions
    assert [region.box for region in back] == [pytest.approx(region.box, abs=0.1) for region in upright]
    assert turned[0].box != pytest.approx(upright[0].box, abs=50)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(600, 800), (3000, 40), (1, 1)])
def test_on_an_empty_page_nothing_is_seen(size):
    assert layout_model.regions(Image.new("RGB", size, "white"), PageContent(size[0], size[1], ()), threads=1) == ()


def test_one_column_that_is_sure_is_not_looked_at(tmp_path, seen):
    path = tmp_path / "a.pdf"
    lines = [f"line {n} of one column of running text, all of it" for n in range(30)]
    path.write_bytes(pdf_bytes([Sheet(shown_lines(lines)) for _ in range(12)]))
    survey = conversion.survey(path, range(1, 13), Options(), lambda: None)
    with conversion.open_source(path, Options(), survey) as source:
        source.convert(6)
    assert seen == []


def test_columns_with_a_drawing_are_looked_at(tmp_path, seen):
    convert(columns_pdf(tmp_path / "a.pdf"))
    assert len(seen) == 1


def test_conversion_by_geometry_loads_no_model(tmp_path, seen):
    convert(columns_pdf(tmp_path / "a.pdf"), layout="geometry")
    assert seen == []


def test_with_the_model_each_page_is_looked_at(tmp_path, seen):
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf_bytes([Sheet(shown_lines(["one", "two"]))]))
    convert(path, layout="model")
    assert len(seen) == 1


@pytest.mark.parametrize(("layout", "times"), [("auto", 1), ("geometry", 0)])
def test_recognised_pages_are_looked_at_as_they_lie(tmp_path, seen, monkeypatch, layout, times):
    read = recognition.Reading([Line("hello", 10, 20, 60, 30, 10.0)], 0.9)
    monkeypatch.setattr(recognition, "read", lambda *_: read)
    path = tmp_path / "a.png"
    picture_of(["hello"]).save(path)
    convert(path, layout=layout)
    assert [content.lines for content in seen] == [tuple(read.lines)] * times


def test_the_layout_model_sees_a_page_with_a_poor_text_layer_and_no_picture(tmp_path, seen, monkeypatch):
    poor = TextLayer([Line("hidden", 10, 20, 60, 30, 10.0)], 6, 0.5)
    assert not poor.usable
    monkeypatch.setattr(text_layer, "read", lambda *_: poor)
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf_bytes([Sheet(b"")]))
    assert "hidden" in convert(path).text
    assert len(seen) == 1


def test_without_its_model_auto_falls_back_to_geometry_after_one_try(tmp_path, unavailable, monkeypatch):
    path, tried = columns_pdf(tmp_path / "a.pdf"), []
    load = layout_model._load
    monkeypatch.setattr(layout_model, "_load", lambda threads: tried.append(1) or load(threads))
    assert convert(path).text == convert(path).text == convert(path, layout="geometry").text
    assert len(tried) == 1


def test_a_page_that_cannot_be_drawn_is_converted_by_geometry_unless_the_model_must_look(tmp_path, seen, monkeypatch):
    path = columns_pdf(tmp_path / "a.pdf")
    expected = convert(path, layout="geometry").text

    def fails(*_, **__):
        raise UnitError("it cannot be drawn", code="corrupt")

    monkeypatch.setattr(pdfium.Page, "sketch", fails)
    assert convert(path).text == expected
    with pytest.raises(UnitError, match="cannot be drawn"):
        convert(path, layout="model")
    assert seen == []


def test_without_its_model_a_page_that_needs_it_fails_permanently_with_the_reason(tmp_path, unavailable):
    with pytest.raises(UnitError, match=r"cannot be loaded: .*models/absent\.onnx") as caught:
        convert(columns_pdf(tmp_path / "a.pdf"), layout="model")
    assert (caught.value.kind, caught.value.code) == (ErrorKind.PERMANENT, "layout_unavailable")


def test_an_exception_of_the_layout_engine_is_a_transient_error(tmp_path, unavailable):
    class Session:
        def run(self, *_):
            raise RuntimeError("no memory")

        def get_inputs(self):
            return [SimpleNamespace(name="image")]

    unavailable.session = Session()
    path = columns_pdf(tmp_path / "a.pdf")
    with pytest.raises(UnitError, match="no memory") as caught:
        convert(path, layout="model")
    assert (caught.value.kind, caught.value.code) == (ErrorKind.TRANSIENT, "layout_failed")
    assert convert(path).text


def test_pages_with_a_text_layer_of_one_column_load_no_engine():
    script = (
        "import sys\n"
        "from pipeline.reading.ocr import layout_model\n"
        "assert not {'onnxruntime', 'numpy', 'cv2'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def layers_pdf(path, count):
    """Write a page below transparent layers, each of which takes long to draw."""
    drawn = b"q /G gs /X Do Q\n" * count
    fill = b"0.9 0.9 1 rg 0 0 612 792 re f"
    resources = b"/ExtGState<</G<</ca .01/BM/Luminosity>>>>/XObject<</X 5 0 R>>"
    layer = b"/Type/XObject/Subtype/Form/BBox[0 0 612 792]/Group<</S/Transparency/CS/DeviceRGB>>"
    path.write_bytes(
        with_table(
            [
                b"<</Type/Catalog/Pages 2 0 R>>",
                b"<</Type/Pages/Count 1/Kids[3 0 R]>>",
                b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<<%s>>>>" % resources,
                b"<</Length %d>>stream\n%s\nendstream" % (len(drawn), drawn),
                b"<<%s/Length %d>>stream\n%s\nendstream" % (layer, len(fill), fill),
            ],
            b"",
        )
    )
    return path


def test_a_page_that_takes_long_to_draw_is_given_up(tmp_path):
    with pdfium.open_document(layers_pdf(tmp_path / "a.pdf", 300)) as document, document.page(1) as page:
        with pytest.raises(UnitError) as caught:
            page.sketch(150, layout_model.PIXELS, 0.05)
        assert caught.value.code == "slow_drawing"


def test_a_sketch_equals_the_rendered_page(tmp_path):
    with pdfium.open_document(columns_pdf(tmp_path / "a.pdf")) as document, document.page(1) as page:
        assert page.sketch(72, layout_model.PIXELS, 60).tobytes() == page.render(72, layout_model.PIXELS).tobytes()


def test_regions_reach_the_page_in_its_own_unit(tmp_path, monkeypatch):
    region = Region("text", (60.0, 40.0, 300.0, 500.0), 0.9)
    monkeypatch.setattr(layout_model, "regions", lambda *_: (region,))
    content = PageContent(612, 792, (Line("text", 70, 50, 100, 60, 10.0),))
    seen = conversion._with_seen_regions(content, lambda: Image.new("RGB", (10, 10)), Options())
    assert seen.regions == (region,)
