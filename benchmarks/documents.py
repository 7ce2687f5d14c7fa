"""The documents flow, measured: `python -m benchmarks.documents [--quick] [--only NAME …]`.

Prints a table as it goes (what it is doing goes to standard error), and as its last line one JSON object with the
keys of `benchmarks.report.AIMS`. Each part runs in a process, a data folder and a stack of its own, which end with it.
Reads `documents/DA-619p.pdf` of the corpus, beside this repository or where PENSTOCK_CORPUS says.
"""

import argparse
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple, cast

from benchmarks.parts import GRACE_S, LIMIT_S, ended_by_signal, inside, measured
from benchmarks.report import AIMS, Report, from_json, heading, last_line, lines
from benchmarks.support import BIG_DOCUMENT, BenchmarkError
from pipeline.engine.logs import configure


class Part(NamedTuple):
    """What is measured together. `function`: module and function in this package."""

    function: str
    keys: tuple[str, ...]
    deadline_s: float
    needs_corpus: bool = False


PARTS = {
    "conversion": Part("throughput.measure", ("pages_per_s_ratio", "worker_peak_mb"), 90, needs_corpus=True),
    "provider": Part("vision.measure", ("provider_utilisation",), 90),
    "start": Part("latency.start", ("submit_to_start_ms",), 60),
    "small": Part("latency.small", ("small_document_ratio",), 90, needs_corpus=True),
    "publish": Part("publishing.measure", ("publish_2000_s",), 60),
    "cold": Part("latency.cold", ("cold_convert_s",), 90),
    "warm": Part("latency.warm", ("warm_convert_s",), 60),
    "units": Part("units.measure", ("units_vs_chord_quantum", "units_vs_chord_single"), 120),
}


def main() -> int:
    """Exit codes: 0 all was measured, whether or not it meets its aim; 1 something could not be measured."""
    arguments = _arguments()
    if arguments.part:
        inside(lambda: _inside(arguments.part, quick=arguments.quick))
    return ended_by_signal(lambda: _all(arguments))


def _all(arguments: argparse.Namespace) -> int:
    begun = time.monotonic()
    names = [name for name, part in PARTS.items() if _wanted(arguments.only, name, part)]
    figures: dict[str, float] = {}
    complete = True
    print(heading(), flush=True)
    for name in names:
        try:
            report = _run(name, arguments.limit_s - (time.monotonic() - begun), quick=arguments.quick)
        except BenchmarkError as error:
            complete = False
            print(f"{name}: NOT MEASURED\n    {error}", flush=True)
        else:
            figures |= report.figures
            print("\n".join(lines(report)), flush=True)
    sys.stderr.write(f"{time.monotonic() - begun:.0f} s in all\n")
    print(last_line(figures), flush=True)
    return 0 if complete else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.documents", description="Measure the documents flow.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and units: a try, not a measurement")
    names = [*PARTS, *AIMS]
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", default=[],
        help=f"a part ({', '.join(PARTS)}) or a key of the last line; may be repeated",
    )  # fmt: skip
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="when to end, measured or not (%(default)g s)")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    return parser.parse_args()


def _wanted(only: list[str], name: str, part: Part) -> bool:
    return not only or name in only or any(key in only for key in part.keys)


def _run(name: str, left_s: float, *, quick: bool) -> Report:
    part = PARTS[name]
    if part.needs_corpus and not BIG_DOCUMENT.is_file():
        raise BenchmarkError(f"{BIG_DOCUMENT} is absent: set PENSTOCK_CORPUS to the folder with the corpus")
    env = {"PENSTOCK_CORPUS": str(BIG_DOCUMENT.parents[1])}
    deadline_s = min(part.deadline_s, left_s - GRACE_S)
    return from_json(measured("benchmarks.documents", name, deadline_s, quick=quick, env=env))


def _inside(name: str, *, quick: bool) -> int:
    """The part's own process: its report, or why there is none, on standard output."""
    configure("WARNING", as_json=False)
    module, function = PARTS[name].function.split(".")
    measure = cast("Callable[..., Report]", getattr(import_module(f"benchmarks.{module}"), function))
    try:
        report = measure(quick=quick)
    except BenchmarkError as error:
        print(error)
        return 1
    print(report.as_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
