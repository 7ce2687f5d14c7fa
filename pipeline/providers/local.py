"""The provider `local`: convert pages on this machine, free of charge, in child processes of `pipeline.reading`."""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeline.providers.protocols import Answer, PageReader, PageRef
from pipeline.reading.ocr import recognition, second_opinion
from pipeline.reading.pdf import conversion
from pipeline.reading.pdf.pages import Options, Pages
from pipeline.reading.sandbox.limits import page_limits, refused
from pipeline.reading.text import units
from pipeline.settings import LOCAL, Settings


class LocalConverter:
    """A `PageConverter`. Cheap to create; holds no file and no engine."""

    name = LOCAL
    model = LOCAL
    needs_images = False
    paid = False

    def __init__(self, settings: Settings) -> None:
        chosen = settings.documents
        self._options = Options(
            dpi=chosen.ocr_dpi,
            pictures=chosen.ocr_pictures,
            max_pixels=min(chosen.max_pixels, recognition.pixels_at(chosen.ocr_dpi)),
            threads=recognition.threads_for(chosen.converter_count),
            page_s=chosen.page_timeout_s,
            keep_headers=chosen.keep_headers,
            layout=settings.reading.layout,
            second_opinion=settings.reading.second_opinion == "auto" and second_opinion.installed() is not None,
        )
        # Files left here by a killed worker are removed with other remains of documents.
        self._scratch = settings.temp_dir
        self._limits = page_limits(chosen.page_timeout_s, chosen.reader_memory_mb, self._options.threads)

    def survey(self, source: Path, pages: Sequence[int], tick: Callable[[], object]) -> str:
        """Return the document's profile as JSON, for `open`; empty for pictures. Calls `tick` twice a second. Raises
        `UnitError`."""
        with Pages(source, self._limits, self._options, scratch=self._scratch) as opened:
            return opened.survey(pages, tick)

    @contextmanager
    def open(self, source: Path, survey: str = "") -> Iterator[PageReader]:
        """Yield a reader over a file of any type; the suffix tells one that holds its text. For others, only the first
        `convert` takes a child process, which opens the file; leaving the block returns the child."""
        if units.holds_text(source):
            yield _TextReader(source, survey)
            return
        with Pages(source, self._limits, self._options, survey, self._scratch) as pages:
            yield _LocalReader(pages)

    def cache_key(self, page: PageRef) -> tuple[str, str]:
        """Return (key, prompt hash), hex. The key depends on the paths, sizes and modification times of the page's
        files, not on their content: hashing a file would cost more than the free conversion that it saves. Raises
        `OSError`."""
        options = self._options
        facts = [
            LOCAL,
            str(conversion.REVISION),
            str(units.REVISION),
            str(page.number),
            str(options.dpi),
            str(options.pictures),
            str(options.max_pixels),
            str(options.keep_headers),
            options.layout,
            str(second_opinion.installed() if options.second_opinion else None),
        ]
        for path in filter(None, (page.source, page.image)):
            status = path.stat()
            facts += [str(path.resolve()), str(status.st_size), str(status.st_mtime_ns)]
        return hashlib.sha256("\n".join(facts).encode()).hexdigest(), hashlib.sha256().hexdigest()


class _LocalReader:
    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def convert(self, page: PageRef) -> Answer:
        """Return the Markdown of one page, with its layout, from the child process. Raises `UnitError`, also for a page
        that takes too long or too much memory."""
        started = time.monotonic()
        page_read = self._pages.convert(page.number, page.image, page.pictures)
        took_ms = round((time.monotonic() - started) * 1000)
        return Answer(text=page_read.text, model=LOCAL, latency_ms=took_ms, layout=page_read.layout)


class _TextReader:
    """Reads the pages of a file that holds its text, from its survey."""

    def __init__(self, source: Path, survey: str) -> None:
        self._pages = units.pages_in(survey) or units.pages_in(units.read(source, lambda: True))

    def convert(self, page: PageRef) -> Answer:
        """Return the Markdown of one page. Raises `UnitError`."""
        if not 1 <= page.number <= len(self._pages):
            raise refused(f"The file has no page {page.number}.", "no_page")
        return Answer(text=self._pages[page.number - 1], model=LOCAL)
