"""Quality of local conversion, counted: `python -m benchmarks.conversion [--failures] [--only NAME …]`.

Converts the pages that assertions are about with Penstock, markitdown and PDFium, and prints how many assertions each
of them passes, by kind; then how fast Penstock is on pages with a text layer, on one core. The last line is one JSON
object. Reads the corpus, beside this repository or where PENSTOCK_CORPUS says. An empty output is shown too: what it
passes is not a merit.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pypdfium2

from benchmarks import converters, expected, speed
from benchmarks.assertions import KINDS, OWN, WHOLE_DOCUMENT, Assertion, load
from benchmarks.reading import Reading
from benchmarks.support import CORPUS, BenchmarkError, big_document, progress
from pipeline.engine.logs import configure

NAME_WIDTH = 22

Readings = dict[tuple[str, int], Reading]
"""By PDF and page."""

Outcome = dict[str, list[bool]]
"""By converter: whether each assertion holds, in their order."""


def main() -> int:
    """Exit codes: 0 all was measured, however good; 1 something could not be."""
    arguments = _arguments()
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        del os.environ[name]  # Nobody's own settings: they would be measured instead.
    configure("WARNING", as_json=False)
    try:
        return _measure(arguments)
    except BenchmarkError as error:
        print(f"NOT MEASURED\n    {error}")
        return 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conversion", description="Quality of local conversion.")
    parser.add_argument("--failures", action="store_true", help="print what Penstock fails, with what it wrote there")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME",
        help=f"a part of a PDF's or an assertion file's name, a kind ({', '.join(KINDS)}) or a group "
        f"({OWN}, {expected.KEYWORDS}, {expected.EXPECTED}); may be repeated: then all must fit",
    )  # fmt: skip
    return parser.parse_args()


def _measure(arguments: argparse.Namespace) -> int:
    begun = time.monotonic()
    figures = _speed()
    assertions = [each for each in [*load(), *expected.load(CORPUS)] if _wanted(each, arguments.only)]
    texts = {name: _texts(name, convert, assertions) for name, convert in converters.available().items()}
    outcome = {name: [_check(each, found) for each in assertions] for name, found in texts.items()}
    print("\n".join(_table(assertions, outcome)))
    if arguments.failures:
        print("\n".join(_failures(assertions, outcome[converters.PENSTOCK], texts[converters.PENSTOCK])))
    print(f"\n{len(speed.PAGES)} pages with a text layer on one core: {figures['pages_per_s']:g} pages/s, "
          f"peak {figures['peak_mb']:g} MB")  # fmt: skip
    sys.stderr.write(f"{time.monotonic() - begun:.0f} s in all\n")
    passed = {name: sum(held) for name, held in outcome.items()}
    print(json.dumps({
        "passed": passed[converters.PENSTOCK], "total": len(assertions),
        "markitdown_passed": passed.get(converters.MARKITDOWN), "pdfium_passed": passed[converters.PDFIUM], **figures,
    }))  # fmt: skip
    return 0 if converters.MARKITDOWN in passed else 1


def _wanted(assertion: Assertion, only: Sequence[str]) -> bool:
    whole = {*KINDS, OWN, expected.KEYWORDS, expected.EXPECTED}
    return all(
        name in {assertion.kind, assertion.group} if name in whole else name in f"{assertion.pdf} {assertion.source}"
        for name in only
    )


def _texts(name: str, convert: converters.Converter, assertions: Iterable[Assertion]) -> Readings:
    """What the converter makes of each page, and of whole documents, that an assertion is about."""
    pages: dict[str, set[int]] = defaultdict(set)
    for assertion in assertions:
        pages[assertion.pdf].add(assertion.page)
    found: Readings = {}
    begun = time.monotonic()
    for pdf, numbers in pages.items():
        source = CORPUS / pdf
        if not source.is_file():
            raise BenchmarkError(f"{source} is absent: set PENSTOCK_CORPUS to the folder with the corpus")
        whole = range(1, _count(source) + 1) if WHOLE_DOCUMENT in numbers else ()
        texts = convert(source, sorted({*whole, *numbers} - {WHOLE_DOCUMENT}))
        found |= {(pdf, number): Reading(text) for number, text in texts.items()}
        found[pdf, WHOLE_DOCUMENT] = Reading("\n\n".join(texts[number] for number in whole))
    progress(f"{name}: {time.monotonic() - begun:.1f} s")
    return found


def _count(source: Path) -> int:
    with pypdfium2.PdfDocument(source) as document:
        return len(document)


def _check(assertion: Assertion, texts: Readings) -> bool:
    return assertion.holds(texts[assertion.pdf, assertion.page])


def _table(assertions: Sequence[Assertion], outcome: Outcome) -> list[str]:
    """Passed of all, by kind for our own assertions, by group, and in total."""
    rows = [(f"  {kind}", [each.kind == kind and each.group == OWN for each in assertions]) for kind in KINDS]
    rows += [
        (group, [each.group == group for each in assertions]) for group in (OWN, expected.KEYWORDS, expected.EXPECTED)
    ]
    rows.append(("total", [True] * len(assertions)))
    lines = [f"{'':{NAME_WIDTH}}" + "".join(f"{name:>14}" for name in outcome) + f"{'of':>8}"]
    for title, chosen in rows:
        if of := sum(chosen):
            counts = [sum(itertools.compress(held, chosen)) for held in outcome.values()]
            lines.append(f"{title:{NAME_WIDTH}}" + "".join(f"{count:>14}" for count in counts) + f"{of:>8}")
    return lines


def _failures(assertions: Sequence[Assertion], held: Sequence[bool], texts: Readings) -> list[str]:
    lines = ["", "Failed:"]
    for assertion, fine in zip(assertions, held, strict=True):
        if not fine:
            lines += [f"{assertion}", f"    {_snippet(assertion, texts[assertion.pdf, assertion.page])}"]
    return lines


def _snippet(assertion: Assertion, page: Reading) -> str:
    """What was written where the text should be, as far as its first words tell."""
    wanted = next(str(getattr(assertion, name)) for name in ("text", "cell", "before") if hasattr(assertion, name))
    words = wanted.casefold().split()
    for length in range(len(words), 0, -1):
        place = page.folded.find(" ".join(words[:length]))
        if place >= 0:
            return f"… {page.text[max(0, place - 20) : place + len(wanted) + 60]} …"
    return f"(nothing like it) {page.text[:100]} …"


def _speed() -> dict[str, float]:
    progress("pages/s")
    try:
        return speed.measure_apart(big_document())
    except subprocess.SubprocessError as error:
        raise BenchmarkError(f"pages/s: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
