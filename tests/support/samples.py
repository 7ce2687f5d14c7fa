"""Makers of small PDFs and pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

LETTER = "0 0 612 792"
ENCRYPTED_FOLDER = Path(__file__).parent.parent / "data/pdfs"
"""Encrypted PDFs of two pages, which `PASSWORD` opens."""
PASSWORD = "Kaffeekännchen-4711"
HEIC_FOLDER = Path(__file__).parent.parent / "data/pictures"
"""Pictures that Pillow cannot write."""


@dataclass(frozen=True)
class Sheet:
    """One PDF page: drawing commands, its MediaBox, more of its dictionary, and objects that this refers to.

    In `extra`, `{0}`, `{1}` … stand for the numbers of `objects`.
    """

    content: bytes = b""
    box: str = LETTER
    extra: str = ""
    objects: Sequence[bytes] = ()


def pdf_bytes(sheets: Sequence[Sheet], *, trailer: bytes = b"") -> bytes:
    """Return a PDF with these pages. F1 is Helvetica."""
    bodies = [b"", b"", b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>"]
    pages: list[int] = []
    for sheet in sheets:
        bodies.append(b"<</Length %d>>stream\n%s\nendstream" % (len(sheet.content), sheet.content))
        contents = len(bodies)
        first = contents + 1
        bodies += sheet.objects
        extra = sheet.extra.format(*range(first, first + len(sheet.objects)))
        bodies.append(
            f"<</Type/Page/Parent 2 0 R/MediaBox[{sheet.box}]/Contents {contents} 0 R"
            f"/Resources<</Font<</F1 3 0 R>>>>{extra}>>".encode()
        )
        pages.append(len(bodies))
    kids = " ".join(f"{number} 0 R" for number in pages)
    bodies[0] = b"<</Type/Catalog/Pages 2 0 R>>"
    bodies[1] = f"<</Type/Pages/Count {len(pages)}/Kids[{kids}]>>".encode()
    return with_table(bodies, trailer)


def with_table(bodies: Sequence[bytes], trailer: bytes) -> bytes:
    """Return a PDF of these objects, numbered from 1. The first is its catalog."""
    out = bytearray(b"%PDF-1.7\n")
    offsets = []
    for number, body in enumerate(bodies, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(bodies) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    out += b"trailer<</Root 1 0 R/Size %d%s>>\nstartxref\n%d\n%%%%EOF" % (len(bodies) + 1, trailer, table)
    return bytes(out)


def shown(text: str, x: float, y: float, size: float = 12) -> bytes:
    """Return drawing commands for one line of text at (x, y) in points from the bottom left."""
    escaped = text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
    return f"BT /F1 {size} Tf {x} {y} Td ({escaped}) Tj ET\n".encode("cp1252")


def shown_lines(lines: Sequence[str], x: float = 72, top: float = 720, size: float = 12, pitch: float = 14) -> bytes:
    """Return drawing commands for lines of text, one below the other."""
    return b"".join(shown(line, x, top - index * pitch, size) for index, line in enumerate(lines))


def text_pdf(path: Path, pages: Sequence[Sequence[str]]) -> Path:
    """Write a PDF with a text layer: the lines of each page."""
    path.write_bytes(pdf_bytes([Sheet(shown_lines(lines)) for lines in pages]))
    return path


def sized_pdf(path: Path, *boxes: str) -> Path:
    """Write a PDF with an empty page for each MediaBox, such as `0 0 612 792`."""
    path.write_bytes(pdf_bytes([Sheet(box=box) for box in boxes]))
    return path


def two_column_pdf(path: Path, left: Sequence[str], right: Sequence[str], title: str) -> Path:
    """Write a PDF whose lines alternate between the columns: left and right line in turn."""
    content = shown(title, 150, 740, 18)
    for index in range(max(len(left), len(right))):
        for x, lines in ((60, left), (320, right)):
            if index < len(lines):
                content += shown(lines[index], x, 700 - index * 13, 10)
    path.write_bytes(pdf_bytes([Sheet(content)]))
    return path


def encrypted_pdf(path: Path) -> Path:
    """Write a PDF that no password opens."""
    key = "00" * 32
    trailer = f"/Encrypt<</Filter/Standard/V 1/R 2/O<{key}>/U<{key}>/P -4>>/ID[<{key}><{key}>]".encode()
    path.write_bytes(pdf_bytes([Sheet(shown("secret", 72, 700))], trailer=trailer))
    return path


def form_pdf(path: Path, value: str) -> Path:
    """Write a PDF with a filled form field and no other text."""
    drawn = shown(value, 2, 5)
    head = b"<</Type/XObject/Subtype/Form/BBox[0 0 200 20]/Resources<</Font<</F1 3 0 R>>>>/Length %d>>"
    appearance = head % len(drawn) + b"stream\n" + drawn + b"\nendstream"
    widget = b"<</Type/Annot/Subtype/Widget/FT/Tx/T(name)/F 4/Rect[72 600 272 620]/AP<</N 5 0 R>>>>"
    objects = (appearance, widget)
    path.write_bytes(pdf_bytes([Sheet(extra="/Annots[{1} 0 R]", objects=objects)]))
    return path


def picture_of(lines: Sequence[str], size: tuple[int, int] = (900, 500), font_px: int = 36) -> Image.Image:
    """Return a white RGB picture with lines of black text."""
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for index, line in enumerate(lines):
        draw.text((40, 40 + index * font_px * 1.8), line, fill="black", font=ImageFont.load_default(font_px))
    return image


def scanned_pdf(path: Path, lines: Sequence[str]) -> Path:
    """Write a PDF of pictures, without a text layer."""
    picture_of(lines).save(path, format="PDF", resolution=100)
    return path
