"""Convert pages to Markdown on this machine: from a trustworthy text layer, otherwise by text recognition."""

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from PIL import Image

from pipeline.engine.errors import ErrorKind, UnitError, told
from pipeline.reading.files.filetype import detect_file
from pipeline.reading.files.source import ACCEPTED
from pipeline.reading.layout import certainty, legibility
from pipeline.reading.layout import page as layout
from pipeline.reading.layout.assembly import with_pictures
from pipeline.reading.layout.doubt import wants_regions
from pipeline.reading.layout.model import Box, Formula, Furniture, Paragraph, Picture, Rule, area, holds
from pipeline.reading.layout.page import Block, DocumentProfile, Line, PageContent, PageFacts
from pipeline.reading.ocr import images, inks, layout_model, orientation, pixel_rules, recognition, tesseract_words
from pipeline.reading.ocr.combination import combined
from pipeline.reading.ocr.rendition import MAX_WORDS, Rendition
from pipeline.reading.pdf import pdfium, pictures, text_layer
from pipeline.reading.pdf.page_cache import TEXT_PARTS, Contents, PageCache
from pipeline.reading.pdf.pages import ConvertedPage, Options
from pipeline.reading.pdf.text_layer import TextLayer

REVISION = 5
"""Raise this whenever conversion changes: results of an earlier revision are then made anew."""

_REMEMBERED_PICTURES = 32
_PICTURE_DPI = 150
_MAX_SAVED_PICTURES = 50
_MAX_SURVEYED = 1000
_STRETCH = 8
_POOR = 0.3
_EDGE = 0.05
_DRAWING_PARTS = 12  # One part of a page's time draws the page for the layout model.


class PageSource(Protocol):
    """The pages of one open file."""

    def convert(
        self, number: int, image: Path | None = None, picture_folder: Path | None = None, second: Path | None = None
    ) -> ConvertedPage:
        """Convert page `number` (from 1). `image`: a file with the page's picture, read instead of a rendering if text
        must be recognised; `picture_folder`: where to save pictures on the page, None: nowhere; `second`: a folder with
        Tesseract's words or, if it has none yet, for the picture that Tesseract is to read. Raises `UnitError`."""

    def render(self, number: int, folder: Path, rendition: Rendition, max_pixels: int) -> Path:
        """Draw page `number` (from 1) as RGB for a model, to the file `page-0001.jpg` or `.png`; return its path.

        The file is written whole or not at all, and has at most `max_pixels` pixels. Raises `UnitError`."""


def survey(source: Path, pages: Sequence[int], options: Options, tick: Callable[[], object]) -> str:
    """Return the profile of a PDF as JSON text: the style of its text, the levels of its headings, its repeated lines.
    `pages`: the page numbers to be converted.

    Empty for pictures. Skips damaged pages, whose conversion fails later, and stops after one page's time. Calls `tick`
    before each page. Raises `UnitError` (permanent) if the file cannot be opened.
    """
    if _type_of(source) != "pdf":
        return ""
    with pdfium.open_document(source) as document:
        _PAGES.start(source)
        facts = _facts(document, surveyed(pages, document.pages), options, tick)
        return json.dumps(layout.document_profile(facts).to_dict())


def surveyed(wanted: Sequence[int], pages: int) -> list[int]:
    """Return the numbers of the pages to read for a document's profile, ascending: the wanted pages and two neighbours
    on either side, which show repeated lines. If these are more than 1,000, about 1,000 of them, in stretches of eight.
    `pages`: how many pages the document has."""
    near = sorted({page for number in wanted for page in range(number - 2, number + 3) if 1 <= page <= pages})
    if len(near) <= _MAX_SURVEYED:
        return near
    stretches = _MAX_SURVEYED // _STRETCH
    starts = (len(near) * stretch // stretches for stretch in range(stretches))
    return [page for start in starts for page in near[start : start + _STRETCH]]


def _facts(
    document: pdfium.Document, numbers: Sequence[int], options: Options, tick: Callable[[], object]
) -> Iterator[PageFacts]:
    """Yield `page_facts` of one page after the other, without text in pictures, until one page's time is over. Skips
    damaged pages."""
    ends = time.monotonic() + options.page_s
    for number in numbers:
        tick()
        if time.monotonic() > ends:
            return
        with suppress(UnitError):
            with document.page(number) as page:
                read = Contents.of(page, options)
            _PAGES.keep(number, read)
            lines = tuple(read.layer.lines if read.layer.usable else ())
            yield layout.page_facts(replace(read.content, lines=lines))


_PAGES = PageCache()


@contextmanager
def open_source(source: Path, options: Options, survey: str = "") -> Iterator[PageSource]:
    """Open the pages of a PDF or a picture file, detected by content. `survey`: the JSON text that `survey`
    returned; empty: each page makes a profile of its own.

    Raises `UnitError`, permanent, with code `missing`, `unreadable`, `unsupported`, `encrypted`, `no_pages` or
    `corrupt`.
    """
    if _type_of(source) == "pdf":
        with pdfium.open_document(source) as document:
            profile = DocumentProfile.from_dict(json.loads(survey)) if survey else None
            yield _PdfSource(document, options, profile, source)
    else:
        yield _PictureSource(source, options)


def _type_of(source: Path) -> str:
    try:
        detected = detect_file(source)
    except FileNotFoundError as error:
        raise UnitError(f"{source.name} does not exist.", kind=ErrorKind.PERMANENT, code="missing") from error
    except OSError as error:
        message = f"{source.name} cannot be read: {told(error)}"
        raise UnitError(message, kind=ErrorKind.PERMANENT, code="unreadable") from error
    if detected is None:
        message = f"{source.name} is not of a supported type; {ACCEPTED} are accepted."
        raise UnitError(message, kind=ErrorKind.PERMANENT, code="unsupported")
    return detected


class _View(NamedTuple):
    """A picture of a page or a part of it; `left` and `top`: its place on the page; `scale`: page units per pixel."""

    picture: Image.Image
    left: float
    top: float
    scale: float

    def read(self, threads: int) -> recognition.Reading:
        """Return the text and the rules in the picture, in its pixels. If the reading is unsure and a coloured stamp
        may cover text, read the picture without colours as well."""
        if images.is_blank(self.picture):
            return recognition.Reading([], None)
        reading = recognition.read(self.picture, threads)
        if reading.is_unsure and inks.has_colour(self.picture):
            black = recognition.read(inks.black_only(self.picture), threads)
            sure = max((share for share in (reading.confidence, black.confidence) if share is not None), default=None)
            reading = reading._replace(lines=combined(reading.lines, black.lines), confidence=sure)
        return reading._replace(rules=tuple(pixel_rules.find(self.picture, reading.lines, reading.lean)))

    def placed(self, line: Line) -> Line:
        """Return the line, whose box is in pixels of the picture, with its box on the page."""
        line = orientation.scaled(line, self.scale)
        return line._replace(
            left=self.left + line.left,
            top=self.top + line.top,
            right=self.left + line.right,
            bottom=self.top + line.bottom,
        )

    def placed_rule(self, rule: Rule) -> Rule:
        """Return the rule, whose box is in pixels of the picture, with its box on the page."""
        left, top, right, bottom = (self.scale * value for value in rule)
        return Rule(self.left + left, self.top + top, self.left + right, self.top + bottom)


class _PdfSource:
    def __init__(
        self,
        document: pdfium.Document,
        options: Options,
        profile: DocumentProfile | None,
        path: Path,
    ) -> None:
        self._document = document
        self._path = path
        self._options = options
        self._profile = profile
        self._recognised: OrderedDict[bytes, recognition.Reading] = OrderedDict()

    def convert(
        self, number: int, image: Path | None = None, picture_folder: Path | None = None, second: Path | None = None
    ) -> ConvertedPage:
        """Convert a page of a PDF; the boxes of its blocks are in points."""
        (layer, content, found), views = self._inspect(number, image)
        read = self._text(layer, views, second)
        content = replace(content, lines=tuple(read.lines), rules=content.rules + read.rules)
        blocks = _as_wanted(self._blocks(content, layer, views, number), self._options)
        facts = _recognised(blocks, read, content.height, whole=not layer.usable)
        if picture_folder is not None:
            formulas = [block.box for block in blocks if isinstance(block, Formula)]
            kept = [*pictures.worth_keeping(found, (content.width, content.height)), *formulas]
            blocks = with_pictures(blocks, self._saved_pictures(number, picture_folder, kept[:_MAX_SAVED_PICTURES]))
        return _converted(content, blocks, number, "pt", read, facts)

    def render(self, number: int, folder: Path, rendition: Rendition, max_pixels: int) -> Path:
        with self._document.page(number) as page:
            width, height = page.size
            scale = rendition.scale(width, height, max_pixels, is_drawn=True)
            picture = page.render(72 * scale, max_pixels)
            layer = text_layer.read(page, time.monotonic() + self._options.page_s / TEXT_PARTS)
        words = [word for line in layer.lines for word in line.text.split()] if layer.usable else []
        size = rendition.fitted(*picture.size, max_pixels)
        picture = picture if picture.size == size else picture.resize(size)
        return images.save_page(picture, folder, number, rendition, (width, height, "pt"), words[:MAX_WORDS])

    def _inspect(self, number: int, image: Path | None) -> tuple[Contents, list[_View]]:
        """Return the page's contents, and the pictures in which to recognise text. PDFium is free for other threads
        afterwards."""
        known = _PAGES.take(self._path, number)
        if known and not (boxes := self._worth_reading(known)):
            return known, []
        with self._document.page(number) as page:
            read = known or Contents.of(page, self._options)
            width, height = page.size
            if read.layer.usable:
                boxes = self._worth_reading(read)
            elif image is not None:
                whole = images.load_picture(image, 1, self._options.max_pixels)
                return read, [_View(whole, 0.0, 0.0, width / whole.width)]
            else:
                boxes = [] if page.is_bare else [(0.0, 0.0, width, height)]
            views = []
            for box in boxes:
                picture = page.render(self._options.dpi, self._options.max_pixels, box)
                views.append(_View(picture, box[0], box[1], (box[2] - box[0]) / picture.width))
            return read, views

    def _worth_reading(self, page: Contents) -> list[Box]:
        size = page.content.width, page.content.height
        return pictures.worth_reading(page.pictures, size, page.layer.lines) if self._options.pictures else []

    def _blocks(self, content: PageContent, layer: TextLayer, views: Sequence[_View], number: int) -> list[Block]:
        """Return the page's blocks; the layout model looks at the page if that may change them. Raises `UnitError` if
        the options require the model and it fails."""

        def picture() -> Image.Image:
            if views and not layer.usable:
                return views[0].picture  # of the whole page, which was recognised
            with self._document.page(number) as page:
                return page.sketch(_PICTURE_DPI, layout_model.PIXELS, self._options.page_s / _DRAWING_PARTS)

        if not layer.usable:
            return orientation.blocks(_with_seen_regions(content, picture, self._options), self._profile)
        page = layout.cleaned(content, self._profile)
        known = layout.profile_for(page, self._profile)
        choice = self._options.layout
        if choice == "model" or (choice == "auto" and wants_regions(page, known)):
            page = layout.cleaned(_with_seen_regions(content, picture, self._options), self._profile)
        return layout.blocks(page, known)

    def _text(self, layer: TextLayer, views: Sequence[_View], second: Path | None) -> recognition.Reading:
        readings = [self._read(view, None if layer.usable else second) for view in views]
        recognised = [line for reading in readings for line in reading.lines]
        if layer.usable:
            return recognition.Reading(layer.lines + pictures.new_lines(recognised, layer.lines), None)
        confidence = min((reading.confidence for reading in readings if reading.confidence is not None), default=None)
        # A poor text layer is better than none, and than scraps of a script that recognition does not know.
        characters = sum(len(line.text) for line in recognised)
        if characters > _POOR * layer.quality * layer.characters:
            rules = tuple(rule for reading in readings for rule in reading.rules)
            engines = tuple(dict.fromkeys(name for reading in readings for name in reading.engines))
            lean = readings[0].lean if readings else 0.0
            return recognition.Reading(recognised, confidence, lean, engines, rules)
        return recognition.Reading(layer.lines, layer.quality if layer.characters else confidence)

    def _read(self, view: _View, second: Path | None) -> recognition.Reading:
        """Return the text in the view, placed on the page; with `second`, improved by Tesseract's words. Logos repeat
        on every page, so recognise each picture once."""
        key = hashlib.blake2b(view.picture.tobytes(), digest_size=16).digest()
        if key not in self._recognised:
            self._recognised[key] = view.read(self._options.threads)
        self._recognised.move_to_end(key)
        if len(self._recognised) > _REMEMBERED_PICTURES:
            self._recognised.popitem(last=False)
        reading = self._recognised[key]
        reading = _doubted(tesseract_words.improved(reading, view.picture, second) if second else reading, view.picture)
        return reading._replace(
            lines=[view.placed(line) for line in reading.lines],
            rules=tuple(view.placed_rule(rule) for rule in reading.rules),
        )

    def _saved_pictures(self, number: int, folder: Path, boxes: Sequence[Box]) -> list[Picture]:
        """Write these parts of the page to `folder` as PNG; return their boxes and links."""
        with self._document.page(number) as page:
            rendered = [page.render(_PICTURE_DPI, self._options.max_pixels, box) for box in boxes]
        saved = []
        for place, (box, picture) in enumerate(zip(boxes, rendered, strict=True), 1):
            name = f"page-{number:04d}-{place}.png"
            images.save(picture, folder / name, "PNG")
            saved.append(Picture(box, f"{folder.name}/{name}"))
        return saved


class _PictureSource:
    """One picture file: a single page, or the frames of a TIFF."""

    def __init__(self, path: Path, options: Options) -> None:
        self._path = path
        self._options = options
        self._last: tuple[tuple[int, Path | None], recognition.Reading | None] = ((0, None), None)

    def convert(
        self,
        number: int,
        image: Path | None = None,
        picture_folder: Path | None = None,  # noqa: ARG002  # a picture contains no pictures
        second: Path | None = None,
    ) -> ConvertedPage:
        """Convert a frame of a picture file; the boxes of its blocks are in pixels."""
        picture = images.load_picture(image or self._path, 1 if image else number, self._options.max_pixels)
        last, read = self._last
        if read is None or last != (number, image):
            read = _View(picture, 0.0, 0.0, 1.0).read(self._options.threads)
            self._last = (number, image), read
        read = _doubted(tesseract_words.improved(read, picture, second) if second else read, picture)
        content = PageContent(picture.width, picture.height, tuple(read.lines), read.rules)
        content = _with_seen_regions(content, lambda: picture, self._options)
        blocks = _as_wanted(orientation.blocks(content, None), self._options)
        return _converted(content, blocks, number, "px", read, _recognised(blocks, read, content.height, whole=True))

    def render(self, number: int, folder: Path, rendition: Rendition, max_pixels: int) -> Path:
        picture = images.load_picture(self._path, number, max_pixels)
        width, height = picture.size
        scale = rendition.scale(width, height, max_pixels, is_drawn=False)
        size = rendition.fitted(max(1, round(width * scale)), max(1, round(height * scale)), max_pixels)
        picture = picture if picture.size == size else picture.resize(size)
        return images.save_page(picture, folder, number, rendition, (width, height, "px"))


def _doubted(reading: recognition.Reading, picture: Image.Image) -> recognition.Reading:
    """Return the reading; with no confidence at all if the picture is printed, but nothing in it looked like text. That
    holds for photographs, too: a blurred photograph of a page has the same tones."""
    if reading.confidence is not None or reading.lines:
        return reading
    across, down = (round(_EDGE * side) for side in picture.size)  # the shadows of a blank sheet
    inside = picture.crop((across, down, max(across + 1, picture.width - across), max(down + 1, picture.height - down)))
    return reading._replace(confidence=0.0) if images.is_printed(inside) else reading


def _with_seen_regions(content: PageContent, picture: Callable[[], Image.Image], options: Options) -> PageContent:
    """Return the page with the layout model's regions; unchanged without lines or if the model fails or the options
    exclude it. Raises `UnitError` instead if the options require the model and it fails."""
    if not content.lines or options.layout == "geometry":
        return content
    try:
        return replace(content, regions=layout_model.regions(picture(), content, options.threads))
    except UnitError:
        if options.layout == "model":
            raise
        return content


def _as_wanted(blocks: Sequence[Block], options: Options) -> list[Block]:
    """Return the blocks; furniture as paragraphs if the options keep headers."""
    if not options.keep_headers:
        return list(blocks)
    return [Paragraph(block.box, block.runs) if isinstance(block, Furniture) else block for block in blocks]


def _recognised(blocks: Sequence[Block], read: recognition.Reading, height: float, *, whole: bool) -> dict[str, Any]:
    """Return the recognised lines for the layout, in the order of the blocks that hold them; lines outside of blocks,
    such as headers, come first or last. `whole`: all text of the page was recognised, not only that of pictures."""
    lines = [line for line in read.lines if line.sure]
    if not lines and (read.lines or not whole):
        return {}  # the text layer says it all

    def key(line: Line) -> tuple[int, float]:
        around_it = [(area(block.box), place) for place, block in enumerate(blocks) if holds(block.box, line)]
        outside = len(blocks) if line.top > height / 2 else -1
        onwards = {90: -line.left, 180: -line.top, 270: line.left}.get(line.angle, 0.0)
        return min(around_it)[1] if around_it else outside, onwards

    return {
        "lines": [
            [line.text, *(round(side, 1) for side in line.box), line.angle, line.places]
            for line in sorted(lines, key=key)
        ],
        **({"lean": round(read.lean, 2)} if whole and read.lean else {}),
    }


def _converted(
    content: PageContent, blocks: list[Block], page: int, unit: str, read: recognition.Reading, facts: dict[str, Any]
) -> ConvertedPage:
    confidence = read.confidence
    shown = [block for block in blocks if not isinstance(block, Furniture)]
    uncertain = certainty.uncertain_share(shown)
    garbled = legibility.illegible(shown, read.lines)
    facts = {
        **facts,
        "width": round(content.width, 1),
        "height": round(content.height, 1),
        "unit": unit,
        "blocks": layout.as_dicts(blocks, page),
        **({} if confidence is None else {"confidence": round(confidence, 3)}),
        **({} if uncertain is None else {"uncertain": round(uncertain, 3), "engines": list(read.engines)}),
        **({"garbled": garbled} if garbled else {}),
    }
    return ConvertedPage(layout.render(blocks), facts)
