"""The provider `local`: pages converted on this machine by `pipeline.reading`, for nothing."""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeline.providers.protocols import Answer, PageReader, PageRef
from pipeline.reading import conversion, ocr
from pipeline.settings import LOCAL, Settings


class LocalConverter:
    """A `PageConverter`. Cheap to make; holds no file and no engine."""

    name = LOCAL
    model = LOCAL
    needs_images = False
    paid = False

    def __init__(self, settings: Settings) -> None:
        chosen = settings.documents
        self._options = conversion.Options(
            dpi=chosen.ocr_dpi,
            pictures=chosen.ocr_pictures,
            max_pixels=min(chosen.max_pixels, ocr.pixels_at(chosen.ocr_dpi)),
            threads=ocr.threads_for(chosen.converter_count),
            page_s=chosen.page_timeout_s,
            keep_headers=chosen.keep_headers,
        )

    def survey(self, source: Path, pages: Sequence[int], tick: Callable[[], object]) -> str:
        """The document's profile as JSON; empty for pictures. Raises `UnitError` as `open` does."""
        return conversion.survey(source, pages, self._options, tick)

    @contextmanager
    def open(self, source: Path, survey: str = "") -> Iterator[PageReader]:
        """A reader over a PDF, PNG, JPEG, WebP or TIFF file. Raises `UnitError` as `conversion.open_source` does."""
        with conversion.open_source(source, self._options, survey) as pages:
            yield _LocalReader(pages)

    def cache_key(self, page: PageRef) -> tuple[str, str]:
        """(key, prompt hash), hex. The key changes with the file's size or modification time, not only with its
        content: reading a file to save a conversion that costs nothing would cost more than the conversion."""
        options = self._options
        facts = [
            LOCAL, str(page.number), str(options.dpi), str(options.pictures), str(options.max_pixels),
            str(options.keep_headers),
        ]  # fmt: skip
        for path in filter(None, (page.source, page.image)):
            status = path.stat()
            facts += [str(path.resolve()), str(status.st_size), str(status.st_mtime_ns)]
        return hashlib.sha256("\n".join(facts).encode()).hexdigest(), hashlib.sha256().hexdigest()


class _LocalReader:
    def __init__(self, pages: conversion.PageSource) -> None:
        self._pages = pages

    def convert(self, page: PageRef) -> Answer:
        """Markdown of one page, with its layout. Raises `UnitError`."""
        started = time.monotonic()
        found = self._pages.convert(page.number, page.image, page.pictures)
        took_ms = round((time.monotonic() - started) * 1000)
        return Answer(text=found.text, model=LOCAL, latency_ms=took_ms, layout=found.layout)
