"""Runs many seeds, and reports those that fail."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime

from tests.simulation.gateway.session import Session as GatewaySession
from tests.simulation.session import Session
from tests.simulation.world import World

Opener = Callable[[], AbstractContextManager[Session | GatewaySession]]
SHOWN = 30
TOLD = 1000
"""After how many seeds a run reports its progress."""


def report(world: World, command: str = "make simulate") -> str:
    """Describe a failure: the command to repeat it, the broken invariant, and the last steps."""
    lines = [f"{command} SEED={world.seed}", f"{type(world.failure).__name__}: {world.failure}", f"{world.faults}"]
    for now_us, actor, event, fields in list(world.trace)[-SHOWN:]:
        values = " ".join(f"{name}={value}" for name, value in fields.items())
        lines.append(f"{now_us / 1e6:10.3f} s  {actor:<14} {event} {values}")
    return "\n".join(lines)


def first_seed() -> int:
    """Return the first seed of today. Each day tries other seeds."""
    return datetime.now(UTC).toordinal() * 100_000


def run_part(name: str, opener: Opener, seeds: Sequence[int], go_on: bool, core: int) -> tuple[int, int, int]:
    """Run seeds on one core. Returns (how many ran, how many failed, their steps)."""
    count, failed, steps = 0, 0, 0
    if hasattr(os, "sched_setaffinity"):  # it and its redis-server take turns: waking another core takes longer
        os.sched_setaffinity(0, {core})
    with opener() as session:
        for seed in seeds:
            world = session.run(seed)
            count, steps = count + 1, steps + world.steps
            if count % TOLD == 0:
                sys.stderr.write(f"{name}: {count} seeds, {failed} failed\n")
            if world.failure is not None:
                failed += 1
                print(report(world, f"make simulate ARGS='--only {name}'"), flush=True)  # noqa: T201  # while others still run
                if not go_on:
                    break
    return count, failed, steps
