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
"""What a part found: the keys of aims, and other facts."""


@dataclass(frozen=True)
class Aim:
    """One figure: what it is, and the value that it should reach; None: no aim was set."""

    what: str
    value: float | None = None
    at_least: bool = False
    unit: str = ""

    def judgement(self, found: float) -> str:
        if self.value is None:
            return ""
        return "met" if (found >= self.value if self.at_least else found <= self.value) else "NOT MET"

    def __str__(self) -> str:
        return "" if self.value is None else f"{'≥' if self.at_least else '≤'} {self.value:g} {self.unit}".rstrip()


class Part(NamedTuple):
    """What is measured together.

    `function`: module and function in this package. `limit_s`: its own limit of time, several times what it takes on a
    quiet machine, so that a slower one measures it too. `quick`: the function's arguments for a try.
    """

    function: str
    keys: tuple[str, ...]
    limit_s: float
    quick: Mapping[str, Any]
    by_default: bool = True
    """False: it takes too long beside the others, so it is measured only when it is named, or with `--NAME`."""


@dataclass(frozen=True)
class Suite:
    """`aims`: the keys of the last line, in its order; null for what was not measured."""

    module: str
    what: str
    aims: Mapping[str, Aim]
    parts: Mapping[str, Part]
    postgres: bool = False
    """Whether `--postgres` may be given: each part then has an empty database of a PostgreSQL of our own."""

    def main(self, options: Sequence[str] | None = None) -> int:
        """Exit codes: 0 all was measured, whether or not it meets its aim; 1 something could not be measured."""
        arguments = self._arguments(options)
        if arguments.part:
            inside(lambda: self._inside(arguments.part, quick=arguments.quick))
        return ended_by_signal(lambda: self._all(arguments))

    def _all(self, arguments: argparse.Namespace) -> int:
        begun = time.monotonic()
        figures: Figures = {}
        complete = True
        print(f"{'':52}{'FOUND':>18}  AIM\n{'-' * 88}", flush=True)
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
                    found: Figures = json.loads(line)
                    figures |= found
                    print("\n".join(self._lines(found)), flush=True)
        sys.stderr.write(f"{time.monotonic() - begun:.0f} s in all\n")
        print(json.dumps({key: figures.get(key) for key in self.aims}), flush=True)
        return 0 if complete else 1

    def _is_wanted(self, name: str, arguments: argparse.Namespace) -> bool:
        part, only = self.parts[name], set(arguments.only)
        return bool({name, *part.keys} & only if only else part.by_default or getattr(arguments, name))

    def _lines(self, found: Figures) -> list[str]:
        """Figures with their aims, then the facts behind them."""
        rows = []
        for key, aim in self.aims.items():
            if key in found:
                value = f"{found[key]:g} {aim.unit}".rstrip()
                rows += [f"{key:30}{value:>40}  {aim!s:12} {aim.judgement(found[key])}".rstrip(), f"  {aim.what}"]
        return rows + [f"    {what:48}{value!s:>18}" for what, value in found.items() if what not in self.aims]

    def _arguments(self, options: Sequence[str] | None) -> argparse.Namespace:
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=self.what)
        parser.set_defaults(postgres=False)
        if self.postgres:
            parser.add_argument("--postgres", action="store_true", help="on PostgreSQL instead of SQLite")
        parser.add_argument("--quick", action="store_true", help="less of everything: a try, not a measurement")
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
        parser.add_argument("--limit-s", type=float, help="how long each part may take, instead of its own limit")
        parser.add_argument("--part", choices=list(self.parts), help=argparse.SUPPRESS)
        return parser.parse_args(options)

    def _inside(self, name: str, *, quick: bool) -> int:
        """The part's own process: its figures, or why there are none, on standard output."""
        configure("WARNING", as_json=False)
        part = self.parts[name]
        module, function = part.function.split(".")
        try:
            measure = cast("Callable[..., Figures]", getattr(import_module(f"benchmarks.{module}"), function))
            found = measure(**(part.quick if quick else {}))
        except (BenchmarkError, ImportError, AttributeError) as error:
            print(error)
            return 1
        print(json.dumps(found))
        return 0


@contextmanager
def _postgres() -> Iterator[Callable[[], dict[str, str]]]:
    """A PostgreSQL; what is given makes an empty database, and says where it is as environment variables do."""
    from tests.support.postgres import Postgres

    with TemporaryDirectory(prefix="ps-pg-", dir="/tmp") as folder, Postgres(Path(folder) / "data") as server:
        yield lambda: {"PENSTOCK_DATABASE_URL": server.url(server.create_database(migrated=False))}
