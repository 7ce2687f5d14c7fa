"""Make a searchable PDF: the original pages, with their words as invisible text at their places.

The text goes before a page's own content, so that the page covers it, and the page's streams and pictures stay byte for
byte. A picture file becomes a PDF that holds it: a JPEG unchanged, other pictures without loss.
"""

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import pikepdf
from pikepdf import Array, Dictionary, Name
from PIL import Image, ImageCms, ImageOps, TiffImagePlugin

from pipeline.reading.files.filetype import detect_file
from pipeline.reading.ocr import images
from pipeline.reading.pdf import active_content, invisible_text, pdfium, placement
from pipeline.reading.pdf.invisible_text import Codes, TextLine
from pipeline.reading.sandbox.limits import refused

FONT = "PenstockText"
"""The name of the font with the empty glyph in the resources of pages."""
_DPI = 200
"""The assumed resolution of a picture that names none."""
_PLAUSIBLE_DPI = (50, 2400)
_MOST_LEVELS = 50
_MOST_POINTS = 14_400
"""The longest side of a page that readers of PDF accept."""


class PageText(NamedTuple):
    """The text for a page, whose lines are placed on a page of `width` by `height`.

    `text`: the page's text if a model read it: it replaces the words of the lines, at their places. `boxes`: the boxes
    of the model's blocks with their texts, in the same units as the lines. `number`: the page's number in the file."""

    number: int
    width: float
    height: float
    lines: Sequence[TextLine]
    lean: float = 0.0
    text: str | None = None
    boxes: Sequence[tuple[str, Sequence[float]]] = ()


class Report(NamedTuple):
    """What was added. `pages`: the numbers of pages that got text; `spread`: those whose text has no places of its own,
    and lies over the whole page or over a model's blocks. `pdfa`: the part and level that the result claims, or empty,
    with the `reason`. `removed`: whether the source had scripts, actions or files, which the result lacks."""

    pages: list[int]
    spread: list[int]
    pdfa: str
    reason: str
    removed: bool = False


def write(
    source: Path, target: Path, texts: Sequence[PageText], tick: Callable[[float], object], *, keep_active: bool = False
) -> Report:
    """Write the searchable PDF of a PDF or picture file to `target`. Calls `tick` with the share done. `keep_active`:
    leave scripts, actions and files in it. Raises `UnitError` (permanent)."""
    try:
        if detect_file(source) == "pdf":
            return _write_pdf(source, target, texts, tick, keep_active=keep_active)
        return _write_pictures(source, target, texts, tick)
    except pikepdf.PasswordError as error:
        raise refused(f"{source.name} needs a password; save a copy without one and use that.", "encrypted") from error
    except (pikepdf.PdfError, pikepdf.ForeignObjectError) as error:
        raise refused(f"{source.name} is damaged: {error}; export or download it again.", "corrupt") from error


def _write_pdf(
    source: Path, target: Path, texts: Sequence[PageText], tick: Callable[[float], object], *, keep_active: bool
) -> Report:
    codes, added, spread = Codes(), list[int](), list[int]()
    with pdfium.open_document(source) as document, pikepdf.open(source) as pdf:
        if document.pages != len(pdf.pages):
            raise refused(f"{source.name} is damaged: its list of pages is unclear; export it again.", "corrupt")
        removed = not keep_active and active_content.remove(pdf, lambda: tick(0.0))
        font = pdf.make_indirect(Dictionary())
        for place, text in enumerate(texts):
            tick(place / len(texts))
            with document.page(text.number) as page:
                size, matrix = page.size, _matrix(page)
            lines, is_spread = _lines(text)
            stream = _stream(lines, text, size, matrix, codes)
            if stream:
                _add(pdf, pdf.pages[text.number - 1], stream, font)
                added.append(text.number)
                spread += [text.number] if is_spread else []
        if not added and not removed:
            target.write_bytes(source.read_bytes())
            return Report([], [], "", "the file is unchanged", removed)
        pdfa, reason = "", "no text is added"
        if added:
            _fill_font(pdf, font, codes)
            pdfa, reason = _claim_pdfa(pdf)
        pdf.save(
            target,
            compress_streams=False,
            stream_decode_level=pikepdf.StreamDecodeLevel.none,
            object_stream_mode=pikepdf.ObjectStreamMode.preserve,
            encryption=True if pdf.is_encrypted else None,
            fix_metadata_version=False,
        )
    return Report(added, spread, pdfa, reason, removed)


def _lines(text: PageText) -> tuple[list[TextLine], bool]:
    """Return the lines to write, and whether their places are guesses."""
    if text.text is None:
        return list(text.lines), False
    if text.lines and (lines := placement.placed(text.text, text.lines)) is not None:
        return lines, False
    if text.boxes:
        result: list[TextLine] = []
        for words, (left, top, right, bottom) in text.boxes:
            inside = [
                line._replace(text="", places=())
                for line in text.lines
                if left <= (line.left + line.right) / 2 <= right and top <= (line.top + line.bottom) / 2 <= bottom
            ]
            result += placement.spread(words, inside or placement.ruled(words, (left, top, right, bottom)))
        return result, True
    if text.lines:
        return placement.spread(text.text, text.lines), True
    return placement.on_page(text.text, text.width, text.height), True


def _stream(
    lines: Sequence[TextLine], text: PageText, size: tuple[float, float], matrix: Sequence[float], codes: Codes
) -> bytes:
    across, down = size[0] / text.width, size[1] / text.height
    scaled = [
        line._replace(
            left=line.left * across, top=line.top * down, right=line.right * across, bottom=line.bottom * down
        )
        for line in lines
    ]
    return invisible_text.content(scaled, size, matrix, text.lean, FONT, codes)


def _matrix(page: pdfium.Page) -> tuple[float, ...]:
    """Return the matrix that turns points of the displayed page, from its bottom left corner, into the page's own."""
    x0, y0, x1, y1 = page.bounds
    return {
        90: (0.0, 1.0, -1.0, 0.0, x1, y0),
        180: (-1.0, 0.0, 0.0, -1.0, x1, y1),
        270: (0.0, -1.0, 1.0, 0.0, x0, y1),
    }.get(page.rotation, (1.0, 0.0, 0.0, 1.0, x0, y0))


def _add(pdf: pikepdf.Pdf, page: pikepdf.Page, content: bytes, font: pikepdf.Object) -> None:
    """Add content before the page's own, and the font to the page's resources. Shared dictionaries are copied, not
    changed."""
    resources = page.obj.get("/Resources", None)
    parent: Any = page.obj
    for _ in range(_MOST_LEVELS):
        parent = parent.get("/Parent", None) if resources is None else None
        if not isinstance(parent, Dictionary):
            break
        resources = parent.get("/Resources", None)
    own = Dictionary(dict(resources.items())) if isinstance(resources, Dictionary) else Dictionary()
    fonts = own.get("/Font", None)
    own.Font = Dictionary(dict(fonts.items())) if isinstance(fonts, Dictionary) else Dictionary()
    own.Font[f"/{FONT}"] = font
    page.obj.Resources = own
    existing = page.obj.get("/Contents", None)
    parts = list(existing) if isinstance(existing, Array) else [] if existing is None else [existing]
    page.obj.Contents = Array([_compressed(pdf, content), *parts])


def _compressed(pdf: pikepdf.Pdf, data: bytes) -> pikepdf.Stream:
    return pikepdf.Stream(pdf, zlib.compress(data, 9), Filter=Name.FlateDecode)


def _fill_font(pdf: pikepdf.Pdf, font: pikepdf.Object, codes: Codes) -> None:
    name, file = Name("/Blank"), invisible_text.font_file()
    font_file = _compressed(pdf, file)
    font_file.Length1 = len(file)
    ascent, descent, width = invisible_text.ASCENT, invisible_text.DESCENT, invisible_text.WIDTH
    descriptor = Dictionary(
        Type=Name.FontDescriptor,
        FontName=name,
        Flags=4,
        FontBBox=Array([0, descent, width, ascent]),
        ItalicAngle=0,
        Ascent=ascent,
        Descent=descent,
        CapHeight=ascent,
        StemV=80,
        FontFile2=pdf.make_indirect(font_file),
    )
    descendant = Dictionary(
        Type=Name.Font,
        Subtype=Name.CIDFontType2,
        BaseFont=name,
        DW=width,
        CIDSystemInfo=Dictionary(Registry=pikepdf.String("Adobe"), Ordering=pikepdf.String("Identity"), Supplement=0),
        FontDescriptor=pdf.make_indirect(descriptor),
        # All codes show the empty glyph: PDF/A forbids references to `.notdef`.
        CIDToGIDMap=pdf.make_indirect(_compressed(pdf, b"\x00\x01" * 65536)),
    )
    font.Type, font.Subtype, font.BaseFont, font.Encoding = Name.Font, Name.Type0, name, Name("/Identity-H")
    font.DescendantFonts = Array([pdf.make_indirect(descendant)])
    font.ToUnicode = pdf.make_indirect(_compressed(pdf, codes.to_unicode()))


_CATALOG = {"/Type", "/Pages", "/Metadata", "/PageLayout", "/PageMode", "/Lang", "/ViewerPreferences", "/Version"}
_PAGE = {
    "/Type",
    "/Parent",
    "/MediaBox",
    "/CropBox",
    "/BleedBox",
    "/TrimBox",
    "/ArtBox",
    "/Rotate",
    "/Contents",
    "/Resources",
    "/Tabs",
}
_RESOURCES = {"/XObject", "/ProcSet", "/Font"}
_PICTURE_KEYS = {
    "/Type",
    "/Subtype",
    "/Name",
    "/Width",
    "/Height",
    "/BitsPerComponent",
    "/ColorSpace",
    "/Filter",
    "/DecodeParms",
    "/Decode",
    "/Length",
    "/ImageMask",
    "/Interpolate",
    "/Intent",
    "/Metadata",
}
_FILTERS = {"/DCTDecode", "/FlateDecode", "/CCITTFaxDecode", "/JBIG2Decode", "/RunLengthDecode"}
_COLOURS = {"/DeviceRGB", "/DeviceGray", "/CalRGB", "/CalGray"}
_OPERATORS = frozenset(
    # those of our own text, and those that draw pictures and plain shapes
    b"BT ET Tr Tf Tz Tm TJ q Q cm w J j M d i m l c v y h re S s f F f* B B* b b* n W W* g G rg RG Do".decode().split()
)
_MOST_CONTENT = 65_536
"""The most bytes of a page's own content, as stored, to examine: a scan's has about a hundred."""


def _claim_pdfa(pdf: pikepdf.Pdf) -> tuple[str, str]:
    """Make a PDF of scans PDF/A-2b, and say so in its metadata; return part and level, and why. A claim of the source
    stays, at most at level b, since the new text is not tagged."""
    try:
        with pdf.open_metadata(set_pikepdf_as_editor=False, update_docinfo=False) as metadata:
            if claimed := metadata.pdfa_status:
                metadata["pdfaid:conformance"] = "B"
                return f"{claimed[0]}b", "the source claims it"
    except Exception:  # noqa: BLE001  # metadata from strangers may break any parser
        return "", "its metadata is damaged"
    try:
        problem = next(_beyond_scans(pdf), "")
    except (pikepdf.PdfError, AttributeError, LookupError, TypeError, ValueError):
        problem = "its structure is odd"
    if problem:
        return "", problem
    _declare(pdf)
    return "2b", "the source holds nothing but pictures"


def _declare(pdf: pikepdf.Pdf) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    stream = _compressed(pdf, profile)
    stream.N = 3
    intent = Dictionary(
        Type=Name.OutputIntent,
        S=Name.GTS_PDFA1,
        OutputConditionIdentifier=pikepdf.String("sRGB"),
        Info=pikepdf.String("sRGB"),
        DestOutputProfile=pdf.make_indirect(stream),
    )
    pdf.Root.OutputIntents = Array([intent])
    with pdf.open_metadata(set_pikepdf_as_editor=False) as metadata:
        metadata.load_from_docinfo(pdf.docinfo)
        metadata["pdfaid:part"], metadata["pdfaid:conformance"] = "2", "B"


def _beyond_scans(pdf: pikepdf.Pdf) -> Iterator[str]:
    """Yield the reasons why a PDF cannot be PDF/A-2b; none if its pages hold only pictures in plain colours."""
    if pdf.is_encrypted:
        yield "the source is encrypted"
    yield from (f"the source has {name[1:]}" for name in set(pdf.Root.keys()) - _CATALOG)
    seen: set[tuple[int, int]] = set()
    for number, page in enumerate(pdf.pages, 1):
        yield from (f"page {number} has {problem}" for problem in _beyond_page(page, seen))


def _beyond_page(page: pikepdf.Page, seen: set[tuple[int, int]]) -> Iterator[str]:
    """As `_beyond_scans`, of one page; `seen`: the pictures of earlier pages, which it extends."""
    yield from (name[1:] for name in set(page.obj.keys()) - _PAGE)
    if not all(3 <= float(side) <= _MOST_POINTS for side in _sides(page)):
        yield "a size beyond the limits"
    resources = page.obj.get("/Resources", Dictionary())
    yield from (f"resources of type {name[1:]}" for name in set(resources.keys()) - _RESOURCES)
    if set(resources.get("/Font", Dictionary()).keys()) - {f"/{FONT}"}:
        yield "text of its own"
    for picture in resources.get("/XObject", Dictionary()).values():
        if picture.objgen not in seen:
            seen.add(picture.objgen)
            yield from filter(None, [_beyond_picture(picture)])
    yield from filter(None, [_beyond_content(page)])


def _sides(page: pikepdf.Page) -> tuple[Any, Any]:
    left, bottom, right, top = page.mediabox
    return abs(right - left), abs(top - bottom)


def _beyond_picture(picture: pikepdf.Object) -> str:
    if picture.get("/Subtype") != "/Image":
        return "drawings in forms"
    if others := set(picture.keys()) - _PICTURE_KEYS:
        return f"a picture with {min(others)[1:]}"
    filters = picture.get("/Filter", Array())
    if any(str(name) not in _FILTERS for name in (filters if isinstance(filters, Array) else [filters])):
        return "a picture in another compression"
    if picture.get("/Interpolate", False) or picture.get("/BitsPerComponent", 1) not in {1, 2, 4, 8}:
        return "a picture with interpolation or deep colours"
    colour = picture.get("/ColorSpace", Name.DeviceGray)
    if isinstance(colour, Array) and len(colour) == 4 and colour[0] == "/Indexed":
        colour = colour[1]
    if isinstance(colour, Array) and len(colour) == 2 and colour[0] == "/ICCBased":
        return "" if colour[1].get("/N") in {1, 3} else "a picture in colours for print"
    name = colour[0] if isinstance(colour, Array) and len(colour) else colour
    return "" if str(name) in _COLOURS else "a picture in colours for print"


def _beyond_content(page: pikepdf.Page) -> str:
    contents = page.obj.get("/Contents", Array())
    parts = list(contents) if isinstance(contents, Array) else [contents]
    if sum(len(part.read_raw_bytes()) for part in parts) > _MOST_CONTENT:
        return "more than pictures"
    others = {str(step.operator) for step in pikepdf.parse_content_stream(page)} - _OPERATORS
    return f"the operator {min(others)[:10]}" if others else ""


def _write_pictures(source: Path, target: Path, texts: Sequence[PageText], tick: Callable[[float], object]) -> Report:
    """Make a PDF whose pages are the pictures of a file: all of a TIFF's, whether they got text or not."""
    codes, added, spread = Codes(), list[int](), list[int]()
    known = {text.number: text for text in texts}
    pdf = pikepdf.new()
    font = pdf.make_indirect(Dictionary())
    plain = True
    for number, (picture, size, orientation, colours) in enumerate(_pictures(pdf, source), 1):
        tick(number / (number + 1))
        plain = plain and colours
        across, down = (size[1], size[0]) if orientation > 4 else size
        content = (
            f"q\n{' '.join(f'{value:.2f}' for value in _upright(orientation, across, down))} cm\n/Scan Do\nQ\n"
        ).encode()
        page = pikepdf.Page(
            Dictionary(
                Type=Name.Page,
                MediaBox=Array([0, 0, round(across, 2), round(down, 2)]),
                Resources=Dictionary(XObject=Dictionary(Scan=picture)),
                Contents=pdf.make_indirect(_compressed(pdf, content)),
            )
        )
        pdf.pages.append(page)
        if text := known.get(number):
            lines, is_spread = _lines(text)
            if stream := _stream(lines, text, (across, down), (1.0, 0.0, 0.0, 1.0, 0.0, 0.0), codes):
                _add(pdf, pdf.pages[-1], stream, font)
                added.append(number)
                spread += [number] if is_spread else []
    if added:
        _fill_font(pdf, font, codes)
    if plain:
        _declare(pdf)
    pdf.save(target, min_version="1.7", compress_streams=False, object_stream_mode=pikepdf.ObjectStreamMode.generate)
    return Report(added, spread, "2b" if plain else "", "made from pictures" if plain else "its colours are for print")


def _upright(orientation: int, width: float, height: float) -> tuple[float, ...]:
    """Return the matrix that draws a picture upright in a page of this size, by its Exif orientation."""
    return {
        2: (-width, 0, 0, height, width, 0),
        3: (-width, 0, 0, -height, width, height),
        4: (width, 0, 0, -height, 0, height),
        5: (0, -height, -width, 0, width, height),
        6: (0, -height, width, 0, 0, height),
        7: (0, height, width, 0, 0, 0),
        8: (0, height, -width, 0, width, 0),
    }.get(orientation, (width, 0, 0, height, 0, 0))


def _pictures(pdf: pikepdf.Pdf, source: Path) -> Iterator[tuple[pikepdf.Object, tuple[float, float], int, bool]]:
    """Yield each picture of the file as an object of the PDF, its size in points, its Exif orientation (1 to 8), and
    whether its colours are those of screens."""
    with images.open_picture(source) as image:
        number = 1
        while images.seek_frame(image, number, source):
            size = _points(image)
            if image.format in images.JPEGS and number == 1 and image.mode in {"L", "RGB", "CMYK"}:
                yield _jpeg(pdf, image, source.read_bytes()), size, _orientation(image), image.mode != "CMYK"
            elif image.format == "PNG" and (png := _png(pdf, source.read_bytes())) is not None:
                yield png, size, _orientation(image), True
            else:
                turned = image.mode != "1" and _orientation(image) > 4
                picture = _lossless(pdf, image)  # which turns all but faxes
                yield picture, size[::-1] if turned else size, _orientation(image) if image.mode == "1" else 1, True
            number += 1


def _orientation(image: Image.Image) -> int:
    value = image.getexif().get(0x0112, 1)
    return value if value in range(1, 9) else 1


def _points(image: Image.Image) -> tuple[float, float]:
    """Return the size of a picture in points, by the resolution that it names, if plausible."""
    try:
        across, down = (float(value) for value in image.info.get("dpi", (_DPI, _DPI)))
    except (TypeError, ValueError, ZeroDivisionError):
        across = down = _DPI
    least, most = _PLAUSIBLE_DPI
    if not (least <= across <= most and least <= down <= most):
        across = down = _DPI
    width, height = image.width * 72 / across, image.height * 72 / down
    shrink = min(1.0, _MOST_POINTS / max(width, height))
    return max(3.0, width * shrink), max(3.0, height * shrink)


def _jpeg(pdf: pikepdf.Pdf, image: Image.Image, data: bytes) -> pikepdf.Object:
    colour = {"L": Name.DeviceGray, "RGB": Name.DeviceRGB, "CMYK": Name.DeviceCMYK}[image.mode]
    picture = pikepdf.Stream(
        pdf,
        data,
        Type=Name.XObject,
        Subtype=Name.Image,
        Width=image.width,
        Height=image.height,
        ColorSpace=colour,
        BitsPerComponent=8,
        Filter=Name.DCTDecode,
    )
    if image.mode == "CMYK" and "adobe" in image.info:
        picture.Decode = Array([1, 0] * 4)  # as Photoshop and Pillow write it
    return pdf.make_indirect(picture)


def _lossless(pdf: pikepdf.Pdf, image: Image.Image) -> pikepdf.Object:
    """Return a picture of another format than JPEG: two colours as a fax, others deflated, transparency on white."""
    if image.mode == "1":
        buffer = BytesIO()
        image.save(buffer, "TIFF", compression="group4", tiffinfo={TiffImagePlugin.ROWSPERSTRIP: image.height})
        with Image.open(buffer, formats=["TIFF"]) as fax:
            tags = fax.tag_v2  # type: ignore[attr-defined]
            (at,), (length,) = tags[TiffImagePlugin.STRIPOFFSETS], tags[TiffImagePlugin.STRIPBYTECOUNTS]
            black_is_one = tags[TiffImagePlugin.PHOTOMETRIC_INTERPRETATION] == 0
        parameters = Dictionary(K=-1, Columns=image.width, Rows=image.height, BlackIs1=not black_is_one)
        picture = pikepdf.Stream(
            pdf,
            buffer.getvalue()[at : at + length],
            Filter=Name.CCITTFaxDecode,
            DecodeParms=parameters,
            ColorSpace=Name.DeviceGray,
            BitsPerComponent=1,
        )
    else:
        upright = image.convert("L") if image.mode == "L" else images.normalise(image, images.MAX_DECODED_PIXELS)
        if image.mode == "L":
            upright = ImageOps.exif_transpose(upright)
        buffer = BytesIO()
        upright.save(buffer, "PNG", compress_level=9)
        png = _png(pdf, buffer.getvalue())
        assert png is not None
        return png
    picture.Type, picture.Subtype, picture.Width, picture.Height = Name.XObject, Name.Image, *image.size
    return pdf.make_indirect(picture)


def _png(pdf: pikepdf.Pdf, data: bytes) -> pikepdf.Object | None:
    """Return the picture of a PNG with its pixels as the file stores them; None if PDF cannot read them so: for
    transparency, interlacing, and 16 bits."""
    chunks: dict[bytes, bytearray] = {}
    at = 8
    while at + 8 <= len(data):
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        chunks.setdefault(kind, bytearray()).extend(data[at + 8 : at + 8 + length])
        at += 12 + length
    width, height, bits, kind, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[b"IHDR"][:13])
    palette = bytes(chunks.get(b"PLTE", b""))
    if interlaced or bits > 8 or kind not in {0, 2, 3} or b"tRNS" in chunks or (kind == 3 and not palette):
        return None
    colours = 3 if kind == 2 else 1
    indexed = Array([Name.Indexed, Name.DeviceRGB, len(palette) // 3 - 1, pikepdf.String(palette)])
    picture = pikepdf.Stream(
        pdf,
        bytes(chunks[b"IDAT"]),
        Type=Name.XObject,
        Subtype=Name.Image,
        Width=width,
        Height=height,
        BitsPerComponent=bits,
        ColorSpace={0: Name.DeviceGray, 2: Name.DeviceRGB, 3: indexed}[kind],
        Filter=Name.FlateDecode,
        DecodeParms=Dictionary(Predictor=15, Colors=colours, BitsPerComponent=bits, Columns=width),
    )
    return pdf.make_indirect(picture)


def texts_of(data: Mapping[str, Any]) -> list[PageText]:
    """Return the texts in the JSON that `as_json` made."""
    return [
        PageText(
            page["number"],
            page["width"],
            page["height"],
            lines_of(page["lines"]),
            page["lean"],
            page["text"],
            [(words, box) for words, box in page["boxes"]],
        )
        for page in data["pages"]
    ]


def lines_of(lines: Sequence[Sequence[Any]]) -> list[TextLine]:
    """Return lines as a page's layout stores them."""
    return [TextLine(*line) for line in lines]
