"""An event loop on virtual time that knows the process of each step. Dead processes take no further steps."""

import asyncio
import contextvars
import math
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.gateway.faults import GatewayFaults
from tests.simulation.world import Process, Violation, World

_ACTING: contextvars.ContextVar["Host | None"] = contextvars.ContextVar("acting", default=None)
_BEGIN_S = 1000.0
"""The start of processes' clocks. Some code reads 0 as `never`."""


@dataclass(eq=False)
class Host(Process):
    """A process of the simulated fleet."""

    frozen_until_s: float = 0.0
    """Until when the process takes no step (SIGSTOP)."""
    context: contextvars.Context = field(default_factory=contextvars.copy_context)

    def __post_init__(self) -> None:
        self.context.run(_ACTING.set, self)


class LoopWorld(World):
    """The simulated world, whose virtual time is that of an event loop."""

    faults: GatewayFaults

    def __init__(self, seed: int, faults: GatewayFaults) -> None:
        super().__init__(seed, faults)
        self.loop = Loop(self)
        self.broken: asyncio.Future[None] = self.loop.create_future()

    def note(self, event: str, **fields: Any) -> None:
        acting = _ACTING.get()
        self.steps += 1
        self.trace.append((self.now_us, acting.id if acting else "world", event, fields))

    def fail(self, why: BaseException | str) -> None:
        """Record a broken invariant, which ends the seed. Raises nothing, because the acting code might swallow it."""
        self.failure = self.failure or (Violation(why) if isinstance(why, str) else why)
        if not self.broken.done():
            self.broken.set_result(None)

    def start(self, host: Host, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a process, which owns all tasks that it starts."""
        return self.loop.create_task(work, context=host.context)

    def later(self, delay_s: float, act: Callable[[], object]) -> None:
        """Call a function after a delay, even if processes die before."""
        self.loop.call_later(delay_s, act, context=contextvars.Context())

    def regularly(self, mean_s: float, act: Callable[[], object]) -> None:
        """Repeat a function at random times until the faults end. 0: never."""

        def again() -> None:
            if not self.calm:
                act()
                self.later(self.rng.expovariate(1 / mean_s), again)

        if mean_s:
            self.later(self.rng.expovariate(1 / mean_s), again)

    def finish(self) -> None:
        """Cancel all remaining tasks, and close the loop."""
        self.loop.ending = True
        for callback, args, context in self.loop.dropped:
            self.loop.call_soon(callback, *args, context=context)
        for _ in range(200):
            self._go_on()
            pending = [task for task in self.loop.tasks if not task.done()]
            if not pending:
                break
            for task in pending:
                task.cancel()
        for task in self.loop.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.loop.close()

    def _go_on(self) -> None:
        """Run until all tasks wait, because asyncio warns of coroutines that never started."""
        self.loop.run_until_complete(asyncio.sleep(0))
        while self.loop._ready:  # type: ignore[attr-defined]
            self.loop.run_until_complete(asyncio.sleep(0))


class _Selector(selectors.SelectSelector):
    """Moves the clock instead of waiting, since no event arrives from outside."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("all tasks wait for one another")
        if timeout > 0:
            self._world.now_us += max(1, math.ceil(timeout * 1e6))
        return []


class Loop(asyncio.SelectorEventLoop):
    """Drops the steps of dead processes, and delays those of stalled ones."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ending = False
        self.tasks: list[asyncio.Task[Any]] = []
        """All tasks, to keep those of dead processes from garbage collection."""
        self.dropped: list[tuple[Any, tuple[Any, ...], Any]] = []
        """Steps of dead processes, which the loop takes at the end, so that each task ends."""
        super().__init__(_Selector(world))
        self.set_task_factory(self._make)

    def _make(self, loop: Any, work: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **options)
        self.tasks.append(task)
        return task

    def time(self) -> float:
        return _BEGIN_S + self._world.now_us / 1e6

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        host = context.get(_ACTING) if context is not None else _ACTING.get()
        if host is not None and not self.ending:
            if not host.alive:
                self.dropped.append((callback, args, context))
                return asyncio.Handle(callback, args, self, context)
            if host.frozen_until_s > self.time():
                # These steps are due at the same time, so a small margin keeps their order in the heap.
                host.frozen_until_s += 1e-6
                return self.call_at(host.frozen_until_s, callback, *args, context=context)
        return super().call_soon(callback, *args, context=context)


def acting() -> Host | None:
    """The acting process. None: the world."""
    return _ACTING.get()
