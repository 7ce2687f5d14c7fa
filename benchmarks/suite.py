"""A benchmark of several parts: its options, its table, and the JSON object in its last line.

Each part runs in a process and a data folder of its own, which end with it: see `benchmarks.parts`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

from benchmarks.parts import GRACE_S, LIMIT_S, ended_by_signal, inside, measured
from benchmarks.report import Aim
from benchmarks.support import BenchmarkError
from pipeline.engine.logs import configure

Figures = dict[str, Any]
"""What a part found: the keys of aims, and other facts."""


class Part(NamedTuple):
    """What is measured together. `function`: module and function in this package; `quick`: its arguments for a try."""

    function: str
    keys: tuple[str, ...]
    deadline_s: float
    quick: dict[str, Any]
    by_default: bool = True
    """False: it is measured only when it is named, since it would take too long beside the others."""


@dataclass(frozen=True)
class Suite:
    """`aims`: the keys of the last line, in its order; null for what was not measured."""

    module: str
    what: str
    aims: Mapping[str, Aim]
    parts: Mapping[str, Part]
    postgres: bool = False
    """Whether `--postgres` may be given: each part then has an empty database of a PostgreSQL of our own."""

    def main(self) -> int:
        """Exit codes: 0 all was measured, whether or not it meets its aim; 1 something could not be measured."""
        arguments = self._arguments()
        if arguments.part:
            inside(lambda: self._inside(arguments.part, quick=arguments.quick))
        return ended_by_signal(lambda: self._all(arguments))

    def _all(self, arguments: argparse.Namespace) -> int:
        begun = time.monotonic()
        only = set(arguments.only)
        wanted = [name for name, part in self.parts.items() if ({name, *part.keys} & only if only else part.by_default)]
        figures: Figures = {}
        complete = True
        print(f"{'':52}{'FOUND':>18}  AIM\n{'-' * 88}", flush=True)
        with _postgres() if arguments.postgres else nullcontext(dict) as database:
            for name in wanted:
                left_s = arguments.limit_s - (time.monotonic() - begun) - GRACE_S
                deadline_s = min(self.parts[name].deadline_s, left_s)
                try:
                    line = measured(self.module, name, deadline_s, quick=arguments.quick, env=database())
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

    def _lines(self, found: Figures) -> list[str]:
        """Figures with their aims, then the facts behind them."""
        rows = []
        for key, aim in self.aims.items():
            if key in found:
                value, met = f"{found[key]:g} {aim.unit}".rstrip(), "met" if aim.met(found[key]) else "NOT MET"
                rows += [f"{key:30}{value:>40}  {aim!s:12} {met}", f"  {aim.what}"]
        return rows + [f"    {what:48}{value!s:>18}" for what, value in found.items() if what not in self.aims]

    def _arguments(self) -> argparse.Namespace:
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=self.what)
        parser.set_defaults(postgres=False)
        if self.postgres:
            parser.add_argument("--postgres", action="store_true", help="on PostgreSQL instead of SQLite")
        parser.add_argument("--quick", action="store_true", help="less of everything: a try, not a measurement")
        parser.add_argument(
            "--only", action="append", choices=[*self.parts, *self.aims], metavar="NAME", default=[],
            help=f"a part ({', '.join(self.parts)}) or a key of the last line; may be repeated",
        )  # fmt: skip
        limit = "when to end, measured or not (%(default)g s)"
        parser.add_argument("--limit-s", type=float, default=LIMIT_S, help=limit)
        parser.add_argument("--part", choices=list(self.parts), help=argparse.SUPPRESS)
        return parser.parse_args()

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
