"""Task bodies of the simulated flow. They have the shape of every flow's tasks, and call the kernel's functions."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pipeline.engine import traces
from pipeline.engine import work as kernel
from pipeline.engine.breaker import BreakerState
from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.guarded_call import GuardedCall
from pipeline.engine.lanes import Batch, run_lane
from pipeline.engine.launch import Place
from pipeline.engine.transaction import Tx
from pipeline.engine.work import Changes, Outcome, Work
from tasks.flow import AtWork, at_work, expect, once
from tests.simulation import provider
from tests.simulation.flow import CPU, MERGE, MERGES, PAGES, ScopeState, key, stands

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet


class Bodies:
    """The tasks of one fleet."""

    def __init__(self, fleet: "Fleet") -> None:
        self.fleet, self.world = fleet, fleet.world
        self.page, self.merge, self.convert = once(self._page), once(self._merge), once(self._convert)

    def wake(self, _task: Any) -> None:
        self.fleet.tasks.tend()

    def endless(self, task: Any, number: int) -> None:
        """Another user's work, which lasts until everything is settled."""
        with at_work(task, Place("busy", CPU, number)) as place:
            self.world.sleep(0.5)
            if place is not None and not self.fleet.observer.everything_settled():
                place.requeue(self.fleet.other_signature(self.endless, number))

    def _convert(self, task: Any, scope_id: str) -> None:
        """A chain's message, which the flow replaces by the messages that the rows ask for."""
        self.fleet.tasks.replace(task, scope_id)

    def _page(self, task: Any, scope_id: str, queue: str, number: int, batch: int = 1) -> None:
        guarded = self._guarded(queue, task)
        try:
            with _at_work(self.fleet, task, Place(key(scope_id), queue, number), guarded) as place:
                if place is None:
                    return
                hop = _Hop(self.fleet, PAGES, scope_id, self.fleet.owner(task), guarded)
                lane = run_lane(
                    hop.exchange,
                    hop.perform,
                    lambda: True,
                    quantum_s=0 if guarded else 3,
                    batch=batch,
                    clock=lambda: self.world.now_s,
                )
                self._follow(scope_id, hop)
                if lane.more:
                    place.requeue(self.fleet.signature(self.page, key(scope_id), queue, number, scope_id, lane.batch))
        finally:
            if guarded is not None:
                guarded.leave()

    def _follow(self, scope_id: str, hop: "_Hop") -> None:
        """Send what follows a hop: a wake-up, and after the last unit the merge, by the chord or by a launch."""
        self.fleet.tasks.wake_in(hop.retry_in_s)
        if hop.ready and self.fleet.chained(scope_id):
            expect(Place(key(scope_id), MERGE, 0, self.fleet.merge_priority))
            priority = self.fleet.merge_priority
            signature = self.fleet.signature(self.merge, key(scope_id), MERGE, 0, scope_id, priority=priority)
            self.fleet.as_chord(signature).apply_async()
        elif hop.ready:
            self.fleet.tasks.launch(scope_id)

    def _merge(self, task: Any, scope_id: str, queue: str, number: int, _batch: int = 1) -> None:
        with _at_work(self.fleet, task, Place(key(scope_id), queue, number, self.fleet.merge_priority)) as place:
            if place is None:
                return
            hop = _Hop(self.fleet, MERGES, scope_id, self.fleet.owner(task), None)
            run_lane(hop.exchange, hop.perform, lambda: True, quantum_s=0, clock=lambda: self.world.now_s)

    def _guarded(self, queue: str, task: Any) -> GuardedCall | None:
        if queue != provider.QUEUE:
            return None
        fleet = self.fleet
        return GuardedCall(
            fleet.gate,
            fleet.breaker,
            fleet.holder_of(task.request.id),
            quota_reset=lambda now: now + timedelta(seconds=5),
            on_change=_ignore,
            cost_of=lambda *_: 0.0,
            on_cost=lambda _: None,
            answers=lambda: fleet.provider.serves_nobody is None,
        )


@contextmanager
def _at_work(fleet: "Fleet", task: Any, place: Place, guarded: GuardedCall | None = None) -> Iterator[AtWork | None]:
    message = task.request.chord
    with at_work(task, place, guarded=guarded) as work:
        is_late, message.taken_us = fleet.observer.is_late(message), None
        if work is not None and (message.touched or is_late):
            message.touched = fleet.broker.took_place(message) or message.touched
        try:
            yield work
        finally:
            message.leaving = True


def _ignore(_state: BreakerState | None) -> None:
    """The simulation does not follow the breaker."""


class _Hop:
    """Run one hop over the units of a scope: claim, perform, settle."""

    def __init__(self, fleet: "Fleet", work: Work, scope_id: str, owner: Owner, guarded: GuardedCall | None) -> None:
        self.fleet, self.world, self.work = fleet, fleet.world, work
        self._scope_id, self._owner, self._guarded = scope_id, owner, guarded
        self.retry_in_s: float | None = None
        self.ready = False
        self._calls: list[dict[str, Any]] = []
        """Return the records of answers that are not in the database yet."""

    def exchange(self, outcomes: Sequence[Outcome], want: int, untried: Sequence[Any]) -> Batch[Any]:
        """Settle, give back what an earlier delivery left, and claim: one transaction, safe to repeat."""
        work = self.work
        back = [Outcome(row, UnitError("not tried", kind=ErrorKind.CANCELLED)) for row in untried]

        def act(tx: Tx) -> tuple[list[Any], Changes, str, bool]:
            scope = work.lock(tx, self._scope_id)
            changes = kernel.settle(tx, work, scope, *outcomes, *back)
            traces.record_all(tx, self._calls)
            kernel.give_back_earlier(tx, work, scope, self._owner)
            rows = kernel.claim(tx, work, scope, self._owner, limit=want) if want else []
            return rows, changes, *stands(tx, work, self._scope_id)

        rows, changes, status, more = self.fleet.db.run(act)
        self._calls = []
        if changes.retry_in_s is not None:
            self.retry_in_s = min(changes.retry_in_s, self.retry_in_s or changes.retry_in_s)
        self.ready = bool(changes.done or changes.failed) and status == ScopeState.READY
        return Batch(rows, more)

    def perform(self, row: Any) -> Outcome:
        """Perform one unit."""
        world = self.world
        world.note("performs", unit=row.id, attempt=row.attempts)
        try:
            if self._guarded is not None:
                call_id = f"call {next(self.fleet.call_ids)}"
                self._guarded.call(lambda: self.fleet.provider.call(row.id, row.kind), lambda _answer: ("model", 1, 1))
                self._calls.append(
                    {
                        "call_id": call_id,
                        "flow": "sim",
                        "scope_id": self._scope_id,
                        "unit": str(row.id),
                        "capability": "vision",
                        "operation": "page",
                        "provider": provider.NAME,
                        "model": "model",
                        "status": "ok",
                        "created_at": self.fleet.db.now(),
                        "cost": self.fleet.spending.price,
                    }
                )
            else:
                self._compute(row)
        except UnitError as error:
            return Outcome(row, error)
        if world.chance(world.faults.freeze):
            world.note("is frozen", unit=row.id)
            world.sleep(world.rng.uniform(35, 80))
        return Outcome(row, values={"result": "done"} if self.work is PAGES else {})

    def _compute(self, row: Any) -> None:
        world = self.world
        world.sleep(world.rng.uniform(0.01, 1.0))
        kind = getattr(row, "kind", "good")
        if kind == "deadly" and world.acting and not world.calm:
            self.fleet.provider.started[row.id] += 1
            world.note("unit kills its process", unit=row.id)
            world.kill(world.acting)
            world.point("dead")
        if kind == "bad":
            raise UnitError("it is broken", kind=ErrorKind.PERMANENT)
        if kind == "flaky" and world.rng.random() < 0.5:
            raise UnitError("it failed for now", kind=ErrorKind.TRANSIENT)
