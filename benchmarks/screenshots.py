"""The screenshots flow, measured: `python -m benchmarks.screenshots [--quick] [--only NAME …]`.

Prints a table as it goes (what it is doing goes to standard error), and as its last line one JSON object with the keys
of `AIMS`. Each part runs in a process and a data folder of its own, which end with it.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, cast

from benchmarks.parts import GRACE_S, LIMIT_S, ended_by_signal, inside, measured
from benchmarks.report import Aim
from benchmarks.support import BenchmarkError
from pipeline.engine.logs import configure

AIMS = {
    "png_ratio": Aim("PNG frames hashed and judged, of imagehash alone", 0.9, at_least=True),
    "jpeg_draft_speedup": Aim("the same for JPEG frames, decoded smaller", 5, at_least=True),
    "provider_utilisation": Aim("use of a provider's 4 calls at once", 0.90, at_least=True),
    "realtime_p95_ratio": Aim("a new batch beside 2,000 frames to recover, of alone", 2, at_least=False),
    "search_p95_ms": Aim("search over 100,000 nodes, p95", 100, at_least=False, unit="ms"),
    "bytes_per_1000": Aim("disk for 1,000 frames of 1080p", 200e6, at_least=False, unit="B"),
}
"""The keys of the last line, in its order."""


class Part(NamedTuple):
    """What is measured together. `function`: module and function in this package; `quick`: its arguments for a try."""

    function: str
    keys: tuple[str, ...]
    deadline_s: float
    quick: dict[str, Any]


PARTS = {
    "frames": Part("screenshot_frames.measure_hashing", ("png_ratio", "jpeg_draft_speedup", "bytes_per_1000"), 60, {}),
    "search": Part("screenshot_search.measure_search", ("search_p95_ms",), 120, {"nodes": 10_000}),
    "use": Part("screenshot_flow.measure_use", ("provider_utilisation",), 130, {"shots": 200}),
    "realtime": Part("screenshot_flow.measure_realtime", ("realtime_p95_ratio",), 150, {"samples": 6}),
}
Figures = dict[str, Any]


def main() -> int:
    """Exit codes: 0 all was measured, whether or not it meets its aim; 1 something could not be measured."""
    arguments = _arguments()
    if arguments.part:
        inside(lambda: _inside(arguments.part, quick=arguments.quick))
    return ended_by_signal(lambda: _all(arguments))


def _all(arguments: argparse.Namespace) -> int:
    begun = time.monotonic()
    wanted = [name for name, part in PARTS.items() if not arguments.only or {name, *part.keys} & set(arguments.only)]
    figures: Figures = {}
    complete = True
    print(f"{'':52}{'FOUND':>18}  AIM\n{'-' * 88}", flush=True)
    for name in wanted:
        try:
            found = _run(name, arguments.limit_s - (time.monotonic() - begun), quick=arguments.quick)
        except BenchmarkError as error:
            complete = False
            print(f"{name}: NOT MEASURED\n    {error}", flush=True)
        else:
            figures |= found
            print("\n".join(_lines(found)), flush=True)
    sys.stderr.write(f"{time.monotonic() - begun:.0f} s in all\n")
    print(json.dumps({key: figures.get(key) for key in AIMS}), flush=True)
    return 0 if complete else 1


def _lines(found: Figures) -> list[str]:
    """Figures with their aims, then the facts behind them."""
    rows = []
    for key, aim in AIMS.items():
        if key in found:
            value = f"{found[key]:g} {aim.unit}".rstrip()
            rows += [f"{key:30}{value:>40}  {aim!s:12} {'met' if aim.met(found[key]) else 'NOT MET'}", f"  {aim.what}"]
    return rows + [f"    {what:48}{value!s:>18}" for what, value in found.items() if what not in AIMS]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.screenshots", description="Measure the screenshots flow."
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="fewer frames and nodes: a try, not a measurement")
    parser.add_argument(
        "--only", action="append", choices=[*PARTS, *AIMS], metavar="NAME", default=[],
        help=f"a part ({', '.join(PARTS)}) or a key of the last line; may be repeated",
    )  # fmt: skip
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="when to end, measured or not (%(default)g s)")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    return parser.parse_args()


def _run(name: str, left_s: float, *, quick: bool) -> Figures:
    deadline_s = min(PARTS[name].deadline_s, left_s - GRACE_S)
    found: Figures = json.loads(measured("benchmarks.screenshots", name, deadline_s, quick=quick))
    return found


def _inside(name: str, *, quick: bool) -> int:
    """The part's own process: its figures, or why there are none, on standard output."""
    configure("WARNING", as_json=False)
    part = PARTS[name]
    module, function = part.function.split(".")
    try:
        measure = cast("Callable[..., Figures]", getattr(import_module(f"benchmarks.{module}"), function))
        found = measure(**(part.quick if quick else {}))
    except (BenchmarkError, ImportError, AttributeError) as error:
        print(error)
        return 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
