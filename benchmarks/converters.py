"""What is compared: each converter turns pages of a PDF, given by number from 1, into Markdown by number."""

import io
import logging
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

import pypdfium2

from pipeline.providers import registry
from pipeline.providers.protocols import PageConverter, PageRef
from pipeline.settings import LOCAL, get_settings

Converter = Callable[[Path, Iterable[int]], dict[int, str]]

PENSTOCK, MARKITDOWN, PDFIUM, EMPTY = "penstock", "markitdown", "pdfium", "empty"


def penstock(source: Path, numbers: Iterable[int]) -> dict[int, str]:
    """Our local converter, as the workers call it: the survey of the split stage, then page by page."""
    return page_by_page(registry.page_converter(get_settings(), LOCAL), source, numbers)


def page_by_page(converter: PageConverter, source: Path, numbers: Iterable[int]) -> dict[int, str]:
    wanted = list(numbers)
    survey = converter.survey(source, wanted, lambda: None)
    with converter.open(source, survey) as reader:
        return {number: reader.convert(PageRef(source, number)).text for number in wanted}


def pdfium(source: Path, numbers: Iterable[int]) -> dict[int, str]:
    """The text layer as PDFium gives it."""
    with pypdfium2.PdfDocument(source) as document:
        return {number: document[number - 1].get_textpage().get_text_range() for number in numbers}


def markitdown(source: Path, numbers: Iterable[int]) -> dict[int, str]:
    """Microsoft's converter; each page is a document of its own, since it does not tell pages apart."""
    from markitdown import MarkItDown, StreamInfo

    logging.getLogger("pdfminer").setLevel(logging.ERROR)
    converter = MarkItDown()
    found = {}
    with pypdfium2.PdfDocument(source) as document:
        for number in numbers:
            stream = io.BytesIO()
            with pypdfium2.PdfDocument.new() as single:
                single.import_pages(document, [number - 1])
                single.save(stream)
            stream.seek(0)
            found[number] = converter.convert_stream(stream, stream_info=StreamInfo(extension=".pdf")).markdown
    return found


def empty(_source: Path, numbers: Iterable[int]) -> dict[int, str]:
    """Nothing at all: what it passes costs nothing."""
    return dict.fromkeys(numbers, "")


def available() -> dict[str, Converter]:
    """The converters by name; `markitdown` is left out where it or its part for PDF is not installed."""
    found: dict[str, Converter] = {PENSTOCK: penstock, MARKITDOWN: markitdown, PDFIUM: pdfium, EMPTY: empty}
    if not all(map(find_spec, ("markitdown", "pdfminer", "pdfplumber"))):
        del found[MARKITDOWN]
    return found
