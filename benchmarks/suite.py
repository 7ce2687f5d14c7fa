"""A benchmark of several parts: its options, its table, and the JSON object in its last line.

Each part runs in a process and a data folder of its own, which end with it: see `benchmarks.parts`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

from benchmarks.parts import ended_by_signal, inside, measured
from benchmarks.support import BenchmarkError
from pipeline.engine.logs import configure

Figures = dict[str, Any]
"""A part's figures: the keys of aims, and other facts."""


@dataclass(frozen=True)
class Aim:
    """A figure's description and the value that it should reach; None: the figure has no aim."""

    description: str
    value: float | None = None
    at_least: bool = False
    unit: str = ""

    def judgement(self, measured_value: float) -> str:
        if self.value is None:
            return ""
        return "met" if (measured_value >= self.value if self.at_least else measured_value <= self.value) else "NOT MET"

    def __str__(self) -> str:
        return "" if self.value is None else f"{'≥' if self.at_least else '≤'} {self.value:g} {self.unit}".rstrip()


class Part(NamedTuple):
    """Figures that are measured together.

    `function`: module and function in this package. `limit_s`: the part's time limit, several times its time on a quiet
    machine, so that a slower machine measures it too. `quick`: the function's arguments for `--quick`.
    """

    function: str
    keys: tuple[str, ...]
    limit_s: float
    quick: Mapping[str, Any]
    by_default: bool = True
    """False: the part takes too long, so it runs only if `--only` names it, or with `--NAME`."""


@dataclass(frozen=True)
class Suite:
    """`aims`: the keys of the last line, in its order. The line has null for a figure that was not measured."""

    module: str
    description: str
    aims: Mapping[str, Aim]
    parts: Mapping[str, Part]
    postgres: bool = False
    """Whether the suite has `--postgres`, which gives each part an empty database of a temporary PostgreSQL."""

    def main(self, options: Sequence[str] | None = None) -> int:
        """Exit codes: 0 everything was measured, whether or not it meets its aim; 1 something could not be measured."""
        arguments = self._arguments(options)
        if arguments.part:
            inside(lambda: self._inside(arguments.part, quick=arguments.quick))
        return ended_by_signal(lambda: self._all(arguments))

    def _all(self, arguments: argparse.Namespace) -> int:
        started = time.monotonic()
        figures: Figures = {}
        complete = True
        print(f"{'':52}{'FIGURE':>18}  AIM\n{'-' * 88}", flush=True)
        with _postgres() if arguments.postgres else nullcontext(dict) as database:
            for name, part in self.parts.items():
                if not self._is_wanted(name, arguments):
                    if not arguments.only:
                        print(f"{name}: left out; --{name} measures it too", flush=True)
                    continue
                limit_s = arguments.limit_s or part.limit_s
                try:
                    line = measured(self.module, name, limit_s, quick=arguments.quick, env=database())
                except BenchmarkError as error:
                    complete = False
                    print(f"{name}: NOT MEASURED\n    {error}", flush=True)
                else:
                    measured_figures: Figures = json.loads(line)
                    figures |= measured_figures
                    print("\n".join(self._lines(measured_figures)), flush=True)
        sys.stderr.write(f"{time.monotonic() - started:.0f} s in all\n")
        print(json.dumps({key: figures.get(key) for key in self.aims}), flush=True)
        return 0 if complete else 1

    def _is_wanted(self, name: str, arguments: argparse.Namespace) -> bool:
        part, only = self.parts[name], set(arguments.only)
        return bool({name, *part.keys} & only if only else part.by_default or getattr(arguments, name))

    def _lines(self, figures: Figures) -> list[str]:
        """Render figures with their aims, then the facts behind them."""
        rows = []
        for key, aim in self.aims.items():
            if key in figures:
                value = f"{figures[key]:g} {aim.unit}".rstrip()
                rows += [
                    f"{key:30}{value:>40}  {aim!s:12} {aim.judgement(figures[key])}".rstrip(),
                    f"  {aim.description}",
                ]
        return rows + [f"    {fact:48}{value!s:>18}" for fact, value in figures.items() if fact not in self.aims]

    def _arguments(self, options: Sequence[str] | None) -> argparse.Namespace:
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=self.description)
        parser.set_defaults(postgres=False)
        if self.postgres:
            parser.add_argument("--postgres", action="store_true", help="on PostgreSQL instead of SQLite")
        parser.add_argument("--quick", action="store_true", help="fewer rounds and units: a try, not a measurement")
        parser.add_argument(
            "--only",
            action="append",
            choices=[*self.parts, *self.aims],
            metavar="NAME",
            default=[],
            help=f"a part ({', '.join(self.parts)}) or a key of the last line; may be repeated",
        )
        for name in [name for name, part in self.parts.items() if not part.by_default]:
            parser.add_argument(f"--{name}", action="store_true", help="measure this part too, which takes minutes")
        parser.add_argument("--limit-s", type=float, help="the time limit of each part, instead of its own")
        parser.add_argument("--part", choices=list(self.parts), help=argparse.SUPPRESS)
        return parser.parse_args(options)

    def _inside(self, name: str, *, quick: bool) -> int:
        """Run in the part's own process: print its figures, or the error, to standard output."""
        configure("WARNING", as_json=False)
        part = self.parts[name]
        module, function = part.function.split(".")
        try:
            measure = cast("Callable[..., Figures]", getattr(import_module(f"benchmarks.{module}"), function))
            figures = measure(**(part.quick if quick else {}))
        except (BenchmarkError, ImportError, AttributeError) as error:
            print(error)
            return 1
        print(json.dumps(figures))
        return 0


@contextmanager
def _postgres() -> Iterator[Callable[[], dict[str, str]]]:
    """Run a PostgreSQL; yield a function that creates an empty database and returns its environment variables."""
    from tests.support.postgres import Postgres

    with TemporaryDirectory(prefix="ps-pg-", dir="/tmp") as folder, Postgres(Path(folder) / "data") as server:
        yield lambda: {"PENSTOCK_DATABASE_URL": server.url(server.create_database(migrated=False))}
