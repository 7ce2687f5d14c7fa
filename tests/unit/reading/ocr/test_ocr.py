import logging
from pathlib import Path
from types import SimpleNamespace

import onnxruntime
import psutil
import pytest
import rapidocr
from PIL import Image, ImageDraw, ImageFont

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.flows.documents.rules.doubt import is_doubtful
from pipeline.providers.local import LocalConverter
from pipeline.providers.protocols import PageRef
from pipeline.reading.layout.page import to_markdown
from pipeline.reading.ocr import engine as engine_module
from pipeline.reading.ocr import recognition
from pipeline.reading.ocr.engine import Text
from pipeline.reading.pdf import conversion, pdfium
from pipeline.reading.pdf.pages import Options, Pages
from pipeline.reading.sandbox.limits import MAX_PIXELS, page_limits
from pipeline.settings import Settings
from tests.support.corpus import corpus_file
from tests.support.samples import picture_of, scanned_pdf

pytestmark = pytest.mark.slow


class Engine:
    """Finds the same text in any picture, or fails. `seen`: the sizes of the pictures."""

    def __init__(self, pieces=(), error=None):
        self.pieces = pieces
        self.error = error
        self.seen = []

    def locate(self, image):
        self.seen.append(image.size)
        if self.error:
            raise self.error
        texts = {quad: Text(text, 0.99) for quad, text in self.pieces}
        return SimpleNamespace(
            quads=list(texts), read=lambda quads: [texts.get(quad, Text("?", 0.1)) for quad in quads]
        )


def answering(monkeypatch, pieces=(), error=None):
    """Install an engine that finds (text, corners), or raises. Return a list of the sizes of its pictures."""
    engine = Engine(pieces, error)
    monkeypatch.setattr(recognition._SHARED, "engine", engine)
    return engine.seen


def test_words_in_a_picture_are_recognised():
    lines = recognition.recognise(picture_of(["Hello wonderful world", "Invoice 2024-117"]), threads=1)
    assert to_markdown(lines).replace("\n\n", " ") == "Hello wonderful world Invoice 2024-117"
    assert 30 < lines[0].left < 60
    assert 20 < lines[0].size < 45


def test_recognition_doubts_its_reading_of_a_poor_scan():
    path = corpus_file("documents/MEDRPT-2024-PAT-3847_medical_report_scan.pdf")
    with pdfium.open_document(path) as document, document.page(1) as page:
        scan = page.render(150, 3_000_000)
    scan = scan.crop((0, scan.height // 2, scan.width, scan.height * 3 // 4))
    poor = scan.resize((scan.width // 4, scan.height // 4))
    reading = recognition.read(poor, threads=1)
    assert is_doubtful("", reading.confidence), reading


def test_blank_picture_has_no_lines():
    assert recognition.recognise(Image.new("RGB", (400, 300), "white"), threads=1) == []


def test_scanned_page_is_read(tmp_path, capfd):
    path = scanned_pdf(tmp_path / "scan.pdf", ["Minutes of the meeting", "held on Monday"])
    with LocalConverter(Settings()).open(path) as reader:
        text = reader.convert(PageRef(path, 1)).text
    assert "Minutes of the meeting" in text
    assert "held on Monday" in text
    assert capfd.readouterr() == ("", "")


def test_the_engine_is_made_once_and_is_quiet():
    recognition.recognise(picture_of(["one"]), threads=1)
    first = recognition._SHARED.engine
    recognition.recognise(picture_of(["two"]), threads=2)
    assert recognition._SHARED.engine is first
    assert first is not None
    assert not first._engine.use_cls
    assert not logging.getLogger("RapidOCR").isEnabledFor(logging.WARNING)


def test_real_scan_is_read():
    path = corpus_file("documents/MEDRPT-2024-PAT-3847_medical_report_scan.pdf")
    with LocalConverter(Settings()).open(path) as reader:
        text = reader.convert(PageRef(path, 1)).text
    assert "SEATTLE GENERAL HOSPITAL" in text
    assert "MEDRPT-2024-PAT-3847" in text


def test_no_texts_is_no_error(monkeypatch):
    answering(monkeypatch)
    assert recognition.recognise(Image.new("RGB", (40, 40)), threads=1) == []


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError("onnx"), MemoryError(), AssertionError(), OSError()])
def test_any_exception_of_the_ocr_engine_is_a_unit_error(monkeypatch, error):
    answering(monkeypatch, error=error)
    with pytest.raises(UnitError) as caught:
        recognition.recognise(Image.new("RGB", (40, 40)), threads=1)
    assert (caught.value.kind, caught.value.code) == (ErrorKind.TRANSIENT, "ocr_failed")


def test_missing_engine_is_a_permanent_error(monkeypatch):
    monkeypatch.setattr(recognition._SHARED, "engine", None)
    monkeypatch.setitem(__import__("sys").modules, "rapidocr", None)
    with pytest.raises(UnitError) as caught:
        recognition.recognise(Image.new("RGB", (40, 40)), threads=1)
    assert (caught.value.kind, caught.value.code) == (ErrorKind.PERMANENT, "ocr_unavailable")


def test_boxes_are_in_pixels_of_the_picture_that_was_given(monkeypatch):
    corners = ((10.0, 20.0), (110.0, 20.0), (110.0, 40.0), (10.0, 40.0))
    elsewhere = ((10.0, 60.0), (110.0, 60.0), (110.0, 80.0), (10.0, 80.0))
    seen = answering(monkeypatch, [(corners, "half"), (elsewhere, " ")])
    (line,) = recognition.recognise(Image.new("RGB", (8000, 1000)), threads=1)
    factor = 8000 / seen[0][0]
    assert (line.left, line.top, line.right, line.bottom) == tuple(
        pytest.approx(value * factor) for value in (10, 20, 110, 40)
    )


@pytest.mark.parametrize(
    "size", [(60_000, 20), (20, 60_000), (1, 30_000), (30_000, 1), (9000, 9000), (1, 1), (300, 200)]
)
def test_the_engine_sees_pictures_of_bounded_size_and_shape(monkeypatch, size):
    seen = answering(monkeypatch)
    recognition.recognise(Image.new("RGB", size), threads=1)
    (width, height) = seen[0]
    assert max(width, height) <= 4000
    assert max(width, height) <= 7 * min(width, height)
    assert width * height <= MAX_PIXELS


def test_more_pixels_are_looked_at_only_where_more_are_asked_for():
    assert [recognition.pixels_at(dpi) for dpi in (72, 200, 300)] == [3_000_000, 3_000_000, MAX_PIXELS]


@pytest.mark.parametrize(
    "words",
    [
        ["Confidential"],
        pytest.param(["Hello there", "Total 12"], marks=pytest.mark.rotating),
        pytest.param(["Dear Sir,", "", "thank you.", "", "Yours"], marks=pytest.mark.rotating),
    ],
)
def test_few_words_on_a_white_page_are_seen(words):
    page = Image.new("RGB", (1488, 1925), "white")
    page.paste(picture_of(words, (500, 350), 26), (130, 100))
    assert " ".join(line.text for line in recognition.recognise(page, threads=1)).split() == " ".join(words).split()


def _searches(monkeypatch, lines, ink=False):
    """Return the shares at which `locate` searches an A4 picture with `lines`: the height of each in pixels."""
    engine = object.__new__(engine_module.Engine)
    engine._engine = SimpleNamespace(load_img=lambda image: image)
    image = Image.new("RGB", (1_456, 2_060), "white")
    if ink:
        ImageDraw.Draw(image).rectangle((700, 1_900, 760, 1_910), fill="black")
    quads = [
        ((90, y, 900, y, 900, y + height, 90, y + height))
        for y, height in zip(range(50, 1_800, 40), lines, strict=False)
    ]
    shares = []

    def find(_image, box, share):
        shares.append((round(share, 2), box == (0, 0, *image.size)))
        return [((a, b), (c, d), (e, f), (g, h)) for a, b, c, d, e, f, g, h in quads]

    monkeypatch.setattr(engine, "_find", find, raising=False)
    located = engine.locate(image)
    assert len(located.quads) == len(quads)
    return shares


def test_a_page_of_usual_print_is_searched_once_in_a_small_picture(monkeypatch):
    assert _searches(monkeypatch, [33] * 40) == [(0.44, True)]


def test_a_page_of_small_print_is_searched_again_at_a_larger_size(monkeypatch):
    assert _searches(monkeypatch, [16] * 40) == [(0.44, True), (0.81, True)]


def test_a_page_of_few_lines_is_searched_again_only_where_there_is_other_ink(monkeypatch):
    assert _searches(monkeypatch, [33] * 4) == [(0.44, True)]
    assert _searches(monkeypatch, [33] * 4, ink=True) == [(0.44, True), (1.0, False)]


def test_lines_are_read_one_by_one_as_wide_as_they_are(monkeypatch):
    """Batches as wide as their widest line take half as long again."""
    recognition.recognise(picture_of(["one"]), threads=1)
    assert recognition._SHARED.engine is not None
    session = recognition._SHARED.engine._engine._load_rec_model().session
    run, shapes = type(session).__call__, []
    monkeypatch.setattr(
        type(session), "__call__", lambda self, pixels: [shapes.append(pixels.shape), run(self, pixels)][1]
    )
    recognition.recognise(picture_of(["A", "A much longer line of words that fills the page"]), threads=1)
    widths = sorted(shape[3] for shape in shapes if shape[2] == 48)
    assert len(widths) == 2
    assert widths[0] == 192
    assert widths[1] > 400


def test_children_that_recognise_have_a_thread_for_each_of_their_cores(tmp_path):
    """More would compete with other children: a page took 46 s on four cores with a child each."""
    path = scanned_pdf(tmp_path / "scan.pdf", ["Minutes of the meeting"])
    with Pages(path, page_limits(120, 2_000), Options(threads=1)) as pages:
        pages.convert(1)
        child = pages._session._child
        assert child is not None
        assert psutil.Process(child.process.pid).num_threads() <= 2  # and one of onnxruntime that sleeps


@pytest.mark.parametrize(
    ("text", "ruled", "size"),
    [
        ("CHIEF COMPLAINT", False, 50),  # whatever the height of the box
        ("CHIEF COMPLAINT", True, 50),  # an underline is not a part of the letters
        ("Chief complaint", False, 30),
    ],
)
def test_capitals_are_as_large_as_their_ink(monkeypatch, text, ruled, size):
    picture = Image.new("RGB", (700, 200), "white")
    draw = ImageDraw.Draw(picture)
    draw.text((60, 100), text, font=ImageFont.load_default(50), fill="black", anchor="lm")
    if ruled:
        draw.line((50, 131, 660, 131), fill="black", width=2)
    answering(monkeypatch, [(((50.0, 80.0), (650.0, 80.0), (650.0, 120.0), (50.0, 120.0)), text)])
    low = recognition.recognise(picture, threads=1)
    answering(monkeypatch, [(((50.0, 66.0), (650.0, 66.0), (650.0, 134.0), (50.0, 134.0)), text)])
    high = recognition.recognise(picture, threads=1)
    assert low[0].size == pytest.approx(size, rel=0.1)
    assert high[0].size == pytest.approx(max(size, 51), rel=0.1)


@pytest.mark.parametrize(("box", "doubtful"), [((300, 300, 700, 600), True), ((0, 0, 30, 1400), False), (None, False)])
def test_a_picture_without_text_is_doubtful_if_it_is_printed(tmp_path, monkeypatch, box, doubtful):
    monkeypatch.setattr(recognition, "read", lambda *_: recognition.Reading([], None))
    picture = Image.new("RGB", (1000, 1400), (250, 250, 245))
    if box:
        ImageDraw.Draw(picture).ellipse(box, fill="black")  # a drawing, or the shadow of a blank sheet's edge
    picture.save(tmp_path / "scan.png")
    picture.save(tmp_path / "scan.pdf")
    for name in ("scan.png", "scan.pdf"):
        with conversion.open_source(tmp_path / name, Options()) as source:
            page = source.convert(1)
        assert (page.text, is_doubtful(page.text, page.layout.get("confidence"))) == ("", doubtful)


def test_the_shipped_model_reads_the_signs_that_the_wheel_reads():
    def signs(path: Path) -> str:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return session.get_modelmeta().custom_metadata_map["character"]

    theirs = Path(rapidocr.__file__).parent / "models" / "PP-OCRv6_rec_small.onnx"
    ours = Path(engine_module.__file__).parent / "models" / "PP-OCRv6_rec_small_int8.onnx"
    assert signs(ours) == signs(theirs), "run deploy/smaller_models.py"
