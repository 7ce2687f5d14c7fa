"""`python -m tests.simulation [--seeds N] [--first N] [--seed N] [--only work|gateway] [--processes N]`: what
`make simulate` runs."""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.simulation.gateway.session import Session as GatewaySession
from tests.simulation.seeds import Opener, first_seed, run_part
from tests.simulation.session import Session


@contextmanager
def _databases(kind: str, count: int) -> Iterator[list[str]]:
    """Yield the URLs of databases of this kind."""
    if kind == "sqlite":
        yield [""] * count
        return
    from tests.support.postgres import Postgres

    with TemporaryDirectory(prefix="sim") as folder:
        Path(folder).chmod(0o755)  # the server runs as another user
        with Postgres(Path(folder) / "postgres") as server:
            yield [server.url(server.create_database(migrated=False)) for _ in range(count)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulate")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=first_seed())
    parser.add_argument("--seed", type=int)
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first that fails")
    parser.add_argument("--only", choices=["work", "gateway"], help="one of the two fleets")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many share the seeds")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    options = parser.parse_args()
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    parts = [seeds[at :: options.processes] for at in range(min(options.processes, len(seeds)))]
    failed = 0
    if options.only != "gateway":
        with _databases(options.database, len(parts)) as urls:
            failed += _run("work", [partial(Session, url) for url in urls], parts, go_on=options.go_on)
    if options.only != "work" and (options.go_on or not failed):
        failed += _run("gateway", [GatewaySession] * len(parts), parts, go_on=options.go_on)
    return 1 if failed else 0


def _run(name: str, openers: Sequence[Opener], parts: Sequence[Sequence[int]], *, go_on: bool) -> int:
    """Run the seeds, and return how many failed."""
    started = time.monotonic()
    cores = cycle(sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0])
    work = [(name, opener, seeds, go_on, next(cores)) for opener, seeds in zip(openers, parts, strict=True)]
    if len(work) == 1:
        done = [run_part(*work[0])]
    else:
        with ProcessPoolExecutor(len(work), get_context("spawn")) as pool:
            done = [future.result() for future in [pool.submit(run_part, *part) for part in work]]
    count, failed, steps = (sum(each) for each in zip(*done, strict=True))
    took = time.monotonic() - started
    print(f"{name}: {count} seeds, {failed} failed, {steps} steps, {took:.1f} s, {count / took:.1f} seeds/s")
    return failed


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    sys.exit(main())
