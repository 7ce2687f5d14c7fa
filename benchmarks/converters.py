"""The converters that we compare. Each turns pages of a PDF, given by number from 1, into Markdown by number."""

import io
import logging
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pypdfium2

from benchmarks import rivals
from pipeline.providers import registry
from pipeline.providers.protocols import PageConverter, PageRef
from pipeline.settings import LOCAL, get_settings

Converter = Callable[[Path, Iterable[int]], dict[int, str]]

PENSTOCK, MARKITDOWN, PDFIUM, EMPTY = "penstock", "markitdown", "pdfium", "empty"
NAMES = (PENSTOCK, MARKITDOWN, PDFIUM, *rivals.VERSIONS, EMPTY)


def penstock(source: Path, numbers: Iterable[int]) -> dict[int, str]:
    """Convert with our local converter as the workers do: the survey of the split stage, then page by page."""
    return page_by_page(registry.page_converter(get_settings(), LOCAL), source, numbers)


def page_by_page(converter: PageConverter, source: Path, numbers: Iterable[int]) -> dict[int, str]:
    wanted = list(numbers)
    survey = converter.survey(source, wanted, lambda: None)
    with converter.open(source, survey) as reader:
        return {number: reader.convert(PageRef(source, number)).text for number in wanted}


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
