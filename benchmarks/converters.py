"""The converters that we compare. Each turns pages of a PDF, given by number from 1, into Markdown by number."""

import io
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import psutil
import pypdfium2

from benchmarks import rivals
from pipeline.providers import registry
from pipeline.providers.protocols import Answer, PageConverter, PageRef
from pipeline.settings import LOCAL, get_settings

Converter = Callable[[Path, Iterable[int]], dict[int, str]]

PENSTOCK, MARKITDOWN, PDFIUM, EMPTY = "penstock", "markitdown", "pdfium", "empty"
NAMES = (PENSTOCK, MARKITDOWN, PDFIUM, *rivals.VERSIONS, EMPTY)


def penstock(source: Path, numbers: Iterable[int], read: Callable[[Answer], object] = lambda _: None) -> dict[int, str]:
    """Convert with our local converter as the workers do: the survey of the split stage, then page by page."""
    return page_by_page(registry.page_converter(get_settings(), LOCAL), source, numbers, read)


class RecognitionClock:
    """Measures each recognised page, for `penstock`: the processor seconds of this process and all its children."""

    def __init__(self) -> None:
        self.pages_s: list[float] = []
        self._spent_s = _processor_s()

    def read(self, answer: Answer) -> None:
        spent_s = _processor_s()
        if answer.layout and "confidence" in answer.layout:
            self.pages_s.append(spent_s - self._spent_s)
        self._spent_s = spent_s


def _processor_s() -> float:
    spent_s = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            spent_s += times.user + times.system + times.children_user + times.children_system
    return spent_s


def page_by_page(
    converter: PageConverter, source: Path, numbers: Iterable[int], read: Callable[[Answer], object] = lambda _: None
) -> dict[int, str]:
    """`read` gets the answer for each page at once."""
    texts, wanted = {}, list(numbers)
    survey = converter.survey(source, wanted, lambda: None)
    with converter.open(source, survey) as reader:
        for number in wanted:
            answer = reader.convert(PageRef(source, number))
            texts[number] = answer.text
            read(answer)
    return texts


def pdfium(source: Path, numbers: Iterable[int]) -> dict[int, str]:
    """Return the text layer that PDFium extracts."""
    with pypdfium2.PdfDocument(source) as document:
        return {number: document[number - 1].get_textpage().get_text_range() for number in numbers}


def markitdown(source: Path, numbers: Iterable[int]) -> dict[int, str]:
    """Convert with Microsoft's converter, each page as a document, since markitdown does not separate pages."""
    from markitdown import MarkItDown, StreamInfo

    logging.getLogger("pdfminer").setLevel(logging.ERROR)
    converter = MarkItDown()
    texts = {}
    with pypdfium2.PdfDocument(source) as document:
        for number in numbers:
            stream = io.BytesIO()
            with pypdfium2.PdfDocument.new() as single:
                single.import_pages(document, [number - 1])
                single.save(stream)
            stream.seek(0)
            texts[number] = converter.convert_stream(stream, stream_info=StreamInfo(extension=".pdf")).markdown
    return texts


def empty(_source: Path, numbers: Iterable[int]) -> dict[int, str]:
    """Return empty texts: the assertions that they pass are worth nothing."""
    return dict.fromkeys(numbers, "")


def available() -> dict[str, Converter]:
    """Return the converters that are installed, by name; `markitdown` needs its extra for PDF."""
    converters: dict[str, Converter] = {PENSTOCK: penstock, PDFIUM: pdfium, EMPTY: empty}
    if all(map(find_spec, ("markitdown", "pdfminer", "pdfplumber"))):
        converters[MARKITDOWN] = partial(rivals.keep, f"markitdown-{version('markitdown')}", markitdown)
    installed = filter(rivals.is_installed, rivals.VERSIONS)
    return {**converters, **{name: partial(rivals.convert, name) for name in installed}}
