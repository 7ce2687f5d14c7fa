"""Small files that cost a reader without limits all its memory, or hours."""

import io
import zlib
from pathlib import Path

from PIL import Image

from tests.support.samples import Sheet, pdf_bytes

_START_OF_SCAN = b"\xff\xda"
_END = b"\xff\xd9"
_SQUARE = b"0 0 1 1 re f\n"


def nested_forms(path: Path) -> Path:
    """Return a PDF of 2 KB whose page is `nested_forms_sheet`."""
    path.write_bytes(pdf_bytes([nested_forms_sheet(first=5)]))
    return path


def nested_forms_sheet(first: int, levels: int = 7, fan: int = 10) -> Sheet:
    """Return a page with nested forms: each draws the next one `fan` times. `first`: the number of its first object."""
    drawn = b"/Fm Do " * fan
    forms = [_form(drawn, b"/Resources<</XObject<</Fm %d 0 R>>>>" % (first + 1 + level)) for level in range(levels)]
    resources = f"/Resources<</XObject<</Fm {first} 0 R>>>>"  # the last entry of a name counts
    return Sheet(
        b"/Fm Do", extra=resources.replace("{", "{{").replace("}", "}}"), objects=(*forms, _form(_SQUARE * fan))
    )


def _form(content: bytes, more: bytes = b"") -> bytes:
    head = b"<</Type/XObject/Subtype/Form/BBox[0 0 600 600]%s/Length %d>>" % (more, len(content))
    return b"%sstream\n%s\nendstream" % (head, content)


def packed_content(path: Path, megabytes: int = 60) -> Path:
    """Return a PDF whose page draws very many rectangles, packed to a thousandth of their size."""
    packed = zlib.compress(_SQUARE * (megabytes * 10**6 // 13), 9)
    plain = b"<</Length 0>>stream\n\nendstream"
    pdf = pdf_bytes([Sheet()])
    assert plain in pdf
    body = b"<</Filter/FlateDecode/Length %d>>stream\n%s\nendstream" % (len(packed), packed)
    path.write_bytes(pdf.replace(plain, body))  # The table is wrong now, but readers find the objects without it.
    return path


def many_scans(path: Path, side: int = 4000, repeats: int = 480) -> Path:
    """Return a progressive JPEG that repeats its last scan as often as readers allow, which takes half a minute."""
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), "grey").save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    last = data.rindex(_START_OF_SCAN)
    path.write_bytes(data[: -len(_END)] + data[last : -len(_END)] * repeats + _END)
    return path


def wide_palette(path: Path, side: int = 9400) -> Path:
    """Return a PNG of 88 million pixels in a few kilobytes, with a palette and transparency."""
    Image.new("P", (side, side)).save(path, "PNG", transparency=0, compress_level=9)
    return path
