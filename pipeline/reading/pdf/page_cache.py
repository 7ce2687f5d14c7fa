"""Keep the pages that a process reads to survey a document, so that their conversion need not read them again."""

import pickle
import time
from itertools import repeat
from pathlib import Path
from typing import NamedTuple, Self

from pipeline.reading.layout.model import Line, PageContent, Span
from pipeline.reading.pdf import drawings, text_layer, underscores
from pipeline.reading.pdf.pages import Options
from pipeline.reading.pdf.pdfium import Page
from pipeline.reading.pdf.pictures import Found
from pipeline.reading.pdf.text_layer import TextLayer

TEXT_PARTS = 3
"""One part of a page's time reads its text layer; recognition takes longer."""

_MAX_BYTES = 10_000_000
"""Some 400 pages of text."""
_SPANS = Line._fields.index("spans")


class Contents(NamedTuple):
    """The text layer of a page, its size and drawings without lines, and its pictures."""

    layer: TextLayer
    content: PageContent
    pictures: list[Found]

    @classmethod
    def of(cls, page: Page, options: Options) -> Self:
        layer = text_layer.read(page, time.monotonic() + options.page_s / TEXT_PARTS)
        drawn = drawings.read(page)
        if drawn.dashes:
            layer = layer._replace(lines=underscores.written(layer.lines, drawn.dashes))
        shapes, images = tuple(drawn.shapes), tuple(drawn.images)
        rules, fills = tuple(drawn.rules), tuple(drawn.fills)
        content = PageContent(*page.size, (), rules, fills, shapes=shapes, images=images, is_first=page.number == 1)
        return cls(layer, content, drawn.pictures)


class PageCache:
    """Keeps the first pages of one file, each until it is taken. Packed, a page needs a fifth of the memory."""

    def __init__(self) -> None:
        self._file: tuple[Path, int, int, int] | None = None
        self._pages: dict[int, bytes] = {}
        self._bytes = 0

    def start(self, source: Path) -> None:
        """Drop all pages, and prepare to keep pages of this file. A later change of the file makes them void."""
        self._file, self._pages, self._bytes = _identity(source), {}, 0

    def keep(self, number: int, contents: Contents) -> None:
        """Keep the page unless the cache is full or the page has no text layer that will be used."""
        if contents.layer.usable and self._bytes < _MAX_BYTES:
            self._pages[number] = _packed(contents)
            self._bytes += len(self._pages[number])

    def take(self, source: Path, number: int) -> Contents | None:
        """Return the page with this number; None if it is not kept or the file is another one."""
        if self._file is None or self._file != _identity(source):
            return None
        kept = self._pages.pop(number, None)
        return None if kept is None else _unpacked(kept)


def _identity(source: Path) -> tuple[Path, int, int, int] | None:
    try:
        facts = source.stat()
    except OSError:
        return None
    return source, facts.st_ino, facts.st_size, facts.st_mtime_ns


def _packed(contents: Contents) -> bytes:
    """Pickle a page with its lines and words as plain tuples, since named ones take four times as long."""
    (lines, *rest), content, pictures = contents
    plain = [(line[:_SPANS], [tuple(span) for span in line.spans], line[_SPANS + 1 :]) for line in lines]
    return pickle.dumps((plain, rest, content, pictures), pickle.HIGHEST_PROTOCOL)


def _unpacked(packed: bytes) -> Contents:
    plain, rest, content, pictures = pickle.loads(packed)  # noqa: S301  (this process pickled it)
    new = tuple.__new__  # Half the time of a named tuple's own constructor.
    lines = [new(Line, (*before, tuple(map(new, repeat(Span), words)), *after)) for before, words, after in plain]
    return Contents(TextLayer(lines, *rest), content, pictures)
