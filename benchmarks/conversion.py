"""Quality of local conversion, counted: `python -m benchmarks.conversion [--quick] [--only NAME …] [--failures]`.

Converts the pages of all assertions with Penstock and its rivals, and prints how many assertions each of them passes,
by kind; then the speed of Penstock and of the rivals on pages with a text layer, on one core. The last line is one JSON
object. Reads the corpus, beside this repository or in PENSTOCK_CORPUS. The table has an empty output too, since an
assertion that an empty output passes is not a merit. `benchmarks.rivals` installs the rivals on first use, and keeps
their Markdown from earlier runs: only the first run converts with them.

Documents that played no part in the development are counted apart (`benchmarks.unseen`), in two sets. Their failures
are never shown: a document whose failures a developer has read is no longer unseen.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pypdfium2

from benchmarks import converters, expected, recognition, rivals, speed, unseen
from benchmarks.assertions import KINDS, OWN, WHOLE_DOCUMENT, Assertion, load
from benchmarks.reading import Reading
from benchmarks.support import CORPUS, BenchmarkError, big_document, progress
from pipeline.engine.logs import configure

NAME_WIDTH = 22
GROUPS = (OWN, expected.KEYWORDS, expected.EXPECTED)
QUICK = "documents/header-test-doc.pdf"
"""The document of `--quick`."""

Readings = dict[tuple[str, int], Reading]
"""Readings by PDF and page."""

Outcome = dict[str, list[bool]]
"""By converter: whether each assertion holds, in the order of the assertions."""


def main() -> int:
    """Exit codes: 0 everything was measured, good or bad; 1 something could not be measured."""
    arguments = _arguments()
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        del os.environ[name]  # The caller's settings would change the results.
    _quietly()
    try:
        return _measure(arguments)
    except BenchmarkError as error:
        print(f"NOT MEASURED\n    {error}")
        return 1


def _quietly() -> None:
    configure("WARNING", as_json=False)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conversion", description="Quality of local conversion.")
    parser.add_argument("--quick", action="store_true", help="one document and ten pages: a try, not a measurement")
    parser.add_argument(
        "--failures", action="store_true", help="print the assertions that Penstock fails, with its output there"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help=f"a part of a PDF's or an assertion file's name, a kind ({', '.join(KINDS)}) or a group "
        f"({', '.join((*GROUPS, *unseen.GROUPS))}); may be repeated: then all must fit; speed is left out then",
    )
    parser.add_argument(
        "--converter",
        action="append",
        default=[],
        choices=converters.NAMES,
        help="run only this converter; may be repeated: the figures of the others are null then",
    )
    return parser.parse_args()


def _measure(arguments: argparse.Namespace) -> int:
    started = time.monotonic()
    wanted = arguments.converter or set(converters.NAMES) - (set(rivals.VERSIONS) if arguments.quick else set())
    chosen = [name for name in converters.NAMES if name in wanted]
    absent = _install(set(chosen) & rivals.VERSIONS.keys())
    figures = {} if arguments.only else _speeds(chosen, absent, quick=arguments.quick)
    assertions = [each for each in [*load(), *expected.load(CORPUS), *unseen.load()] if _wanted(each, arguments.only)]
    if arguments.quick:
        assertions = [each for each in assertions if each.pdf == QUICK]
    absent |= _fetch(assertions)
    texts = _texts([name for name in chosen if name in converters.available()], assertions)
    outcome = {name: [_check(each, readings) for each in assertions] for name, readings in texts.items()}
    print("\n".join(_table(assertions, outcome)))
    if arguments.failures and converters.PENSTOCK in outcome:
        print("\n".join(_failures(assertions, outcome[converters.PENSTOCK], texts[converters.PENSTOCK])))
    if "pages_per_s" in figures:
        print(
            f"\npages with a text layer on one core: {figures['pages_per_s']:g} pages/s, "
            f"{figures['model_pages_per_s']:g} with the layout model, peak {figures['peak_mb']:g} MB"
        )
    if rates := figures.get("rival_pages_per_s"):
        print("rivals on these pages: " + ", ".join(f"{name} {rate} pages/s" for name, rate in rates.items()))
    if figures.get("ocr_s_per_page"):
        print(f"recognised pages of the corpus and the unseen set: {figures['ocr_s_per_page']:g} s of one core")
    for name, reason in sorted(absent.items()):
        print(f"absent: {name}: {reason}")
    sys.stderr.write(f"{time.monotonic() - started:.0f} s in all\n")
    print(json.dumps({**_counts(assertions, outcome), **figures}))
    return 0 if outcome.keys() == set(chosen) and not absent else 1


def _install(names: Iterable[str]) -> dict[str, str]:
    """Install these rivals; return the reason for each rival that stays absent, by name."""

    def reason(name: str) -> str:
        try:
            rivals.install(name)
        except BenchmarkError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor() as pool:
        reasons = dict(zip(sorted(names), pool.map(reason, sorted(names)), strict=True))
    return {name: why for name, why in reasons.items() if why}


def _fetch(assertions: Sequence[Assertion]) -> dict[str, str]:
    """Fetch the documents of the unseen sets; return the reason of each absent document, by name."""
    needed = {unseen.path_of(each.pdf).name for each in assertions if each.group in unseen.GROUPS}
    sources = {source.name: source for source in unseen.sources()}
    unlisted = dict.fromkeys(needed - sources.keys(), "no list of sources names it")
    return {**unseen.fetch(sources[name] for name in sorted(needed & sources.keys())), **unlisted}


def _counts(assertions: Sequence[Assertion], outcome: Outcome) -> dict[str, Any]:
    """Count the assertions that each converter passes; None for a converter that did not run."""

    def passed(name: str, group: str = "") -> int | None:
        chosen = [(each.group if each.group in unseen.GROUPS else "") == group for each in assertions]
        return sum(itertools.compress(outcome[name], chosen)) if name in outcome else None

    totals = {group: sum(each.group == group for each in assertions) for group in unseen.GROUPS}
    others = [name for name in converters.NAMES if name not in {converters.PENSTOCK, converters.EMPTY}]
    counts: dict[str, Any] = {
        "passed": passed(converters.PENSTOCK),
        "total": len(assertions) - sum(totals.values()),
        "markitdown_passed": passed(converters.MARKITDOWN),
        "pdfium_passed": passed(converters.PDFIUM),
        "markitdown_unseen": passed(converters.MARKITDOWN, unseen.UNSEEN),
        "pdfium_unseen": passed(converters.PDFIUM, unseen.UNSEEN),
    }
    for group, total in totals.items():
        counts |= {
            f"{group}_first": unseen.first(group),
            f"{group}_last": passed(converters.PENSTOCK, group),
            f"{group}_total": total,
            f"rival_{group}": {name: passed(name, group) for name in others},
        }
    return counts


def _wanted(assertion: Assertion, only: Sequence[str]) -> bool:
    whole = {*KINDS, *GROUPS, *unseen.GROUPS}
    return all(
        name in {assertion.kind, assertion.group} if name in whole else name in f"{assertion.pdf} {assertion.source}"
        for name in only
    )


def _texts(names: Sequence[str], assertions: Iterable[Assertion]) -> dict[str, Readings]:
    """Convert each page and each whole document of an assertion with each converter.

    A process per core takes one document at a time and converts its pages one by one."""
    pages: dict[str, set[int]] = defaultdict(set)
    for assertion in assertions:
        pages[assertion.pdf].add(assertion.page)
    sources = {pdf: source for pdf in pages if (source := _source(pdf))}
    # The largest files first: no other core has work while the last document is converted.
    order = sorted(sources, key=lambda pdf: -sources[pdf].stat().st_size)
    readings: dict[str, Readings] = {name: {} for name in names}
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), _quietly) as pool:
        jobs = {(name, pdf): pool.submit(_converted, name, sources[pdf], pages[pdf]) for name in names for pdf in order}
        for name in names:
            took_s = 0.0
            for pdf in order:
                try:
                    texts, job_s = jobs[name, pdf].result()
                except Exception as error:  # noqa: BLE001 - of any library; its pages count as failed
                    progress(f"{name} fails on {pdf}: {error!r}")
                    continue
                readings[name] |= {(pdf, number): Reading(text) for number, text in texts.items()}
                took_s += job_s
            progress(f"{name}: {took_s:.1f} s of one core")
    return readings


def _source(pdf: str) -> Path | None:
    """Return the document's path; None for an unseen document that could not be fetched."""
    new = pdf.partition("/")[0] in unseen.GROUPS
    source = unseen.path_of(pdf) if new else CORPUS / pdf
    if source.is_file():
        return source
    if new:
        return None
    raise BenchmarkError(f"{source} is absent: set PENSTOCK_CORPUS to the folder with the corpus")


def _converted(name: str, source: Path, numbers: set[int]) -> tuple[dict[int, str], float]:
    """Convert these pages in a process of its own; return (texts by page, seconds)."""
    started = time.monotonic()
    whole = range(1, _count(source) + 1) if WHOLE_DOCUMENT in numbers else ()
    texts = converters.available()[name](source, sorted({*whole, *numbers} - {WHOLE_DOCUMENT}))
    joined = "\n\n".join(texts.get(number, "") for number in whole)
    return {**texts, WHOLE_DOCUMENT: joined}, time.monotonic() - started


def _count(source: Path) -> int:
    with pypdfium2.PdfDocument(source) as document:
        return len(document)


def _check(assertion: Assertion, texts: Readings) -> bool:
    page = texts.get((assertion.pdf, assertion.page))  # None: a document that could not be fetched
    return page is not None and assertion.holds(page)


def _table(assertions: Sequence[Assertion], outcome: Outcome) -> list[str]:
    """Render the passed share: by kind for our own assertions, by group, in total, and apart for unseen pages."""
    rows = [(f"  {kind}", [each.kind == kind and each.group == OWN for each in assertions]) for kind in KINDS]
    rows += [(group, [each.group == group for each in assertions]) for group in GROUPS]
    rows.append(("total", [each.group not in unseen.GROUPS for each in assertions]))
    rows += [(group, [each.group == group for each in assertions]) for group in unseen.GROUPS]
    lines = [f"{'':{NAME_WIDTH}}" + "".join(f"{name:>14}" for name in outcome) + f"{'of':>8}"]
    for title, chosen in rows:
        if of := sum(chosen):
            counts = [sum(itertools.compress(held, chosen)) for held in outcome.values()]
            lines.append(f"{title:{NAME_WIDTH}}" + "".join(f"{count:>14}" for count in counts) + f"{of:>8}")
    return lines


def _failures(assertions: Sequence[Assertion], held: Sequence[bool], texts: Readings) -> list[str]:
    lines = ["", "Failed:"]
    for assertion, fine in zip(assertions, held, strict=True):
        if not fine and assertion.group not in unseen.GROUPS:
            page = texts.get((assertion.pdf, assertion.page), Reading(""))
            lines += [f"{assertion}", f"    {_snippet(assertion, page)}"]
    return lines


def _snippet(assertion: Assertion, page: Reading) -> str:
    """Return the output around the first words of the text; the page's beginning if they do not occur."""
    wanted = next(str(getattr(assertion, name)) for name in ("text", "cell", "before") if hasattr(assertion, name))
    words = wanted.casefold().split()
    for length in range(len(words), 0, -1):
        place = page.folded.find(" ".join(words[:length]))
        if place >= 0:
            return f"… {page.text[max(0, place - 20) : place + len(wanted) + 60]} …"
    return f"(the text does not occur) {page.text[:100]} …"


def _speeds(chosen: Sequence[str], absent: Mapping[str, str], *, quick: bool) -> dict[str, Any]:
    """Measure one converter after the other: they share the memory's bandwidth."""
    figures: dict[str, Any] = {}
    if converters.PENSTOCK in chosen:
        progress("pages/s")
        try:
            figures |= speed.measure_apart(big_document(), quick=quick)
            progress("s per recognised page")
            figures["ocr_s_per_page"] = None if quick else recognition.median_apart()
        except subprocess.SubprocessError as error:
            raise BenchmarkError(f"speed: {error}") from error
    rates: dict[str, float | None] = dict.fromkeys(rivals.VERSIONS)
    for name in set(chosen) & rates.keys() - absent.keys():
        progress(f"pages/s of {name}")
        try:
            rates[name] = rivals.pages_per_s(name, big_document(), speed.PAGES)
        except BenchmarkError as error:
            progress(f"{name} has no pages/s: {error}")
    return {**figures, "rival_pages_per_s": rates}


if __name__ == "__main__":
    sys.exit(main())
