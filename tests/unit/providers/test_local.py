import os
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import gettempdir

import pytest
from PIL import Image

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.providers import local
from pipeline.providers.local import LocalConverter
from pipeline.providers.protocols import PageRef
from pipeline.reading.layout.page import Line
from pipeline.reading.ocr import recognition, second_opinion
from pipeline.reading.ocr.second_opinion import Tesseract
from pipeline.reading.pdf import conversion, pdfium, pictures, text_layer
from pipeline.reading.sandbox.child import Session
from pipeline.settings import Settings
from tests.support.corpus import corpus_file
from tests.support.pages_here import PagesHere
from tests.support.samples import (
    Sheet,
    encrypted_pdf,
    form_pdf,
    pdf_bytes,
    picture_of,
    scanned_pdf,
    shown,
    shown_lines,
    text_pdf,
    two_column_pdf,
)


@pytest.fixture
def converter(monkeypatch):
    """Read in this process, where a test can replace text recognition."""
    monkeypatch.setattr(local, "Pages", PagesHere)
    return LocalConverter(Settings())


@pytest.fixture
def no_ocr(monkeypatch):
    def refuse(image, threads):
        raise AssertionError("the text layer should do")

    monkeypatch.setattr(recognition, "read", refuse)


@pytest.fixture
def fake_ocr(monkeypatch):
    """Recognise the same line in the middle of every picture. Return a list of the pictures."""
    seen = []

    def read(image, threads):
        seen.append(image.size)
        width, height = image.size
        line = Line("seen words", width * 0.1, height * 0.4, width * 0.9, height * 0.6, height * 0.15)
        return recognition.Reading([line], 0.97)

    monkeypatch.setattr(recognition, "read", read)
    return seen


def convert(converter, path, number=1, image=None):
    with converter.open(path) as reader:
        return reader.convert(PageRef(path, number, image))


@pytest.mark.parametrize("there", [True, False], ids=["as usual", "without a folder for it"])
def test_pictures_for_a_second_opinion_are_where_clean_up_finds_them(tmp_path, monkeypatch, there):
    """A killed worker leaves such a folder behind, with a page of a user's document."""
    monkeypatch.setattr(second_opinion, "installed", lambda: Tesseract("tesseract", "5", ("eng",)))
    settings = Settings(data_dir=tmp_path / "data")
    if there:
        settings.temp_dir.mkdir(parents=True)
    seen = []

    class Recorded(Session):
        def __init__(self, *args, scratch=None, **named):
            seen.append(scratch)
            super().__init__(*args, scratch=scratch, **named)

        def ask(self, *_):
            return {"text": "", "layout": {}}

    monkeypatch.setattr("pipeline.reading.pdf.pages.Session", Recorded)
    convert(LocalConverter(settings), text_pdf(tmp_path / "a.pdf", [["one"]]))

    assert seen == [settings.temp_dir if there else Path(gettempdir())]


def test_text_layer_gives_paragraphs(tmp_path):
    path = text_pdf(tmp_path / "a.pdf", [["First line of the text goes on", "in a second one."], ["Page two."]])
    with LocalConverter(Settings()).open(path) as reader:
        answers = [reader.convert(PageRef(path, number)) for number in (1, 2, 1)]
    first = "First line of the text goes on in a second one."
    assert [answer.text for answer in answers] == [first, "Page two.", first]
    assert answers[0].model == "local"
    assert answers[0].usage.input_tokens == 0
    assert answers[0].latency_ms >= 0


def test_columns_written_across_are_read_down(converter, tmp_path, no_ocr):
    left = [f"left column has this line {n} in it" for n in range(8)]
    right = [f"right column has its line {n} in it" for n in range(8)]
    text = convert(converter, two_column_pdf(tmp_path / "a.pdf", left, right, "Title of both columns")).text
    assert text.index("Title") < text.index("left column has this line 7") < text.index("right column has its line 0")


def test_a_pdf_is_known_by_its_content(converter, tmp_path, no_ocr):
    path = text_pdf(tmp_path / "really-a-pdf.png", [["Hello"]])
    assert convert(converter, path).text == "Hello"


@pytest.mark.parametrize("turn", [0, 90, 180, 270])
def test_turned_pages_are_read_as_they_are_shown(converter, tmp_path, no_ocr, turn):
    # The drawing is turned the other way, so that it is upright on the turned page.
    matrix = {0: "1 0 0 1 0 0", 90: "0 1 -1 0 600 0", 180: "-1 0 0 -1 600 600", 270: "0 -1 1 0 0 600"}[turn]
    content = f"q {matrix} cm\n".encode() + shown_lines(["Upper line of text.", "", "", "", "Lower line."], 50, 500)
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf_bytes([Sheet(content + b"Q", "0 0 600 600", f"/Rotate {turn}")]))
    assert convert(converter, path).text == "Upper line of text.\n\nLower line."
    with pdfium.open_document(path) as document, document.page(1) as page:
        upper = text_layer.read(page).lines[0]
    assert (upper.left, upper.bottom) == (pytest.approx(51, abs=2), pytest.approx(102, abs=4))


def test_boxes_are_relative_to_the_visible_part_of_the_page(tmp_path):
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf_bytes([Sheet(shown("Here", 150, 250), "0 0 600 600", "/CropBox[100 200 300 300]")]))
    with pdfium.open_document(path) as document, document.page(1) as page:
        first_line = text_layer.read(page).lines[0]
        assert page.size == (200, 100)
    assert (first_line.left, first_line.bottom) == (pytest.approx(51, abs=2), pytest.approx(52, abs=4))


def test_filled_form_fields_are_text(converter, tmp_path, no_ocr):
    assert convert(converter, form_pdf(tmp_path / "form.pdf", "Ada Lovelace")).text == "Ada Lovelace"


def test_empty_page_gives_empty_text(converter, tmp_path, no_ocr):
    path = text_pdf(tmp_path / "a.pdf", [[]])
    assert convert(converter, path).text == ""
    path.write_bytes(pdf_bytes([Sheet(b"1 1 1 rg 10 10 50 50 re f")]))  # white on white
    assert convert(converter, path).text == ""


def test_page_without_text_layer_is_recognised(converter, tmp_path, fake_ocr):
    assert convert(converter, scanned_pdf(tmp_path / "scan.pdf", ["anything"])).text == "seen words"
    assert len(fake_ocr) == 1


def test_picture_of_the_page_is_used_where_there_is_one(converter, tmp_path, fake_ocr):
    picture_of(["anything"], (321, 123)).save(tmp_path / "page.png")
    convert(converter, scanned_pdf(tmp_path / "scan.pdf", ["anything"]), image=tmp_path / "page.png")
    assert fake_ocr == [(321, 123)]


def test_picture_with_text_on_a_page_with_text_is_recognised_too(converter, tmp_path, fake_ocr):
    path = tmp_path / "mixed.pdf"
    path.write_bytes(_page_with_picture(shown("Text above the picture.", 72, 750)))
    text = convert(converter, path).text
    assert text == "Text above the picture.\n\n# seen words"  # as large as a title


def test_a_picture_on_every_page_is_recognised_once(converter, tmp_path, fake_ocr):
    path = tmp_path / "mixed.pdf"
    path.write_bytes(_page_with_picture(shown("Some text.", 72, 750)))
    with converter.open(path) as reader:
        assert [reader.convert(PageRef(path, 1)).text for _ in range(3)] == ["Some text.\n\nseen words"] * 3
    assert len(fake_ocr) == 1


def test_a_picture_under_the_text_is_a_background(converter, tmp_path, no_ocr):
    path = tmp_path / "slide.pdf"
    path.write_bytes(_page_with_picture(shown_lines([f"text over the picture, line {n}" for n in range(20)], 100, 600)))
    assert "line 19" in convert(converter, path).text


def _page_with_picture(content):
    """Return a page with `content` and, in its own group, a picture of 400 × 300 points and pixels."""
    pixels = bytes(range(256)) * 469
    image = b"<</Type/XObject/Subtype/Image/Width 400/Height 300/ColorSpace/DeviceGray/BitsPerComponent 8/Length %d>>"
    body = image % 120_000 + b"stream\n" + pixels[:120_000] + b"\nendstream"
    form = b"<</Type/XObject/Subtype/Form/BBox[0 0 1 1]/Resources<</XObject<</Im 5 0 R>>>>/Length 6>>"
    form += b"stream\n/Im Do\nendstream"
    sheet = Sheet(
        b"q 400 0 0 300 90 320 cm /Fm Do Q\n" + content,
        objects=(body, form),
    )
    pdf = pdf_bytes([sheet])
    return pdf.replace(b"/Font<</F1 3 0 R>>", b"/XObject<</Fm 6 0 R>>/Font<</F1 3 0 R>>")


def test_words_on_a_picture_that_the_text_layer_has_are_not_repeated():
    known = [Line("Invoice 2024", 10, 10, 110, 22, 12)]
    seen = [
        Line("Invoice 2O24", 12, 9, 108, 23, 12),
        Line("Paid", 20, 12, 50, 22, 12),
        Line("Total", 10, 50, 60, 62, 12),
    ]
    assert [line.text for line in pictures.new_lines(seen, known)] == ["Paid", "Total"]


def test_strips_of_a_picture_count_as_one():
    strips = [((10.0, 10.0 * n, 200.0, 10.0 * n + 10), 1000) for n in range(5)]
    apart = ((300.0, 300.0, 310.0, 310.0), 7)
    assert sorted(pictures.merged([*strips, apart])) == [((10, 0, 200, 50), 5000), apart]
    many = [((float(n), 0.0, n + 0.5, 1.0), 1) for n in range(500)]
    assert pictures.merged(many) == [((0, 0, 499.5, 1), 500)]


def test_unreadable_text_layer_gives_way_to_recognition(converter, tmp_path, fake_ocr, monkeypatch):
    path = text_pdf(tmp_path / "a.pdf", [["mapped to nonsense"]])
    monkeypatch.setattr(text_layer, "_mapped_share", lambda handle, count: 0.1)
    assert convert(converter, path).text == "seen words"


def test_poor_text_layer_is_better_than_nothing(converter, tmp_path, monkeypatch):
    path = text_pdf(tmp_path / "a.pdf", [["all there is"]])
    monkeypatch.setattr(text_layer, "_mapped_share", lambda handle, count: 0.1)
    monkeypatch.setattr(recognition, "read", lambda image, threads: recognition.Reading([], None))
    assert convert(converter, path).text == "all there is"


@pytest.mark.parametrize(
    ("text", "share"),
    [("plain text", 1), ("", 0), (" \n", 0), ("\ue001\ue002\ue003", 0), ("ab\ufffd\x02", 0.5), ("日本語 ünïcode", 1)],
)
def test_the_readable_share_counts_legible_characters(text, share):
    assert text_layer.readable_share(text) == share


def test_pictures_of_every_format_are_recognised(converter, tmp_path, fake_ocr):
    for name in ("a.png", "a.jpg", "a.webp"):
        picture_of(["x"]).save(tmp_path / name)
        assert convert(converter, tmp_path / name).text == "seen words"
    frames = [Image.new("RGB", (50 + n, 60), "white") for n in range(3)]
    for frame in frames:
        frame.putpixel((5, 5), (0, 0, 0))
    frames[0].save(tmp_path / "a.tiff", save_all=True, append_images=frames[1:])
    assert convert(converter, tmp_path / "a.tiff", 3).text == "seen words"
    assert fake_ocr[-1] == (52, 60)


@pytest.mark.parametrize("number", [0, 3])
def test_page_that_is_not_there_is_a_permanent_error(converter, tmp_path, number):
    pdf = text_pdf(tmp_path / "a.pdf", [["one"], ["two"]])
    picture_of(["x"]).save(tmp_path / "a.png")
    for path in (pdf, tmp_path / "a.png"):
        with pytest.raises(UnitError) as caught:
            convert(converter, path, number)
        assert (caught.value.kind, caught.value.code) == (ErrorKind.PERMANENT, "no_page")


def test_a_file_that_cannot_be_opened_is_refused_with_the_reason(converter, tmp_path):
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4 and nothing else")
    (tmp_path / "text.pdf").write_bytes(b"just words")
    expected = {
        tmp_path / "absent.pdf": "missing",
        tmp_path: "unreadable",
        tmp_path / "broken.pdf": "corrupt",
        tmp_path / "text.pdf": "unsupported",
        encrypted_pdf(tmp_path / "locked.pdf"): "encrypted",
    }
    for path, code in expected.items():
        with pytest.raises(UnitError) as caught:
            convert(converter, path)
        assert (caught.value.kind, caught.value.code) == (ErrorKind.PERMANENT, code)


def test_cache_key_changes_with_the_file_and_the_page(tmp_path):
    converter = LocalConverter(Settings())
    path = text_pdf(tmp_path / "a.pdf", [["one"]])
    first, prompt = converter.cache_key(PageRef(path, 1))
    assert converter.cache_key(PageRef(path, 1)) == (first, prompt)
    assert converter.cache_key(PageRef(path, 2))[0] != first
    os.utime(path, (1, 1))
    assert converter.cache_key(PageRef(path, 1))[0] != first
    assert len(first) == len(prompt) == 64


def test_the_cache_key_changes_with_the_converters_revision(tmp_path, monkeypatch):
    page = PageRef(text_pdf(tmp_path / "a.pdf", [["one"]]), 1)
    before = LocalConverter(Settings()).cache_key(page)
    monkeypatch.setattr(conversion, "REVISION", conversion.REVISION + 1)
    assert LocalConverter(Settings()).cache_key(page) != before


def test_threads_share_pdfium_without_harm(converter, tmp_path, no_ocr):
    path = text_pdf(tmp_path / "a.pdf", [[f"page {n} has some text"] for n in range(30)])
    failures = []

    def work():
        try:
            with converter.open(path) as reader:
                for number in range(1, 31):
                    assert reader.convert(PageRef(path, number)).text == f"page {number - 1} has some text"
        except (AssertionError, UnitError) as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # the test forks beside a thread on purpose
def test_child_of_a_fork_is_not_locked_out_of_pdfium(tmp_path):
    path = text_pdf(tmp_path / "a.pdf", [["one"]])
    # Use a separate process: a fork of this one would inherit the objects of other tests.
    script = (
        "import os, sys, threading\n"
        "from pathlib import Path\n"
        "from pipeline.reading.pdf import pdfium\n"
        "path, held, done = Path(sys.argv[1]), threading.Event(), threading.Event()\n"
        "def hold():\n"
        "    with pdfium.open_document(path) as document, document.page(1):\n"
        "        held.set()\n"
        "        done.wait(60)\n"
        "threading.Thread(target=hold).start()\n"
        "held.wait(60)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    with pdfium.open_document(path) as document, document.page(1):\n"
        "        os._exit(0)\n"
        "status = os.waitpid(child, 0)[1]\n"
        "done.set()\n"
        "sys.exit(status)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=60)


def test_text_layers_load_no_recognition_libraries(tmp_path):
    path = text_pdf(tmp_path / "a.pdf", [["hello"]])
    script = (
        "import sys, pathlib\n"
        "from pipeline.reading.pdf import conversion, pages\n"
        "from pipeline.reading.sandbox import tasks\n"
        "with conversion.open_source(pathlib.Path(sys.argv[1]), pages.Options()) as source:\n"
        "    assert source.convert(1).text == 'hello'\n"
        "heavy = {'rapidocr', 'onnxruntime', 'cv2', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=60)


def test_text_of_a_real_paper_is_in_reading_order(converter, no_ocr):
    text = convert(converter, corpus_file("documents/multi-column-2p.pdf")).text
    assert "signifi-" not in text
    places = [
        "Dense Passage Retrieval for",
        "1 Introduction",
        "indicating the needs of improving retrieval",
        "Retrieval in open-domain QA is usually",
    ]
    assert [text.index(place) for place in places] == sorted(text.index(place) for place in places)


def test_protected_from_copying_is_not_encrypted(converter, no_ocr):
    assert "LayoutParser" in convert(converter, corpus_file("documents/copy-protected.pdf")).text
