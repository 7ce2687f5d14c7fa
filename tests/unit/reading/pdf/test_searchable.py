"""A searchable PDF shows the same pages, and its words lie where they stand."""

from collections.abc import Sequence
from difflib import SequenceMatcher
from io import BytesIO
from pathlib import Path
from typing import Any

import pikepdf
import pypdfium2
import pytest
from PIL import Image, ImageChops

from pipeline.engine.errors import UnitError
from pipeline.reading.ocr import images
from pipeline.reading.pdf import conversion, placement, searchable
from pipeline.reading.pdf.invisible_text import Codes, TextLine
from pipeline.reading.pdf.pages import Options
from pipeline.reading.pdf.searchable import PageText, Report
from tests.support.corpus import corpus_file
from tests.support.samples import picture_of, scanned_pdf, sized_pdf, text_pdf

LINES = [TextLine("First of two", 60, 60, 300, 80), TextLine("lines", 60, 90, 150, 110)]


def made(source: Path, *texts: PageText) -> tuple[Path, Report]:
    target = source.with_name("searchable.pdf")
    return target, searchable.write(source, target, texts, lambda _: None)


def found(path: Path, number: int = 1) -> list[tuple[str, tuple[float, ...]]]:
    """Return the words that PDFium finds on a page, with their boxes on the displayed page from its top left corner."""
    with pypdfium2.PdfDocument(path) as document:
        page = document[number - 1]
        text, words = page.get_textpage(), list[tuple[str, list[tuple[float, ...]]]]()
        before = " "
        x0, y0, x1, y1 = page.get_bbox()
        turn = {
            0: lambda left, low, right, top: (left - x0, y1 - top, right - x0, y1 - low),
            90: lambda left, low, right, top: (low - y0, left - x0, top - y0, right - x0),
            180: lambda left, low, right, top: (x1 - right, low - y0, x1 - left, top - y0),
            270: lambda left, low, right, top: (y1 - top, x1 - right, y1 - low, x1 - left),
        }[page.get_rotation()]
        for index in range(text.count_chars()):
            character = text.get_text_range(index, 1)
            if character.strip():
                if not before.strip():
                    words.append(("", []))
                word, boxes = words[-1]
                words[-1] = (word + character, [*boxes, turn(*text.get_charbox(index))])
            before = character
        return [(word, around(boxes)) for word, boxes in words]


def around(boxes: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    lefts, tops, rights, bottoms = zip(*boxes, strict=True)
    return min(lefts), min(tops), max(rights), max(bottoms)


def shared(box: Sequence[float], other: Sequence[float]) -> float:
    """Return the part of the smaller box that both share."""
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    smaller = min((each[2] - each[0]) * (each[3] - each[1]) for each in (box, other))
    return max(0.0, width) * max(0.0, height) / smaller


def looks(path: Path, number: int = 1) -> Image.Image:
    with pypdfium2.PdfDocument(path) as document:
        return document[number - 1].render(scale=1).to_pil().convert("RGB")


def streams(path: Path) -> set[bytes]:
    with pikepdf.open(path) as pdf:
        return {each.read_raw_bytes() for each in pdf.objects if isinstance(each, pikepdf.Stream)}


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_words_lie_at_their_boxes_on_the_displayed_page(tmp_path: Path, rotation: int) -> None:
    scan = scanned_pdf(tmp_path / "scan.pdf", ["First of two", "lines"])
    with pikepdf.open(scan, allow_overwriting_input=True) as pdf:
        left, bottom, right, top = (float(side) for side in pdf.pages[0].mediabox)
        pdf.pages[0].obj.Rotate = rotation
        pdf.pages[0].obj.CropBox = pikepdf.Array([left + 10, bottom + 20, right - 5, top - 7])
        pdf.save(scan)
    with pypdfium2.PdfDocument(scan) as document:
        width, height = document[0].get_size()
    upwards = TextLine("upwards", 10, 120, 25, 200, 270)
    path, report = made(scan, PageText(1, width * 2, height * 2, [_doubled(line) for line in (*LINES, upwards)]))
    assert report.pages == [1]
    words = found(path)
    assert [word for word, _ in words] == ["First", "of", "two", "lines", "upwards"]
    boxes = [(60, 60, 160, 80), (180, 60, 220, 80), (240, 60, 300, 80), LINES[1][1:5], upwards[1:5]]
    assert all(shared(box, expected) > 0.9 for (_, box), expected in zip(words, boxes, strict=True))
    assert ImageChops.difference(looks(scan), looks(path)).getbbox() is None
    assert streams(scan) <= streams(path)


def _doubled(line: TextLine) -> TextLine:
    return line._replace(left=line.left * 2, top=line.top * 2, right=line.right * 2, bottom=line.bottom * 2)


def test_any_script_is_found_in_reading_order(tmp_path: Path) -> None:
    texts = ["naïve “quotes” (x) 100\\50", "中文 かな 한국어", "שלום (עולם) 123", "مرحبا بالعالم", "𝒜 and 😀"]
    lines = [TextLine(text, 60, 60 + 30 * place, 400, 80 + 30 * place) for place, text in enumerate(texts)]
    path, _ = made(scanned_pdf(tmp_path / "scan.pdf", ["x"]), PageText(1, 595, 842, lines))
    with pypdfium2.PdfDocument(path) as document:
        assert document[0].get_textpage().get_text_range().splitlines() == texts


def test_the_picture_leans_and_so_do_its_words(tmp_path: Path) -> None:
    scan = scanned_pdf(tmp_path / "scan.pdf", ["x"])
    with pypdfium2.PdfDocument(scan) as document:
        width, height = document[0].get_size()
    line = TextLine("far right", width - 150, height / 2 - 10, width - 50, height / 2 + 10)
    path, _ = made(scan, PageText(1, width, height, [line], lean=5))
    (_, box), _ = found(path)
    assert box[1] > line.top + 5  # clockwise: what is right of the middle goes down


def test_a_file_with_text_stays_as_it_is(tmp_path: Path) -> None:
    source = text_pdf(tmp_path / "text.pdf", [["Its own text"]])
    path, report = made(source)
    assert (report.pages, path.read_bytes()) == ([], source.read_bytes())


def test_a_scan_becomes_pdfa_and_other_files_do_not_claim_it(tmp_path: Path) -> None:
    def claim(source: Path) -> tuple[str, str, str | None]:
        path, report = made(source, PageText(1, 595, 842, LINES))
        with pikepdf.open(path) as pdf, pdf.open_metadata() as metadata:
            return report.pdfa, metadata.pdfa_status, "intent" if "/OutputIntents" in pdf.Root else None

    scan = scanned_pdf(tmp_path / "scan.pdf", ["x"])
    assert claim(scan) == ("2b", "2B", "intent")
    assert claim(text_pdf(tmp_path / "text.pdf", [["Its own"]])) == ("", "", None)
    with pikepdf.open(scan, allow_overwriting_input=True) as pdf:
        pdf.Root.AcroForm = pikepdf.Dictionary(Fields=pikepdf.Array())
        pdf.save(scan)
    assert claim(scan) == ("", "", None)
    claimed = scanned_pdf(tmp_path / "claimed.pdf", ["x"])
    with pikepdf.open(claimed, allow_overwriting_input=True) as pdf:
        with pdf.open_metadata() as metadata:
            metadata["pdfaid:part"], metadata["pdfaid:conformance"] = "1", "A"
        pdf.save(claimed)
    assert claim(claimed) == ("1b", "1B", None)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("JPEG", "RGB"), ("JPEG", "L"), ("PNG", "RGB"), ("PNG", "P"), ("PNG", "RGBA"), ("TIFF", "1"), ("WEBP", "RGB")],
)
def test_a_picture_becomes_a_page_that_looks_the_same(tmp_path: Path, kind: str, mode: str) -> None:
    picture = picture_of(["First of two"]).convert(mode)
    source = tmp_path / f"picture.{kind.lower()}"
    exif = Image.Exif()
    exif[0x0112] = 6 if kind == "JPEG" else 1
    picture.save(source, kind, dpi=(144, 144), exif=exif)
    path, report = made(source, PageText(1, 500, 900, [TextLine("upright", 100, 100, 400, 130)]))
    assert (report.pages, report.pdfa) == ([1], "2b")
    (word, box), *_ = found(path)
    assert word == "upright"
    with pypdfium2.PdfDocument(path) as document:
        size = document[0].get_size()
        shown = document[0].render(scale=2).to_pil().convert("L")
    expected = images.load_picture(source, 1, 89_000_000).convert("L")
    if kind != "WEBP":  # which names no resolution
        assert size == pytest.approx((250, 450) if kind == "JPEG" else (450, 250), abs=0.1)
    assert (
        shared(box, [each * side for each, side in zip((0.2, 1 / 9, 0.8, 13 / 90), (*size, *size), strict=True)]) > 0.9
    )
    shown = shown.resize(expected.size)
    difference = ImageChops.difference(shown, expected).histogram()
    assert sum(difference[64:]) < 0.01 * sum(difference)
    if kind == "JPEG":
        assert source.read_bytes() in streams(path)


def test_all_frames_of_a_tiff_become_pages(tmp_path: Path) -> None:
    source = tmp_path / "fax.tiff"
    frames = [picture_of([word]).convert("1") for word in ("one", "two")]
    frames[0].save(source, "TIFF", save_all=True, append_images=frames[1:], compression="group4")
    path, report = made(source, PageText(2, 900, 500, [TextLine("two", 100, 100, 200, 150)]))
    assert (report.pages, found(path, 1), [word for word, _ in found(path, 2)]) == ([2], [], ["two"])
    assert path.stat().st_size < source.stat().st_size + 5_000  # font, colour profile, metadata


def test_hostile_files_are_refused_or_read(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.pdf"
    damaged.write_bytes(b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 1 0 R>>endobj\ntrailer<</Root 1 0 R>>")
    with pytest.raises(UnitError):
        made(damaged, PageText(1, 595, 842, LINES))
    odd = scanned_pdf(tmp_path / "odd.pdf", ["x"])
    with pikepdf.open(odd, allow_overwriting_input=True) as pdf:
        page = pdf.pages[0].obj
        page.Resources = pdf.make_indirect(pikepdf.Dictionary(Font=pikepdf.Array([]), XObject=pikepdf.String("?")))
        page.Parent = page  # a tree without a root
        pdf.save(odd)
    path, report = made(odd, PageText(1, 595, 842, LINES))
    assert (report.pages, [word for word, _ in found(path)]) == ([1], ["First", "of", "two", "lines"])
    hostile = [
        TextLine("a" * 100_000, 0, 0, 595, 10),
        TextLine("nan", float("nan"), 0, 5, 5),
        TextLine("flat", 5, 5, 5, 5),
        TextLine("\ud800\x00", 5, 5, 50, 15),
        TextLine("huge", 0, 0, 1e300, 1e300),
        TextLine("few places", 5, 50, 90, 60, 0, (1, 2, 3)),
    ]
    path, _ = made(odd, PageText(1, 595, 842, hostile))
    assert "places" in [word for word, _ in found(path)]


def test_only_characters_in_use_are_mapped() -> None:
    codes = Codes()
    assert codes.encoded("A😀\ud800") == b"\x00A\xd8\x00"
    mapped = codes.to_unicode()
    assert b"<0000><00FF><0000>" in mapped
    assert b"<D800><D83DDE00>" in mapped
    assert b"<01" not in mapped


def test_a_models_words_lie_where_recognition_read_them() -> None:
    lines = [
        TextLine("Invoiee number 4711", 50, 50, 240, 60, 0, (0, 368, 421, 737, 790, 1000)),
        TextLine("Total: 12,50", 50, 80, 170, 90),
    ]
    # A misread word and one that recognition missed; the model gives the total first.
    result = placement.placed("Total: 12,50 EUR\n\nInvoice number 4711", lines)
    assert result is not None
    assert [line.text for line in result] == ["Total: 12,50 EUR", "Invoice number 4711"]
    assert list(result[1].places) == [0, 368, 421, 737, 790, 1000]
    assert placement.placed("quite another text", lines) is None
    assert placement.placed("一二三四五六", [TextLine("一二三四五", 0, 0, 50, 10)]) == [
        TextLine("一二三四五六", 0, 0, 50, 10, 0, [0, 1000])
    ]


def test_text_without_places_is_spread_over_lines_boxes_or_the_page(tmp_path: Path) -> None:
    scan = sized_pdf(tmp_path / "scan.pdf", "0 0 595 842")
    words = [f"word{number}" for number in range(40)]
    lines = [TextLine("??", 50, 50 + 20 * row, 550, 62 + 20 * row) for row in range(8)]
    for known, boxes, limits in (
        (lines, (), (45, 45, 555, 205)),
        ([], [(" ".join(words), (100, 300, 300, 500))], (100, 300, 300, 500)),
        ([], (), (0, 0, 595, 842)),
    ):
        text: Any = PageText(1, 595, 842, known, text=" ".join(words), boxes=boxes)
        path, report = made(scan, text)
        assert report.spread == [1]
        assert [word for word, _ in found(path)] == words
        assert all(shared(box, limits) > 0.8 for _, box in found(path))


@pytest.mark.slow
def test_the_words_of_a_real_scan_lie_where_recognition_saw_them(tmp_path: Path) -> None:
    source = tmp_path / "scan.pdf"
    source.write_bytes(corpus_file("documents/MEDRPT-2024-PAT-3847_medical_report_scan.pdf").read_bytes())
    with conversion.open_source(source, Options(threads=2, layout="geometry")) as pages:
        layout = pages.convert(1).layout
    lines = searchable.lines_of(layout["lines"])
    path, report = made(source, PageText(1, layout["width"], layout["height"], lines, layout.get("lean", 0.0)))
    assert (report.pages, report.spread, report.pdfa) == ([1], [], "2b")
    words = found(path)
    expected = [(word, line) for line in lines for word in line.text.split()]
    assert SequenceMatcher(None, [word for word, _ in words], [word for word, _ in expected]).ratio() > 0.98
    at_home = [any(word in line.text and shared(box, line[1:5]) > 0.8 for line in lines) for word, box in words]
    assert sum(at_home) > 0.98 * len(words)
    assert ImageChops.difference(looks(source), looks(path)).getbbox() is None
    assert streams(source) <= streams(path)
    assert path.stat().st_size < 1.05 * source.stat().st_size


def test_an_odd_size_scales_its_words(tmp_path: Path) -> None:
    source = sized_pdf(tmp_path / "wide.pdf", "0 0 1200 300")
    path, _ = made(source, PageText(1, 100, 100, [TextLine("middle", 40, 40, 60, 60)]))
    ((_, box),) = found(path)
    assert shared(box, (480, 120, 720, 180)) > 0.9
    assert BytesIO(path.read_bytes()).read(5) == b"%PDF-"
