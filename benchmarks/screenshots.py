"""The screenshots flow, measured: `python -m benchmarks.screenshots [--quick] [--only NAME …]`.

Prints a table as it goes (what it is doing goes to standard error), and as its last line one JSON object with the keys
of `AIMS`. Each part runs in a process and a data folder of its own, which end with it.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

from benchmarks.report import Aim
from benchmarks.support import ROOT, BenchmarkError, end_all
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
LIMIT_S = 290.0
GRACE_S = 20.0
"""What a part that is told to stop may take to end its processes."""
Figures = dict[str, Any]


def main() -> int:
    """Exit codes: 0 all was measured, whether or not it meets its aim; 1 something could not be measured."""
    signal.signal(signal.SIGTERM, _end)  # as an exception: whatever was started is ended
    arguments = _arguments()
    try:
        return _part(arguments) if arguments.part else _all(arguments)
    except _Ended:
        return 1


def _part(arguments: argparse.Namespace) -> NoReturn:
    try:
        code = _inside(arguments.part, quick=arguments.quick)
    except _Ended:
        code = 1
    sys.stdout.flush()
    os._exit(code)  # at once: results that Celery still holds would ask a Redis that has ended


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
    """Measure a part in a process and a folder of its own, and leave nothing behind."""
    deadline_s = min(PARTS[name].deadline_s, left_s - GRACE_S)
    if deadline_s <= 0:
        raise BenchmarkError("no time is left: try again on a quiet machine, or with a larger --limit-s")
    folder = Path(tempfile.mkdtemp(prefix="ps-", dir="/tmp"))
    try:
        found: Figures = json.loads(_output(name, folder, deadline_s, quick=quick))
        return found
    finally:
        if strays := end_all(folder):
            sys.stderr.write(f"{name}: {strays} processes had to be killed\n")
        shutil.rmtree(folder, ignore_errors=True)


def _output(name: str, folder: Path, deadline_s: float, *, quick: bool) -> str:
    """What the part's process says in its last line."""
    sys.stderr.write(f"{name}\n")
    command = [sys.executable, "-m", "benchmarks.screenshots", "--part", name, *(["--quick"] if quick else [])]
    # Nobody's own settings: they would be measured instead.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    env = inherited | {"PENSTOCK_DATA_DIR": str(folder)}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as running:
        try:
            output, _ = running.communicate(timeout=deadline_s)
        except BaseException as error:
            running.terminate()
            _wait_or_kill(running)
            if isinstance(error, subprocess.TimeoutExpired):
                raise BenchmarkError(f"not done after {deadline_s:.0f} s") from error
            raise
    said = output.strip().splitlines()
    if running.returncode != 0 or not said:
        raise BenchmarkError("\n    ".join(said) or f"ended with {running.returncode}; see above")
    return said[-1]


def _wait_or_kill(running: "subprocess.Popen[str]") -> None:
    try:
        running.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        running.kill()
        running.communicate()


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


class _Ended(BaseException):
    """We were told to stop."""


def _end(_number: int, _frame: object) -> NoReturn:
    raise _Ended


if __name__ == "__main__":
    sys.exit(main())
