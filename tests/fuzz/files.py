"""Files, web pages and pictures as strangers send them: `pipeline.reading`."""

import gzip
import io
import random
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

from PIL import Image

from pipeline.engine.errors import UnitError, UserError
from pipeline.reading.files import filetype
from pipeline.reading.layout.model import Region, RegionKind
from pipeline.reading.ocr import fingerprint, images, layout_model, recognition
from pipeline.reading.pdf import conversion, pdfium, source_check
from pipeline.reading.pdf.pages import Options
from pipeline.reading.sandbox.limits import Limits, SitemapLimits
from pipeline.reading.text import charset, chunks, content_type, extraction
from pipeline.reading.text.sections import SEPARATOR, Reading, Section
from pipeline.reading.web import fetch, sitemap, websites
from tests.fuzz.target import Target, is_storable, saved, text_of, texts
from tests.support.active_markdown import active
from tests.support.samples import Sheet, pdf_bytes, shown_lines

LIMITS = Limits(max_chars=1_000_000, max_unpacked_bytes=20_000_000, max_markup_bytes=1_000_000, ocr_dpi=36)
SIZES = SimpleNamespace(max_upload_mb=10, max_pages=50, max_page_points=14_400.0)
_MAX_PIXELS = 4_000_000
_OPTIONS = Options(dpi=36, pictures=False, max_pixels=100_000, threads=1, page_s=5.0, keep_headers=True, layout="model")
_OFFICE = (MemoryError, RecursionError)
"""What a child answers with `too_large` and `unreadable`."""


def _decode(data: bytes) -> None:
    text = charset.decode(data, "a file", declared=text_of(data[:12]))
    assert is_storable(text)
    assert "\r" not in text
    plainly = charset.utf8(data)
    assert plainly is None or plainly == charset.decode(data, "a file")


def _kind(data: bytes) -> None:
    kind = filetype.detect(data)
    assert kind is None or f"image/{kind}" in filetype.MIME_TYPES.values() or kind == "pdf"
    content_type.kind_by_head(data[: filetype.HEAD_BYTES], "a")
    with saved(data) as path:
        content_type.kind_of(path, "a.docx", LIMITS)
        content_type.kind_of(path, "a.ipynb", LIMITS)


def _extract(name: str) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        with saved(data, name) as path:
            kind = content_type.kind_of(path, name, LIMITS)
            if kind in {content_type.Kind.PDF, content_type.Kind.PICTURE}:
                return  # Those have targets of their own.
            reading = extraction.extract_file(path, name, LIMITS, lambda _: None)
        assert "\0" not in reading.text
        converted = [] if kind in content_type.DECODED else reading.sections
        assert not any(active(section.text) for section in converted if not section.plain)
        assert "\n" not in reading.title

    return run


def _web_page(data: bytes) -> None:
    with saved(data) as path:
        reading = extraction.extract_page(path, "https://example.org/a", "", LIMITS)
    assert "\n" not in reading.title
    assert not active(reading.text)


def _sitemap(data: bytes) -> None:
    limits = SitemapLimits(max_pages=20, max_files=5, max_bytes=100_000)
    links = sitemap.parse(data, "the sitemap", limits)
    assert len(links.pages) <= limits.max_pages + 1
    assert len(links.sitemaps) <= limits.max_files + 1
    here = fetch.parse_url("https://example.org/sitemap.xml")
    for text in (*links.pages, *links.sitemaps):
        address = websites.address_of(text, here)
        assert address is None or address.host.endswith("example.org")


def _chunks(data: bytes) -> None:
    text = text_of(data).encode("utf-8", "replace").decode()
    first, _, second = text.partition("\f")
    reading = Reading("", [Section(first, page=1), Section(second, page=2, plain=bool(len(data) % 2))])
    for chunk in chunks.split(reading, 16, len(data) % 8):
        assert chunk.text.strip()
        assert reading.text[chunk.start : chunk.end] == chunk.text
    assert SEPARATOR.join(section.text for section in reading.sections) == reading.text


def _picture(data: bytes) -> None:
    """The pixels are few: what many cost is bounded by the child process, not by this."""
    with suppress(Exception), Image.open(io.BytesIO(data)) as image:
        if image.width * image.height > _MAX_PIXELS:
            return
    with suppress(UnitError):
        frame = fingerprint.read_frame(data)
        assert len(frame.phash) * 4 == fingerprint.HASH_BITS
    with saved(data) as path:
        info = source_check.inspect(path, SIZES)
        assert 1 <= info.pages <= SIZES.max_pages
        picture = images.load_picture(path, info.pages, 100_000)
        assert picture.mode == "RGB"
        assert picture.width * picture.height <= 100_000


def _pdf(data: bytes) -> None:
    with saved(data) as path:
        if filetype.detect(data) != "pdf":
            return
        info = source_check.inspect(path, SIZES)
        numbers = range(1, min(info.pages, 3) + 1)
        surveyed = conversion.survey(path, numbers, _OPTIONS, lambda: None)
        with _without_models(data), conversion.open_source(path, _OPTIONS, surveyed) as opened:
            for number in numbers:
                with suppress(UnitError):
                    page = opened.convert(number, picture_folder=Path(path.parent, "pictures"))
                    assert is_storable(page.text)
        with pdfium.open_document(path) as document:
            assert document.pages == info.pages


class _without_models:  # noqa: N801  # reads as a function
    """Recognition and the layout model take long to start, and see pixels alone. The latter's regions are anywhere."""

    def __init__(self, data: bytes) -> None:
        self._random = random.Random(data)  # the same regions for the same input

    def __enter__(self) -> None:
        self._read, recognition.read = recognition.read, lambda *_: recognition.Reading([], None)
        self._regions, layout_model.regions = layout_model.regions, lambda *_: tuple(self._anywhere())

    def __exit__(self, *_: object) -> None:
        recognition.read, layout_model.regions = self._read, self._regions

    def _anywhere(self) -> Iterator[Region]:
        for _ in range(self._random.randrange(20)):
            left, top, right, bottom = (self._random.uniform(-100, 900) for _ in range(4))
            yield Region(self._random.choice(get_args(RegionKind)), (left, top, right, bottom), self._random.random())


def _packed(**members: bytes | str) -> bytes:
    """A ZIP file that is not compressed, so that a mutation changes what is in it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return out.getvalue()


def _docx() -> Iterator[bytes]:
    office = "http://schemas.openxmlformats.org"
    default = '<Default Extension="xml" ContentType="application/xml"/>'
    types = f'<Types xmlns="{office}/package/2006/content-types">{default}</Types>'
    main = f"{office}/officeDocument/2006/relationships/officeDocument"
    rels = (
        f'<Relationships xmlns="{office}/package/2006/relationships">'
        f'<Relationship Id="rId1" Type="{main}" Target="word/document.xml"/></Relationships>'
    )
    cell = "<w:tcPr><w:gridSpan w:val='2'/></w:tcPr><w:p><w:r><w:t>a cell</w:t></w:r></w:p>"
    body = (
        f"<w:document xmlns:w='{office}/wordprocessingml/2006/main'><w:body>"
        "<w:p><w:pPr><w:pStyle w:val='Heading1'/></w:pPr><w:r><w:t>A heading</w:t></w:r></w:p>"
        "<w:p><w:pPr><w:numPr><w:ilvl w:val='1'/><w:numId w:val='1'/></w:numPr></w:pPr>"
        "<w:r><w:rPr><w:b/></w:rPr><w:t>Some</w:t><w:tab/></w:r></w:p>"
        f"<w:tbl><w:tr><w:tc>{cell}</w:tc></w:tr></w:tbl></w:body></w:document>"
    )
    yield _packed(**{"[Content_Types].xml": types, "_rels/.rels": rels, "word/document.xml": body})


def _smaller(office: bytes) -> bytes:
    """Without the parts that say nothing and are most of it: small inputs are mutated where it matters."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(office)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            if "thumbnail" not in name:
                new.writestr(zipfile.ZipInfo(name), old.read(name))
    return out.getvalue()


def _xlsx() -> Iterator[bytes]:
    from openpyxl import Workbook

    book = Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.append(["a", 1, None, 2.5])
    sheet.append(["=A1", True, "x\ty", ""])
    out = io.BytesIO()
    book.save(out)
    yield _smaller(out.getvalue())


def _pptx() -> Iterator[bytes]:
    from pptx import Presentation

    show = Presentation()
    slide = show.slides.add_slide(show.slide_layouts[1])
    slide.shapes.title.text = "A title"
    out = io.BytesIO()
    show.save(out)
    yield _smaller(out.getvalue())


def _epub() -> Iterator[bytes]:
    container = (
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="a.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
    )
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        '<dc:title>A book</dc:title></metadata><manifest><item id="a" href="a.xhtml" media-type="application/xhtml+xml"'
        '/></manifest><spine><itemref idref="a"/></spine></package>'
    )
    yield _packed(
        **{"mimetype": "application/epub+zip", "META-INF/container.xml": container, "a.opf": package},
        **{"a.xhtml": "<html><body><h1>One</h1><p>Text</p></body></html>"},
    )


def _pdfs() -> Iterator[bytes]:
    yield pdf_bytes([Sheet(shown_lines(["A heading", "Some text of a page,", "and more of it."]))])
    rules = b"72 700 m 300 700 l S 72 650 m 300 650 l S 72 700 m 72 650 l S 300 700 m 300 650 l S\n"
    yield pdf_bytes([Sheet(rules + shown_lines(["a  b", "1.  c"], top=690), extra="/Rotate 90"), Sheet(box="0 0 9 9")])
    grey = b"<</Type/XObject/Subtype/Image/Width 2/Height 2/ColorSpace/DeviceGray/BitsPerComponent 8/Length 4>>"
    image = grey + b"stream\n\0\1\2\3\nendstream"
    yield pdf_bytes(
        [Sheet(b"q 99 0 0 99 72 600 cm /I Do Q", extra="/Resources<</XObject<</I {0} 0 R>>>>", objects=[image])]
    )


def _pictures() -> Iterator[bytes]:
    for mode, kind in (
        ("RGB", "PNG"),
        ("P", "PNG"),
        ("LA", "PNG"),
        ("I;16", "PNG"),
        ("L", "JPEG"),
        ("CMYK", "JPEG"),
        ("RGBA", "WEBP"),
        ("1", "TIFF"),
        ("F", "TIFF"),
        ("RGB", "GIF"),
        ("RGB", "BMP"),
    ):
        out = io.BytesIO()
        Image.new(mode, (9, 7), 1).save(out, kind)
        yield out.getvalue()
    frames = [Image.new("L", (5, 5), n) for n in range(3)]
    out = io.BytesIO()
    frames[0].save(out, "TIFF", save_all=True, append_images=frames[1:])
    yield out.getvalue()
    out = io.BytesIO()
    Image.new("RGB", (20, 20)).save(out, "JPEG", progressive=True)
    yield out.getvalue()


_URLS = (
    '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"><url><loc>https://example.org/a</loc></url></urlset>'
)
_INDEX = "<sitemapindex><sitemap><loc>//example.org/b.xml</loc></sitemap><sitemap><loc>x</loc></sitemap></sitemapindex>"
_TAGS = ("<html>", "</", "<table>", "<tr><td>", "<!--", "-->", "<![CDATA[", "<?xml", "<!DOCTYPE", "&#x0;", "&lt;", "\0")
_PDF_WORDS = (
    "/Type/Page",
    "/Kids[",
    "/Contents",
    "/Rotate",
    "/MediaBox[",
    "/Filter/FlateDecode",
    "BT",
    "ET",
    "Tf",
    "Td",
    "Tj",
    "TJ",
    "Do",
    "cm",
    "re",
    "/Font",
    "endobj",
    "stream",
    "xref",
    "trailer",
    " 0 R",
    "-",
    "99999999999",
    "/Annots",
)

TARGETS = (
    Target(
        "charset", _decode, (UnitError,), texts("Grüße", "\udcff\udcfeA\0", "\udce9t\udce9", "\x1b$B"), ("\0", "\r")
    ),
    Target("kind", _kind, (UnitError,), lambda: [*_epub(), b"<!-- --><html>", b"%PDF-1.4", b"PK\3\4"], _TAGS),
    Target("office-docx", _extract("a.docx"), (UnitError, *_OFFICE), _docx, ("w:tbl", "w:p", "rId1"), slow=True),
    Target("office-xlsx", _extract("a.xlsx"), (UnitError, *_OFFICE), _xlsx, ("<c r=", "<v>", "sheet1"), slow=True),
    Target("office-pptx", _extract("a.pptx"), (UnitError, *_OFFICE), _pptx, ("p:sp", "a:t"), slow=True),
    Target("office-epub", _extract("a.epub"), (UnitError, *_OFFICE), _epub, _TAGS, slow=True),
    Target("html", _extract("a.html"), (UnitError, *_OFFICE), words=_TAGS),
    Target("feed", _extract("a"), (UnitError, *_OFFICE), words=_TAGS),
    Target(
        "csv", _extract("a.csv"), (UnitError, *_OFFICE), texts('a,b\n1,"x\ny"\n', "a|b\n\n|"), ('"', ",", "\n", "|")
    ),
    Target("notebook", _extract("a.ipynb"), (UnitError, *_OFFICE), words=("cells", "source", "title"), shaped=True),
    Target("web-page", _web_page, (UnitError, *_OFFICE), words=_TAGS, slow=True),
    Target(
        "sitemap",
        _sitemap,
        (UnitError,),
        lambda: [_URLS.encode(), _INDEX.encode(), gzip.compress(_URLS.encode(), mtime=0)],
        _TAGS,
    ),
    Target(
        "chunks", _chunks, (UnitError,), words=("#", "```", "~~~", "===", "---", " " * 300, "\f", "[x](y)"), slow=True
    ),
    Target("picture", _picture, (UserError, UnitError), _pictures, slow=True),
    Target("pdf", _pdf, (UserError, UnitError), _pdfs, _PDF_WORDS, slow=True),
)
