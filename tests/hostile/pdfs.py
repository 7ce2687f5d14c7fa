"""PDFs that take memory or time, crash parsers, declare false sizes, or request actions."""

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.hostile.inputs import ANY_END, Hostile, written
from tests.support.samples import Sheet, encrypted_pdf, pdf_bytes, shown, text_pdf, with_table

REFUSED = "REFUSED: "
BOUNDED = r"(FAILED|REFUSED): .*(memory|MB|takes more|takes too|crashed|damaged|too large|too many|cut off)"
"""The outcome of an input that a limit ends, with the name of the limit."""
MB = 2**20


def _page(content: bytes = b"", *objects: bytes, extra: str = "", box: str = "0 0 612 792") -> Callable[[Path], object]:
    return written(pdf_bytes([Sheet(content, box, extra, objects)]))


def _form(content: bytes, resources: str = "", bbox: str = "0 0 612 792") -> bytes:
    head = f"<</Type/XObject/Subtype/Form/BBox[{bbox}]/Resources<<{resources}>>/Length {len(content)}>>"
    return head.encode() + b"stream\n" + content + b"\nendstream"


def _stream(data: bytes, entries: str) -> bytes:
    return f"<<{entries}/Length {len(data)}>>stream\n".encode() + data + b"\nendstream"


def _packed(data: bytes, entries: str = "", rounds: int = 1) -> bytes:
    for _ in range(rounds):
        data = zlib.compress(data, 9)
    return _stream(data, f"/Filter[{'/FlateDecode ' * rounds}]{entries}")


def _drawn(stream: bytes, extra: str = "") -> Callable[[Path], object]:
    """Return a page whose content is this stream object."""
    return _page(b"", stream, extra="/Contents {0} 0 R" + extra)


def _content(make: Callable[[], bytes], rounds: int = 1) -> Callable[[Path], object]:
    """Return a page whose packed content is made while the file is written: see `written`."""

    def make_file(path: Path) -> None:
        _drawn(_packed(make(), rounds=rounds))(path)

    return make_file


def nested_forms(levels: int, width: int = 10) -> Callable[[Path], object]:
    """Return forms that each draw the next form `width` times: `width ** levels` drawings."""
    objects = [_form(b"/X Do " * width, f"/XObject<</X {6 + level} 0 R>>") for level in range(levels - 1)]
    objects.append(_form(b"0 0 m 9 9 l S " * width))
    return _page(b"/X Do", *objects, extra="/Resources<</XObject<</X {0} 0 R>>>>")


def _image(width: int, height: int, data: bytes, entries: str) -> bytes:
    return _stream(data, f"/Type/XObject/Subtype/Image/Width {width}/Height {height}{entries}")


def _with_image(image: bytes) -> Callable[[Path], object]:
    return _page(b"600 0 0 700 0 0 cm /I Do", image, extra="/Resources<</XObject<</I {0} 0 R>>>>")


def _raw(*bodies: bytes, trailer: bytes = b"") -> bytes:
    return with_table(bodies, trailer)


_CATALOG = b"<</Type/Catalog/Pages 2 0 R>>"
_LEAF = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>"


def _deep_tree(depth: int) -> bytes:
    nodes = [b"<</Type/Pages/Count 1/Kids[%d 0 R]>>" % (number + 1) for number in range(2, depth)]
    return _raw(_CATALOG, *nodes, _LEAF)


def _many_annotations(path: Path) -> None:
    note = b"<</Type/Annot/Subtype/Link/Rect[0 0 9 9]/A<</S/URI/URI(javascript:alert\\(1\\))>>>>"
    _page(shown("links", 72, 700), note, extra="/Annots[" + "{0} 0 R " * 50_000 + "]")(path)


def _type3_font() -> Callable[[Path], object]:
    """Return a font whose only letter uses the font itself."""
    glyph = _stream(b"1000 0 d0 BT /F9 1 Tf (aaaaaaaaaa) Tj ET", "")
    font = (
        b"<</Type/Font/Subtype/Type3/FontBBox[0 0 9 9]/FontMatrix[1 0 0 1 0 0]/FirstChar 97/LastChar 97/Widths[9]"
        b"/Encoding<</Differences[97/a]>>/CharProcs<</a 5 0 R>>/Resources<</Font<</F9 6 0 R>>>>>>"
    )
    return _page(b"BT /F9 9 Tf (aaaaaaaaaa) Tj ET", glyph, font, extra="/Resources<</Font<</F9 {1} 0 R>>>>")


def _unicode_map() -> Callable[[Path], object]:
    """Return a font whose codes each stand for 512 characters."""
    ranges = b"".join(b"<%02x> <%02x> <%s>\n" % (code, code, b"d83d" * 256) for code in range(256))
    cmap = b"/CIDInit /ProcSet findresource begin begincmap 256 beginbfrange\n" + ranges + b"endbfrange endcmap"
    font = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/ToUnicode 5 0 R>>"
    content = b"BT /F9 1 Tf 9 700 Td (" + b"abcdefgh" * 10_000 + b") Tj ET"
    return _page(content, _packed(cmap), font, extra="/Resources<</Font<</F9 {1} 0 R>>>>")


_HARMFUL_TEXT = "\x1b]0;owned\x07 \x9b31m <script>alert(1)</script> ![x](http://127.0.0.1:9/x) [l](javascript:x)"


def _active(path: Path) -> None:
    """Return a document that asks its reader to run a program and a script, open a file and send a form."""
    actions = (
        b"<</S/JavaScript/JS(app.launchURL\\('http://127.0.0.1:9'\\))/Next<</S/Launch/F(/bin/touch)/Next"
        b"<</S/GoToR/F(/etc/passwd)/Next<</S/SubmitForm/F(http://127.0.0.1:9)>>>>>>>>"
    )
    catalog = b"<</Type/Catalog/Pages 2 0 R/OpenAction 4 0 R/AA<</WC 4 0 R>>>>"
    path.write_bytes(_raw(catalog, b"<</Type/Pages/Count 1/Kids[3 0 R]>>", _LEAF, actions))


_LINES = b"0 0 m 9 9 l S "

BOMBS = [
    Hostile("forms-7-levels.pdf", nested_forms(7), BOUNDED, pinned=True),
    Hostile("forms-40-levels-of-two.pdf", nested_forms(40, 2), ANY_END),
    Hostile("content-of-lines.pdf", _content(lambda: _LINES * 3_000_000), BOUNDED, pinned=True),
    Hostile("content-of-spaces.pdf", _content(lambda: b" " * 64 * MB, rounds=2)),
    Hostile("content-of-nested-arrays.pdf", _content(lambda: b"[" * 3_000_000)),
    Hostile("content-of-nested-dictionaries.pdf", _content(lambda: b"<</A" * 2_000_000)),
    Hostile("content-of-saved-states.pdf", _content(lambda: b"q " * 5_000_000)),
    Hostile("content-of-clips.pdf", _content(lambda: b"0 0 500 500 re W n " * 500_000)),
    Hostile("content-of-one-path.pdf", _content(lambda: b"0 0 m " + b"612 792 l 0 700 l " * 1_500_000 + b"f*")),
    Hostile("content-of-curves.pdf", _content(lambda: b"9 9 m " + b"0 900 900 0 9 9 c " * 300_000 + b"S")),
    Hostile("content-of-one-name.pdf", _content(lambda: b"/" + b"A" * 20_000_000 + b" Do")),
    Hostile("content-of-one-string.pdf", _content(lambda: b"BT /F1 9 Tf (" + b"(" * 5_000_000)),
    Hostile("content-of-glyphs.pdf", _content(lambda: b"BT /F1 1 Tf 9 9 Td (" + b"a b " * 1_000_000 + b") Tj ET")),
    Hostile("content-of-dashes.pdf", _page(b"[0.00001] 0 d 9 w 0 0 m 612 792 l S " * 50)),
    Hostile("content-of-wide-lines.pdf", _page(b"1e30 w 1e30 0 0 1e30 0 0 cm 0 0 m 1e38 1e38 l S " * 99)),
    Hostile("content-twice-packed.pdf", _content(lambda: b"\0" * 256 * MB, rounds=3)),
    Hostile("hundred-filters.pdf", _drawn(_stream(b"~>", "/Filter[" + "/ASCII85Decode " * 5000 + "]"))),
    Hostile("run-lengths.pdf", _drawn(_stream(b"\x81 " * MB + b"\x80", "/Filter/RunLengthDecode"))),
    Hostile(
        "image-of-thirty-thousand.pdf",
        _with_image(
            _image(
                30_000,
                30_000,
                zlib.compress(b"\0" * 10 * MB),
                "/BitsPerComponent 8/ColorSpace/DeviceRGB/Filter/FlateDecode",
            )
        ),
    ),
    Hostile(
        "image-that-is-short.pdf",
        _with_image(_image(60_000, 60_000, b"x", "/BitsPerComponent 16/ColorSpace/DeviceCMYK")),
    ),
    Hostile("image-of-no-size.pdf", _with_image(_image(0, -5, b"x", "/BitsPerComponent 8/ColorSpace/DeviceRGB"))),
    Hostile(
        "image-with-itself-as-mask.pdf",
        _with_image(_image(9, 9, b"x" * 243, "/BitsPerComponent 8/ColorSpace/DeviceRGB/SMask 5 0 R")),
    ),
    Hostile(
        "image-jbig2.pdf",
        _with_image(
            _image(
                40_000,
                40_000,
                bytes.fromhex("00000000300001000000130000ffff0000ffff000000000000000000000000"),
                "/BitsPerComponent 1/ColorSpace/DeviceGray/Filter/JBIG2Decode",
            )
        ),
    ),
    Hostile(
        "image-jpeg2000.pdf",
        _with_image(
            _image(
                40_000,
                40_000,
                bytes.fromhex(
                    "ff4fff51002f000000009c4000009c4000000000000000000000010000000100000000000000000003070101070101070101ffd9"
                ),
                "/Filter/JPXDecode",
            )
        ),
    ),
    Hostile(
        "image-fax.pdf",
        _with_image(
            _image(
                60_000,
                60_000,
                b"\0" * 1000,
                "/BitsPerComponent 1/ColorSpace/DeviceGray/Filter/CCITTFaxDecode"
                "/DecodeParms<</K -1/Columns 60000/Rows 60000>>",
            )
        ),
    ),
    Hostile("inline-image.pdf", _page(b"BI /W 50000 /H 50000 /BPC 8 /CS /RGB ID x EI " * 9)),
    Hostile(
        "tiles.pdf",
        _page(
            b"/Pattern cs /P scn 0 0 612 792 re f",
            _stream(
                b"0 0 1 1 re f",
                "/Type/Pattern/PatternType 1/PaintType 1/TilingType 1/BBox[0 0 1 1]"
                "/XStep 0.0001/YStep 0.0001/Resources<<>>",
            ),
            extra="/Resources<</Pattern<</P {0} 0 R>>>>",
        ),
    ),
    Hostile(
        "shading-with-a-program.pdf",
        _page(
            b"/S sh",
            _stream(b"{" + b"dup mul " * 40_000 + b"pop 0 0 0}", "/FunctionType 4/Domain[0 1 0 1]/Range[0 1 0 1 0 1]"),
            b"<</ShadingType 1/ColorSpace/DeviceRGB/Function 5 0 R/Matrix[612 0 0 792 0 0]>>",
            extra="/Resources<</Shading<</S {1} 0 R>>>>",
        ),
    ),
    Hostile(
        "shading-of-samples.pdf",
        _page(
            b"/S sh",
            _stream(b"x", "/FunctionType 0/Domain[0 1 0 1]/Range[0 1 0 1 0 1]/Size[65535 65535]/BitsPerSample 32"),
            b"<</ShadingType 1/ColorSpace/DeviceRGB/Function 5 0 R/Matrix[612 0 0 792 0 0]>>",
            extra="/Resources<</Shading<</S {1} 0 R>>>>",
        ),
    ),
    Hostile("letters-of-themselves.pdf", _type3_font()),
    Hostile("letters-of-512-characters.pdf", _unicode_map()),
    Hostile(
        "form-of-itself.pdf",
        _page(b"/X Do", _form(b"/X Do /X Do", "/XObject<</X 5 0 R>>"), extra="/Resources<</XObject<</X {0} 0 R>>>>"),
    ),
    Hostile(
        "mask-of-itself.pdf",
        _page(
            b"/G gs 0 0 9 9 re f",
            b"<</SMask<</S/Luminosity/G 6 0 R>>>>",
            _form(b"/G gs 0 0 9 9 re f", "/ExtGState<</G 5 0 R>>"),
            extra="/Resources<</ExtGState<</G {0} 0 R>>>>",
        ),
    ),
]

LIARS = [
    Hostile("tree-of-itself.pdf", written(_raw(_CATALOG, b"<</Type/Pages/Count 9/Kids[2 0 R 2 0 R]>>")), pinned=True),
    Hostile("tree-of-ten-thousand-levels.pdf", written(_deep_tree(10_000))),
    Hostile("two-milliard-pages.pdf", written(_raw(_CATALOG, b"<</Type/Pages/Count 2147483647/Kids[3 0 R]>>", _LEAF))),
    Hostile("less-than-no-pages.pdf", written(_raw(_CATALOG, b"<</Type/Pages/Count -1/Kids[]>>")), REFUSED),
    Hostile("no-pages.pdf", written(_raw(_CATALOG, b"<</Type/Pages/Count 0/Kids[]>>")), REFUSED),
    Hostile(
        "one-page-many-times.pdf",
        written(_raw(_CATALOG, b"<</Type/Pages/Count 90000/Kids[" + b"3 0 R " * 90_000 + b"]>>", _LEAF)),
        REFUSED,
    ),
    Hostile("root-is-a-number.pdf", written(_raw(b"42")), REFUSED),
    Hostile(
        "table-before-itself.pdf",
        written(_raw(_CATALOG, b"<</Type/Pages/Count 1/Kids[3 0 R]>>", _LEAF, trailer=b"/Prev 200")),
    ),
    Hostile("size-of-the-table.pdf", written(_raw(_CATALOG, trailer=b"/Size 2147483647")), REFUSED),
    Hostile("trailer-of-arrays.pdf", written(_raw(_CATALOG, trailer=b"/A" + b"[" * 200_000)), REFUSED),
    Hostile(
        "length-below-zero.pdf",
        written(pdf_bytes([Sheet(b"x")]).replace(b"/Length 1", b"/Length -9223372036854775808")),
    ),
    Hostile(
        "packed-objects-of-themselves.pdf",
        written(_raw(_CATALOG, _stream(b"2 0 <<>>", "/Type/ObjStm/N 99999999/First 4/Extends 2 0 R"))),
    ),
    Hostile("page-of-no-numbers.pdf", _page(box="nan inf 1e400 -1e400")),
    Hostile("page-of-light-years.pdf", _page(box="0 0 1e30 1e30")),
    Hostile("page-of-nothing.pdf", _page(box="0 0 0 0")),
    Hostile("page-of-great-units.pdf", _page(shown("x", 9, 9), extra="/UserUnit 1e9")),
    Hostile("page-turned.pdf", _page(shown("x", 9, 9), extra="/Rotate 99999999991")),
    Hostile("text-of-light-years.pdf", _page(b"BT /F1 1e30 Tf 1e30 0 0 nan 1e38 9 Tm (far) Tj ET")),
    Hostile("fifty-thousand-links.pdf", _many_annotations),
    Hostile("program-at-opening.pdf", _active),
    Hostile(
        "harmful-text.pdf", lambda path: text_pdf(path, [[_HARMFUL_TEXT.replace("\x9b", "")]]), "COMPLETED", pinned=True
    ),
    Hostile("locked.pdf", encrypted_pdf, "REFUSED: .*password", pinned=True),
    Hostile(
        "key-of-a-mile.pdf",
        written(_raw(_CATALOG, trailer=b"/Encrypt<</Filter/Standard/V 5/R 6/Length 99999999/O(x)/U(x)/P 1>>")),
        REFUSED,
    ),
    Hostile("only-a-header.pdf", written(b"%PDF-1.7\n" + b"\xff" * 9000), "REFUSED: .*damaged"),
    Hostile("header-far-below.pdf", written(b"\0" * 3000 + pdf_bytes([Sheet(b"x")])), REFUSED),
    Hostile("web-page.pdf", written(b"<html><body onload=alert(1)>" + b"x" * 5000), "COMPLETED"),
    Hostile(
        "program.pdf",
        lambda path: path.write_bytes(Path("/bin/true").read_bytes()),
        "REFUSED: .*not of a supported type",
    ),
    Hostile(
        "page-and-archive.pdf",
        written(pdf_bytes([Sheet(shown("both", 72, 700))]) + b"PK\x05\x06" + b"\0" * 18),
        "COMPLETED",
    ),
]


def all_pdfs() -> Iterator[Hostile]:
    yield from BOMBS
    yield from LIARS
