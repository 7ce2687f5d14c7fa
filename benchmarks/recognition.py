"""Processor seconds of recognised pages by stage: `python -m benchmarks.recognition [--only NAME …]`.

Converts the scans of the corpus and of the unseen set in this process, with one thread, and prints a row for each page
of the corpus, and the median and the range of all. Shows no text of the unseen set. The last line is one JSON object.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from benchmarks import unseen
from benchmarks.support import CORPUS, ROOT, BenchmarkError, progress
from pipeline.engine.errors import UnitError
from pipeline.reading.ocr import engine, layout_model, orientation, pixel_rules, recognition, second_opinion
from pipeline.reading.pdf import conversion, pdfium
from pipeline.reading.pdf.pages import Options
from pipeline.reading.sandbox.limits import page_limits

SCANS = {
    "documents/MEDRPT-2024-PAT-3847_medical_report_scan.pdf": (1, 2, 3),
    "documents/loremipsum-flat.pdf": (1,),
    "documents/single_table.pdf": (1,),
    "documents/zerox-0002.pdf": (1,),
}
"""The recognised pages of the corpus."""
STAGES: dict[str, tuple[Any, str]] = {
    "render": (pdfium.Page, "render"),
    "search": (engine.Engine, "locate"),
    "read": (engine.LocatedText, "read"),
    "rules": (pixel_rules, "find"),
    "second opinion": (second_opinion, "read"),
    "layout model": (layout_model, "regions"),
    "layout": (orientation, "blocks"),
}
"""The function of each stage; none calls another one's."""
ALL = "all"
PAGE_S, PAGE_MB = 120.0, 3_000
LIMIT_S = 300

Seconds = dict[str, float]


def main() -> int:
    """Exit codes: 0 all pages were measured, 1 some could not be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recognition", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a part of a PDF's name")
    names = parser.parse_args().only
    options = Options(
        max_pixels=recognition.pixels_at(200), threads=1, second_opinion=second_opinion.installed() is not None
    )
    print(f"{'':32}" + "".join(f"{stage:>16}" for stage in (*STAGES, ALL)))
    measured: list[Seconds] = []
    failed = 0
    for pdf, source, number in _pages():
        if names and not any(name in pdf for name in names):
            continue
        try:
            if not measured:
                _measure(source, number, options)  # loads the models
            spent = _measure(source, number, options)
        except (UnitError, BenchmarkError) as error:
            failed += 1
            progress(f"{pdf} {number}: {error}")
            continue
        measured.append(spent)
        if pdf in SCANS:
            print(f"{f'{Path(pdf).stem[:26]} {number}':32}" + "".join(f"{spent[stage]:>16.2f}" for stage in spent))
    figures = {stage: sorted(spent[stage] for spent in measured) for stage in (*STAGES, ALL)} if measured else {}
    medians = {stage: round(statistics.median(seconds), 2) for stage, seconds in figures.items()}
    ranges = [f"{seconds[0]:.2f} to {seconds[-1]:.2f}" for seconds in figures.values()]
    print(f"{f'median of {len(measured)}':32}" + "".join(f"{seconds:>16.2f}" for seconds in medians.values()))
    print(f"{'range':32}" + "".join(f"{seconds:>16}" for seconds in ranges))
    print(json.dumps({"pages": len(measured), "failed": failed, "median_s": medians}))
    return 1 if failed or not measured else 0


def median_apart() -> float:
    """Return the median of all pages in seconds, from a process of its own. Raises `subprocess.SubprocessError`."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.recognition"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1])["median_s"][ALL])


def _pages() -> Iterator[tuple[str, Path, int]]:
    """Yield (PDF, path, page) of the corpus, then of the unseen set."""
    for pdf, numbers in SCANS.items():
        for number in numbers:
            yield pdf, CORPUS / pdf, number
    about = [each for each in unseen.load() if each.group == unseen.UNSEEN and "scan" in f"{each.pdf} {each.source}"]
    needed = {unseen.path_of(each.pdf).name for each in about}
    unseen.fetch(source for source in unseen.sources() if source.name in needed)
    for pdf, number in sorted({(each.pdf, each.page) for each in about if each.page > 0}):
        yield pdf, unseen.path_of(pdf), number


def _measure(source: Path, number: int, options: Options) -> Seconds:
    """Convert a page as `Pages.convert` does; return the processor seconds by stage. Raises `UnitError`."""
    spent: dict[str, float] = defaultdict(float)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="recognition-")))
        for stage, (owner, name) in STAGES.items():
            stack.enter_context(patch.object(owner, name, _timed(getattr(owner, name), stage, spent)))
        if not source.is_file():
            raise BenchmarkError("the document is absent")
        started = _processor_s()
        profile = conversion.survey(source, [number], options, lambda: None)
        with conversion.open_source(source, options, profile) as pages:
            pages.convert(number, second=folder)
            asked = options.second_opinion and (folder / second_opinion.DOUBTFUL_LINES).exists()
            if asked and second_opinion.read(folder, page_limits(PAGE_S, PAGE_MB), lambda: True):
                pages.convert(number, second=folder)
        spent[ALL] = _processor_s() - started
    return {stage: spent[stage] for stage in (*STAGES, ALL)}


def _timed(function: Callable[..., Any], stage: str, spent: dict[str, float]) -> Callable[..., Any]:
    def timed(*arguments: Any, **named: Any) -> Any:
        started = _processor_s()
        try:
            return function(*arguments, **named)
        finally:
            spent[stage] += _processor_s() - started

    return timed


def _processor_s() -> float:
    """Return the processor time of this process and of the ended children: Tesseract is one."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    sys.exit(main())
