"""`python -m tests.simulation [--seeds N] [--first N] [--seed N] [--only work|gateway]`: what `make simulate` runs."""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.simulation.gateway.session import Session as GatewaySession
from tests.simulation.session import Session
from tests.simulation.world import World

SHOWN = 30


def report(world: World, command: str = "make simulate") -> str:
    """A failure: one line to run it again, what is wrong, and the last steps."""
    lines = [f"{command} SEED={world.seed}", f"{type(world.failure).__name__}: {world.failure}", f"{world.faults}"]
    for now_us, who, what, fields in list(world.trace)[-SHOWN:]:
        told = " ".join(f"{name}={value}" for name, value in fields.items())
        lines.append(f"{now_us / 1e6:10.3f} s  {who:<14} {what} {told}")
    return "\n".join(lines)


def first_seed() -> int:
    """Where today's seeds begin: each day tries others."""
    return datetime.now(UTC).toordinal() * 100_000


@contextmanager
def _database(kind: str) -> Iterator[str]:
    """URL of a database of this kind."""
    if kind == "sqlite":
        yield "sqlite://"
        return
    from tests.support.postgres import Postgres

    with TemporaryDirectory(prefix="sim") as folder:
        Path(folder).chmod(0o755)  # the server runs as another user
        with Postgres(Path(folder) / "postgres") as server:
            yield server.url(server.create_database(migrated=False))


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulate")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=first_seed())
    parser.add_argument("--seed", type=int)
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first that fails")
    parser.add_argument("--only", choices=["work", "gateway"], help="one of the two fleets")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    options = parser.parse_args()
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    failed = 0
    if options.only != "gateway":
        with _database(options.database) as url, Session(url) as session:
            failed += _run("work", session, seeds, go_on=options.go_on)
    if options.only != "work" and (options.go_on or not failed):
        with GatewaySession() as gateways:
            failed += _run("gateway", gateways, seeds, go_on=options.go_on)
    return 1 if failed else 0


def _run(name: str, session: Session | GatewaySession, seeds: Sequence[int], *, go_on: bool) -> int:
    """How many seeds failed."""
    begun, count, failed, steps = time.monotonic(), 0, 0, 0
    for seed in seeds:
        world = session.run(seed)
        count, steps = count + 1, steps + world.steps
        if world.failure is not None:
            failed += 1
            print(report(world, f"make simulate ARGS='--only {name}'"), flush=True)
            if not go_on:
                break
    took = time.monotonic() - begun
    print(f"{name}: {count} seeds, {failed} failed, {steps} steps, {took:.1f} s, {count / took:.1f} seeds/s")
    return failed


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    sys.exit(main())
