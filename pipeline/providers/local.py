"""Pages to Markdown without any service: the text layer where it can be trusted, text recognition elsewhere."""

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.providers.protocols import Answer, PageReader, PageRef
from pipeline.reading import drawings, images, layout, ocr, pdfium, pictures, text_layer, upright
from pipeline.reading.filetype import detect_file
from pipeline.reading.layout import Block, DocumentProfile, Line, PageContent, PageFacts
from pipeline.reading.layout.model import Picture
from pipeline.reading.layout.placement import with_pictures
from pipeline.reading.text_layer import TextLayer
from pipeline.settings import LOCAL, Settings

_REMEMBERED_PICTURES = 32
_PICTURE_DPI = 150
_MAX_SAVED_PICTURES = 50
_MAX_SURVEYED = 1000
_STRETCH = 8
_POOR = 0.3
_TEXT_PARTS = 3  # of a page's time, one is for its text layer; recognition takes longer


class _Options(NamedTuple):
    """How pages are read. `pictures`: text is recognised on pages with a text layer too.

    What is not read from a text layer in `text_s` is recognised: a page of a hundred thousand single letters takes
    5 s, one of as many in lines 0.3 s, and to lay them out takes about as long again.
    """

    dpi: int
    pictures: bool
    max_pixels: int
    threads: int
    text_s: float
    keep_headers: bool


class LocalConverter:
    """Converts on this machine, for nothing. Cheap to make; holds no file and no engine."""

    name = LOCAL
    model = LOCAL
    needs_images = False
    paid = False

    def __init__(self, settings: Settings) -> None:
        chosen = settings.documents
        self._options = _Options(
            chosen.ocr_dpi,
            chosen.ocr_pictures,
            min(chosen.max_pixels, ocr.pixels_at(chosen.ocr_dpi)),
            ocr.threads_of(settings),
            chosen.page_timeout_s / _TEXT_PARTS,
            chosen.keep_headers,
        )

    def survey(self, source: Path, pages: Sequence[int], tick: Callable[[], object]) -> str:
        """The document's profile as JSON: what its text looks like, the ranks of its headings, what its pages repeat.

        Empty for pictures. Pages that are damaged are left out: they fail when their turn comes. Raises `UnitError` as
        `open` does."""
        if _type_of(source) != "pdf":
            return ""
        with pdfium.open_document(source) as document:
            facts = _PdfReader(document, self._options, None).facts(surveyed(pages, document.pages), tick)
            return json.dumps(layout.document_profile(facts).to_dict())

    @contextmanager
    def open(self, source: Path, survey: str = "") -> Iterator[PageReader]:
        """A reader over a PDF, PNG, JPEG, WebP or TIFF file, told apart by content.

        Raises `UnitError`, permanent, with code `missing`, `unreadable`, `unsupported`, `encrypted`,
        `no_pages` or `corrupt`.
        """
        if _type_of(source) == "pdf":
            with pdfium.open_document(source) as document:
                profile = DocumentProfile.from_dict(json.loads(survey)) if survey else None
                yield _PdfReader(document, self._options, profile)
        else:
            yield _PictureReader(self._options)

    def cache_key(self, page: PageRef) -> tuple[str, str]:
        """(key, prompt hash), hex. The key changes with the file's size or time of change, not with its content alone:
        reading a file to save a conversion that costs nothing would cost more than the conversion."""
        facts = [LOCAL, str(page.number), *map(str, self._options[:3]), str(self._options.keep_headers)]
        for path in filter(None, (page.source, page.image)):
            status = path.stat()
            facts += [str(path.resolve()), str(status.st_size), str(status.st_mtime_ns)]
        return _digest("\n".join(facts)), _digest("")


class _View(NamedTuple):
    """A picture of a page or a part of it; `left` and `top` place it on the page, `scale` is page units per pixel."""

    picture: Image.Image
    left: float
    top: float
    scale: float

    def lines(self, threads: int) -> list[Line]:
        """The text in the picture, in its pixels."""
        return [] if images.is_blank(self.picture) else ocr.recognise(self.picture, threads)

    def placed(self, line: Line) -> Line:
        """A line in pixels of the picture as one on the page."""
        line = upright.scaled(line, self.scale)
        return line._replace(
            left=self.left + line.left,
            top=self.top + line.top,
            right=self.left + line.right,
            bottom=self.top + line.bottom,
        )


class _PdfReader:
    """Pages of one open PDF."""

    def __init__(self, document: pdfium.Document, options: _Options, profile: DocumentProfile | None) -> None:
        self._document = document
        self._options = options
        self._profile = profile
        self._seen: OrderedDict[bytes, list[Line]] = OrderedDict()

    def convert(self, page: PageRef) -> Answer:
        """The boxes of its blocks are in points."""
        started = time.monotonic()
        layer, views, content = self._look(page)
        content = replace(content, lines=tuple(self._lines(layer, views)))
        make = layout.convert if layer.usable else upright.blocks
        blocks = make(content, self._profile, keep_furniture=self._options.keep_headers)
        if page.pictures is not None:
            blocks = with_pictures(blocks, self._saved_pictures(page.number, page.pictures))
        return _answer(content, blocks, page.number, "pt", started)

    def _saved_pictures(self, number: int, folder: Path) -> list[Picture]:
        """The page's pictures, written to `folder`."""
        with self._document.page(number) as opened:
            boxes = pictures.worth_keeping(opened)[:_MAX_SAVED_PICTURES]
            rendered = [opened.render(_PICTURE_DPI, self._options.max_pixels, box) for box in boxes]
        found = []
        for place, (box, picture) in enumerate(zip(boxes, rendered, strict=True), 1):
            name = f"page-{number:04d}-{place}.png"
            images.save_png(picture, folder / name)
            found.append(Picture(box, f"{folder.name}/{name}"))
        return found

    def facts(self, numbers: Sequence[int], tick: Callable[[], object]) -> Iterator[PageFacts]:
        """What the document's profile needs to know of pages; of those that are reached within a page's time."""
        ends = time.monotonic() + _TEXT_PARTS * self._options.text_s
        for number in numbers:
            tick()
            if time.monotonic() > ends:
                return
            with suppress(UnitError):
                yield self._facts(number)

    def _facts(self, number: int) -> PageFacts:
        """Text in pictures is left out."""
        with self._document.page(number) as opened:
            layer = text_layer.read(opened, time.monotonic() + self._options.text_s)
            width, height = opened.size
        return layout.page_facts(PageContent(width, height, tuple(layer.lines if layer.usable else ())))

    def _look(self, page: PageRef) -> tuple[TextLayer, list[_View], PageContent]:
        """The page's text layer, pictures of what is not in it, and what is drawn. PDFium is free again afterwards."""
        with self._document.page(page.number) as opened:
            layer = text_layer.read(opened, time.monotonic() + self._options.text_s)
            width, height = opened.size
            drawn = drawings.read(opened)
            content = PageContent(width, height, (), tuple(drawn.rules), tuple(drawn.fills))
            if layer.usable:
                boxes = pictures.worth_reading(opened, layer.lines) if self._options.pictures else []
            else:
                boxes = [] if opened.is_bare else [(0.0, 0.0, width, height)]
            if not layer.usable and page.image is not None:
                whole = images.load_picture(page.image, 1, self._options.max_pixels)
                return layer, [_View(whole, 0.0, 0.0, width / whole.width)], content
            return layer, [self._render(opened, box) for box in boxes], content

    def _render(self, page: pdfium.Page, box: pdfium.Box) -> _View:
        picture = page.render(self._options.dpi, self._options.max_pixels, box)
        return _View(picture, box[0], box[1], (box[2] - box[0]) / picture.width)

    def _lines(self, layer: TextLayer, views: Sequence[_View]) -> list[Line]:
        seen = [line for view in views for line in self._read(view)]
        if layer.usable:
            return layer.lines + pictures.new_lines(seen, layer.lines)
        # A poor text layer is better than nothing, and than a few signs in a script that recognition does not know.
        recognised = sum(len(line.text) for line in seen)
        return seen if recognised > _POOR * layer.quality * layer.characters else layer.lines

    def _read(self, view: _View) -> list[Line]:
        """The text in the view, placed on the page. Logos and headers come on every page: they are recognised once."""
        key = hashlib.blake2b(view.picture.tobytes(), digest_size=16).digest()
        if key not in self._seen:
            self._seen[key] = view.lines(self._options.threads)
        self._seen.move_to_end(key)
        if len(self._seen) > _REMEMBERED_PICTURES:
            self._seen.popitem(last=False)
        return [view.placed(line) for line in self._seen[key]]


class _PictureReader:
    """Pages of one picture file: its only one, or the frames of a TIFF."""

    def __init__(self, options: _Options) -> None:
        self._options = options

    def convert(self, page: PageRef) -> Answer:
        """The boxes of its blocks are in pixels."""
        started = time.monotonic()
        path, number = (page.image, 1) if page.image else (page.source, page.number)
        picture = images.load_picture(path, number, self._options.max_pixels)
        lines = _View(picture, 0.0, 0.0, 1.0).lines(self._options.threads)
        content = PageContent(picture.width, picture.height, tuple(lines))
        blocks = upright.blocks(content, None, keep_furniture=self._options.keep_headers)
        return _answer(content, blocks, page.number, "px", started)


def _type_of(source: Path) -> str:
    try:
        found = detect_file(source)
    except FileNotFoundError as error:
        raise UnitError(f"{source} does not exist.", kind=ErrorKind.PERMANENT, code="missing") from error
    except OSError as error:
        raise UnitError(
            f"{source.name} cannot be read: {error}", kind=ErrorKind.PERMANENT, code="unreadable"
        ) from error
    if found is None:
        raise UnitError(
            f"{source.name} is no PDF, PNG, JPEG, WebP or TIFF file.", kind=ErrorKind.PERMANENT, code="unsupported"
        )
    return found


def surveyed(wanted: Sequence[int], pages: int) -> list[int]:
    """Pages that are looked at for a document's profile: those that are wanted and their neighbours, which show what is
    repeated; of very many, stretches over the whole document."""
    near = sorted({page for number in wanted for page in range(number - 2, number + 3) if 1 <= page <= pages})
    if len(near) <= _MAX_SURVEYED:
        return near
    stretches = _MAX_SURVEYED // _STRETCH
    starts = (len(near) * stretch // stretches for stretch in range(stretches))
    return [page for start in starts for page in near[start : start + _STRETCH]]


def _answer(content: PageContent, blocks: list[Block], page: int, unit: str, started: float) -> Answer:
    found = {
        "width": round(content.width, 1), "height": round(content.height, 1), "unit": unit,
        "blocks": layout.as_dicts(blocks, page),
    }  # fmt: skip
    text, took_ms = layout.render(blocks), round((time.monotonic() - started) * 1000)
    return Answer(text=text, model=LOCAL, latency_ms=took_ms, layout=found)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
