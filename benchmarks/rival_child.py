"""Converts pages with one rival, in the rival's own environment: `benchmarks.rivals` starts it.

`python -m benchmarks.rival_child NAME PDF OUTPUT [PAGE …]` writes a JSON list of [page, Markdown] to the file OUTPUT;
`python -m benchmarks.rival_child NAME PDF OUTPUT --rate` writes the pages a second on one core, for the whole PDF.

Every rival sees the whole document, keeps headers and footers out where it can, and recognises text only where that
works without a download.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

ROUNDS = 3
ROUNDS_S = 10.0
"""No further round begins after this time."""

Converter = Callable[[str, Sequence[int]], dict[int, str]]
"""Returns the Markdown of these pages, or of all pages if none are named."""


def pdf_inspector(pdf: str, numbers: Sequence[int]) -> dict[int, str]:
    library = import_module("pdf_inspector")
    found = library.extract_pages_markdown(pdf, [number - 1 for number in numbers] or None)
    return {page.page + 1: page.markdown for page in found.pages}


def pymupdf4llm(pdf: str, numbers: Sequence[int]) -> dict[int, str]:
    """With its layout model, and with Tesseract if that is installed."""
    library = import_module("pymupdf4llm")
    pages = [number - 1 for number in numbers] or None
    chunks = library.to_markdown(pdf, pages=pages, page_chunks=True, header=False, footer=False)
    return {chunk["metadata"]["page_number"]: chunk["text"] for chunk in chunks}


def liteparse(pdf: str, numbers: Sequence[int]) -> dict[int, str]:
    """Without recognition, for which it downloads data."""
    pages = ",".join(map(str, numbers)) or None
    library = import_module("liteparse")
    found = library.LiteParse(ocr_enabled=False, output_format="markdown", target_pages=pages, quiet=True).parse(pdf)
    return {page.page_num: page.markdown for page in found.pages}


def xberg(pdf: str, numbers: Sequence[int]) -> dict[int, str]:
    """Kreuzberg's successor. Without recognition, for which it downloads data. It converts all pages in any case."""
    library = import_module("xberg")
    config = library.ExtractionConfig(
        output_format="markdown",
        use_cache=False,
        disable_ocr=True,
        pages=library.PageConfig(extract_pages=True),
    )
    found = asyncio.run(library.extract(library.ExtractInput(uri=pdf, kind="uri"), config))
    pages = {page.page_number: page.content for page in found.results[0].pages}
    return {number: pages[number] for number in numbers or pages}


CONVERTERS: dict[str, Converter] = {
    "pdf-inspector": pdf_inspector,
    "pymupdf4llm": pymupdf4llm,
    "liteparse": liteparse,
    "xberg": xberg,
}


def rate(convert: Converter, pdf: str) -> float:
    """Return the pages a second of the best round."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    convert(pdf, [1])  # imports, models
    best, started = 0.0, time.perf_counter()
    for _ in range(ROUNDS):
        round_started = time.perf_counter()
        pages = len(convert(pdf, []))
        best = max(best, pages / (time.perf_counter() - round_started))
        if time.perf_counter() - started > ROUNDS_S:
            break
    return round(best, 1)


def main() -> None:
    name, pdf, output, *rest = sys.argv[1:]
    convert = CONVERTERS[name]
    result = rate(convert, pdf) if rest == ["--rate"] else list(convert(pdf, list(map(int, rest))).items())
    Path(output).write_text(json.dumps(result), "utf-8")


if __name__ == "__main__":
    main()
