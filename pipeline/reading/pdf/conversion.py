"""Pages as Markdown without any service: from the text layer where it can be trusted, else by text recognition."""

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from PIL import Image

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.reading.files.filetype import detect_file
from pipeline.reading.layout import certainty, legibility
from pipeline.reading.layout import page as layout
from pipeline.reading.layout.assembly import with_pictures
from pipeline.reading.layout.doubt import wants_regions
from pipeline.reading.layout.model import Picture, Rule
from pipeline.reading.layout.page import Block, DocumentProfile, Line, PageContent, PageFacts
from pipeline.reading.ocr import images, inks, layout_model, orientation, pixel_rules, recognition, tesseract_words
from pipeline.reading.ocr.combination import combined
from pipeline.reading.pdf import drawings, pdfium, pictures, text_layer
from pipeline.reading.pdf.pages import ConvertedPage, Options
from pipeline.reading.pdf.text_layer import TextLayer

REVISION = 3
"""To be raised by every version that makes something else of a page: results of an earlier one are then made anew."""

_REMEMBERED_PICTURES = 32
_PICTURE_DPI = 150
_MAX_SAVED_PICTURES = 50
_MAX_SURVEYED = 1000
_STRETCH = 8
_POOR = 0.3
_DRAWING_PARTS = 12  # One is for drawing the page for the layout model.
_TEXT_PARTS = 3  # One part of a page's time is for its text layer; recognition takes longer.


class PageSource(Protocol):
    """The pages of one open file."""

    def convert(
        self, number: int, image: Path | None = None, picture_folder: Path | None = None, second: Path | None = None
    ) -> ConvertedPage:
        """Page `number` (from 1). `image`: its picture, if one was rendered; `picture_folder`: where to save the
        pictures that stand on the page, if at all; `second`: a folder for `tesseract_words.improved`. Raises
        `UnitError`."""

    def render(self, number: int, folder: Path, dpi: float, max_pixels: int) -> Path:
        """A picture of page `number` (from 1) for a model to look at, as an RGB file `page-0001.jpg` or `.png`.

        Never half written. Pages of PDFs are rendered at `dpi` dots per inch, or less to have at most `max_pixels`
        pixels; picture files only shrink to that. Raises `UnitError`."""


def survey(source: Path, pages: Sequence[int], options: Options, tick: Callable[[], object]) -> str:
    """The document's profile as JSON: what its text looks like, the ranks of its headings, what its pages repeat.

    Empty for pictures. Leaves out damaged pages: they fail when their turn comes. Calls `tick` before each page. Raises
    `UnitError` as `open_source` does."""
    if _type_of(source) != "pdf":
        return ""
    with pdfium.open_document(source) as document:
        facts = _facts(document, surveyed(pages, document.pages), options, tick)
        return json.dumps(layout.document_profile(facts).to_dict())


def surveyed(wanted: Sequence[int], pages: int) -> list[int]:
    """The pages to look at for a document's profile: the wanted ones and their neighbours, which show what is repeated;
    of very many, stretches over the whole document."""
    near = sorted({page for number in wanted for page in range(number - 2, number + 3) if 1 <= page <= pages})
    if len(near) <= _MAX_SURVEYED:
        return near
    stretches = _MAX_SURVEYED // _STRETCH
    starts = (len(near) * stretch // stretches for stretch in range(stretches))
    return [page for start in starts for page in near[start : start + _STRETCH]]


def _facts(
    document: pdfium.Document, numbers: Sequence[int], options: Options, tick: Callable[[], object]
) -> Iterator[PageFacts]:
    """What the profile needs from the pages that are reached within one page's time; text in pictures is left out."""
    ends = time.monotonic() + options.page_s
    for number in numbers:
        tick()
        if time.monotonic() > ends:
            return
        with suppress(UnitError):
            with document.page(number) as page:
                layer = text_layer.read(page, time.monotonic() + options.page_s / _TEXT_PARTS)
                width, height = page.size
            yield layout.page_facts(PageContent(width, height, tuple(layer.lines if layer.usable else ())))


@contextmanager
def open_source(source: Path, options: Options, survey: str = "") -> Iterator[PageSource]:
    """The pages of a PDF, PNG, JPEG, WebP or TIFF file, told apart by content. `survey`: what `survey` returned.

    Raises `UnitError`, permanent, with code `missing`, `unreadable`, `unsupported`, `encrypted`, `no_pages` or
    `corrupt`.
    """
    if _type_of(source) == "pdf":
        with pdfium.open_document(source) as document:
            profile = DocumentProfile.from_dict(json.loads(survey)) if survey else None
            yield _PdfSource(document, options, profile)
    else:
        yield _PictureSource(source, options)


def _type_of(source: Path) -> str:
    try:
        found = detect_file(source)
    except FileNotFoundError as error:
        raise UnitError(f"{source} does not exist.", kind=ErrorKind.PERMANENT, code="missing") from error
    except OSError as error:
        message = f"{source.name} cannot be read: {error}"
        raise UnitError(message, kind=ErrorKind.PERMANENT, code="unreadable") from error
    if found is None:
        message = f"{source.name} is not a PDF, PNG, JPEG, WebP or TIFF file."
        raise UnitError(message, kind=ErrorKind.PERMANENT, code="unsupported")
    return found


class _View(NamedTuple):
    """A picture of a page or a part of it; `left` and `top` place it on the page, `scale` is page units per pixel."""

    picture: Image.Image
    left: float
    top: float
    scale: float

    def read(self, threads: int) -> recognition.Reading:
        """The text and the rules in the picture, in its pixels; where a stamp may be over the text, as it is without
        colours, too."""
        if images.is_blank(self.picture):
            return recognition.Reading([], None)
        found = recognition.read(self.picture, threads)
        if found.is_unsure and inks.has_colour(self.picture):
            black = recognition.read(inks.black_only(self.picture), threads)
            sure = max((share for share in (found.confidence, black.confidence) if share is not None), default=None)
            found = found._replace(lines=combined(found.lines, black.lines), confidence=sure)
        return found._replace(rules=tuple(pixel_rules.find(self.picture, found.lines, found.lean)))

    def placed(self, line: Line) -> Line:
        """A line in pixels of the picture as one on the page."""
        line = orientation.scaled(line, self.scale)
        return line._replace(
            left=self.left + line.left,
            top=self.top + line.top,
            right=self.left + line.right,
            bottom=self.top + line.bottom,
        )

    def placed_rule(self, rule: Rule) -> Rule:
        """A rule in pixels of the picture as one on the page."""
        left, top, right, bottom = (self.scale * value for value in rule)
        return Rule(self.left + left, self.top + top, self.left + right, self.top + bottom)


class _PdfSource:
    def __init__(self, document: pdfium.Document, options: Options, profile: DocumentProfile | None) -> None:
        self._document = document
        self._options = options
        self._profile = profile
        self._recognised: OrderedDict[bytes, recognition.Reading] = OrderedDict()

    def convert(
        self, number: int, image: Path | None = None, picture_folder: Path | None = None, second: Path | None = None
    ) -> ConvertedPage:
        """The boxes of its blocks are in points."""
        layer, views, content = self._look(number, image)
        read = self._text(layer, views, second)
        content = replace(content, lines=tuple(read.lines), rules=content.rules + read.rules)
        content = self._with_regions(content, layer, views, number)
        blocks_of = layout.convert if layer.usable else orientation.blocks
        blocks = blocks_of(content, self._profile, keep_furniture=self._options.keep_headers)
        if picture_folder is not None:
            blocks = with_pictures(blocks, self._saved_pictures(number, picture_folder))
        return _converted(content, blocks, number, "pt", read)

    def render(self, number: int, folder: Path, dpi: float, max_pixels: int) -> Path:
        with self._document.page(number) as page:
            picture = page.render(dpi, max_pixels)
        return images.save_page(picture, folder, number)

    def _look(self, number: int, image: Path | None) -> tuple[TextLayer, list[_View], PageContent]:
        """The page's text layer, pictures of what is not in it, and what is drawn. PDFium is free again afterwards."""
        with self._document.page(number) as page:
            layer = text_layer.read(page, time.monotonic() + self._options.page_s / _TEXT_PARTS)
            width, height = page.size
            drawn = drawings.read(page)
            content = PageContent(width, height, (), tuple(drawn.rules), tuple(drawn.fills))
            content = replace(content, shapes=tuple(drawn.shapes), images=tuple(drawn.images))
            if layer.usable:
                boxes = pictures.worth_reading(page, layer.lines) if self._options.pictures else []
            elif image is not None:
                whole = images.load_picture(image, 1, self._options.max_pixels)
                return layer, [_View(whole, 0.0, 0.0, width / whole.width)], content
            else:
                boxes = [] if page.is_bare else [(0.0, 0.0, width, height)]
            views = []
            for box in boxes:
                picture = page.render(self._options.dpi, self._options.max_pixels, box)
                views.append(_View(picture, box[0], box[1], (box[2] - box[0]) / picture.width))
            return layer, views, content

    def _with_regions(self, content: PageContent, layer: TextLayer, views: Sequence[_View], number: int) -> PageContent:
        """The page with what the layout model sees on it, if it is to be asked."""
        if not content.lines or not _is_asked(content, self._profile, self._options, recognised=not layer.usable):
            return content

        def picture() -> Image.Image:
            if views and not layer.usable:
                return views[0].picture  # of the whole page, which was recognised
            with self._document.page(number) as page:
                return page.sketch(_PICTURE_DPI, layout_model.PIXELS, self._options.page_s / _DRAWING_PARTS)

        return _seen(content, picture, self._options)

    def _text(self, layer: TextLayer, views: Sequence[_View], second: Path | None) -> recognition.Reading:
        readings = [self._read(view, None if layer.usable else second) for view in views]
        recognised = [line for reading in readings for line in reading.lines]
        if layer.usable:
            return recognition.Reading(layer.lines + pictures.new_lines(recognised, layer.lines), None)
        confidence = min((one.confidence for one in readings if one.confidence is not None), default=None)
        # A poor text layer is better than nothing, and than a little of a script that recognition does not know.
        characters = sum(len(line.text) for line in recognised)
        if characters > _POOR * layer.quality * layer.characters:
            rules = tuple(rule for one in readings for rule in one.rules)
            engines = tuple(dict.fromkeys(name for one in readings for name in one.engines))
            return recognition.Reading(recognised, confidence, rules=rules, engines=engines)
        return recognition.Reading(layer.lines, layer.quality if layer.characters else confidence)

    def _read(self, view: _View, second: Path | None) -> recognition.Reading:
        """The text in the view, placed on the page. Logos and headers are on every page, so recognise them once."""
        key = hashlib.blake2b(view.picture.tobytes(), digest_size=16).digest()
        if key not in self._recognised:
            self._recognised[key] = view.read(self._options.threads)
        self._recognised.move_to_end(key)
        if len(self._recognised) > _REMEMBERED_PICTURES:
            self._recognised.popitem(last=False)
        found = self._recognised[key]
        found = tesseract_words.improved(found, view.picture, second) if second else found
        return found._replace(
            lines=[view.placed(line) for line in found.lines],
            rules=tuple(view.placed_rule(rule) for rule in found.rules),
        )

    def _saved_pictures(self, number: int, folder: Path) -> list[Picture]:
        """The page's pictures, written to `folder`."""
        with self._document.page(number) as page:
            boxes = pictures.worth_keeping(page)[:_MAX_SAVED_PICTURES]
            rendered = [page.render(_PICTURE_DPI, self._options.max_pixels, box) for box in boxes]
        found = []
        for place, (box, picture) in enumerate(zip(boxes, rendered, strict=True), 1):
            name = f"page-{number:04d}-{place}.png"
            images.save(picture, folder / name, "PNG")
            found.append(Picture(box, f"{folder.name}/{name}"))
        return found


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
        picture_folder: Path | None = None,  # noqa: ARG002  # a picture holds none
        second: Path | None = None,
    ) -> ConvertedPage:
        """The boxes of its blocks are in pixels."""
        picture = images.load_picture(image or self._path, 1 if image else number, self._options.max_pixels)
        last, read = self._last
        if read is None or last != (number, image):
            read = _View(picture, 0.0, 0.0, 1.0).read(self._options.threads)
            self._last = (number, image), read
        read = tesseract_words.improved(read, picture, second) if second else read
        content = PageContent(picture.width, picture.height, tuple(read.lines), read.rules)
        if read.lines and _is_asked(content, None, self._options, recognised=True):
            content = _seen(content, lambda: picture, self._options)
        blocks = orientation.blocks(content, None, keep_furniture=self._options.keep_headers)
        return _converted(content, blocks, number, "px", read)

    def render(self, number: int, folder: Path, dpi: float, max_pixels: int) -> Path:  # noqa: ARG002  # it has pixels
        return images.save_page(images.load_picture(self._path, number, max_pixels), folder, number)


def _is_asked(content: PageContent, profile: DocumentProfile | None, options: Options, *, recognised: bool) -> bool:
    """Whether the layout model is to look at the page."""
    if options.layout == "auto" and not recognised:
        content = layout.cleaned(content, profile)
        return wants_regions(content, layout.profile_for(content, profile))
    return options.layout != "geometry"


def _seen(content: PageContent, picture: Callable[[], Image.Image], options: Options) -> PageContent:
    """The page with what the layout model sees on its picture. Raises `UnitError` if it must and cannot look."""
    try:
        return replace(content, regions=layout_model.regions(picture(), content, options.threads))
    except UnitError:
        if options.layout == "model":
            raise
        return content


def _converted(
    content: PageContent, blocks: list[Block], page: int, unit: str, read: recognition.Reading
) -> ConvertedPage:
    confidence = read.confidence
    uncertain = certainty.uncertain_share(blocks)
    garbled = legibility.illegible(blocks, read.lines)
    found = {
        "width": round(content.width, 1),
        "height": round(content.height, 1),
        "unit": unit,
        "blocks": layout.as_dicts(blocks, page),
        **({} if confidence is None else {"confidence": round(confidence, 3)}),
        **({} if uncertain is None else {"uncertain": round(uncertain, 3), "engines": list(read.engines)}),
        **({"garbled": garbled} if garbled else {}),
    }
    return ConvertedPage(layout.render(blocks), found)
