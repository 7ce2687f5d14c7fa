"""Invariants of rows, messages and calls, after each step and at the end."""

from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from pipeline.engine.launch import Place
from pipeline.engine.retry import MAX_RELEASES
from tests.simulation import provider
from tests.simulation.broker import Message
from tests.simulation.flow import MAX_ATTEMPTS, MERGE, PAGES, ScopeState, State
from tests.simulation.worker import QUEUES
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet

UNIT_COLUMNS = "id, scope_id, status, claim_id, attempts, lease_until, releases, next_run_at, error"
SCOPE_COLUMNS = "id, total, status, claim_id, attempts, lease_until, done, failed, merged, places"
NOBODY: tuple[Any, Any] = (None, None)
ENDED = {State.DONE, State.FAILED}
MOST_REFUSED, MOST_REFUSED_A_SLOT = 15, 3
"""How often a gate may refuse a worker in a second: workers compute their waits, and tokens announce room."""
MOST_POISON = 2 * (MAX_RELEASES + MAX_ATTEMPTS)
"""The most refusals of a unit that is at fault itself, more than the kernel's own limit: refusals while no other unit
succeeds do not count, and lost workers do not record theirs."""
LOST_SLOTS_S = 50
"""The time after a worker's death until sweeps free its slots at a provider, unless a fault delays the sweeps."""
STALLS_S = 0.1
"""A worker that does not stall takes a message's place in a small part of this time."""
EMPTY_S = 5
"""As `EMPTY_MS` of place_lib.lua."""
MOST_OVERTAKEN = 5
"""How many later arrivals may pass a message at a gate: workers that are refused at once return theirs in any order."""


class Observer:
    """Checks the invariants of one fleet."""

    def __init__(self, fleet: "Fleet") -> None:
        self.fleet, self.world = fleet, fleet.world
        self.units: dict[int, tuple[Any, ...]] = {}
        self.scopes: dict[str, tuple[Any, ...]] = {}
        self.holders: dict[str, Any] = {}
        """By claim: the coroutine that took it, and its process."""
        self.refunds: Counter[Any] = Counter()
        self.given_back: Counter[Any] = Counter()
        self.waiting: dict[str, Message] = {}
        """Messages before the gate, in the order of arrival."""
        self.closed_since: int | None = None
        self.most_overtaken = 0
        self.refusals: dict[Any, deque[int]] = {}
        """By worker: the times of recent refusals, ms."""
        self.most_refused = 0
        self.serves_nobody_since = (0.0, 0)
        """When the provider began to refuse every call, and how often Redis had been emptied by then."""

    # After each commit

    def committed(self) -> None:
        """Compare rows with their state before this transaction."""
        units = {row[0]: row for row in self.fleet.scan(f"SELECT {UNIT_COLUMNS} FROM sim_units")}
        scopes = {row[0]: row for row in self.fleet.scan(f"SELECT {SCOPE_COLUMNS} FROM sim_scopes")}
        for name, row in units.items():
            if (before := self.units.get(name)) != row and before is not None:
                self._changed(name, before, row)
                if before[2] in ENDED and before[2] != row[2]:
                    raise Violation(f"unit {name} was {before[2]} and is {row[2]}")
                self._unit_changed(before, row, units)
        for key, scope in scopes.items():
            if (earlier := self.scopes.get(key)) != scope and earlier is not None:
                self._changed(key, earlier, scope)
        if scopes != self.scopes or units != self.units:
            self._count(units, scopes)
        self.units, self.scopes = units, scopes
        self.fleet.spending.must_hold()

    def _changed(self, name: Any, before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
        world = self.world
        me = world.running
        old, new = before[3], after[3]
        if old and old != new:
            holder, process = self.holders.get(old, NOBODY)
            lives = holder is not None and not holder.ended and process.alive
            if lives and holder is not me and str(before[5]) >= self.fleet.as_stored(world.now()):
                raise Violation(f"{name} was taken from {process.id}, which lives and works on it: {before} {after}")
            if after[2] not in ENDED:
                self.given_back[name] += 1
            if after[4] < before[4]:
                if holder is not me and not world.acting.id.endswith(":0:end"):
                    raise Violation(f"the attempt of {name}, whose worker was lost, does not count")
                self.refunds[name] += before[4] - after[4]
        if new and old != new:
            self.holders[new] = (me, world.acting)
            if after[4] != before[4] + 1 and not (old and after[4] == before[4]):
                raise Violation(f"a claim of {name} left its attempts at {after[4]}")
        if after[4] > MAX_ATTEMPTS:
            raise Violation(f"{name} has {after[4]} attempts, {MAX_ATTEMPTS} are allowed")

    def _unit_changed(self, before: tuple[Any, ...], after: tuple[Any, ...], units: dict[int, tuple[Any, ...]]) -> None:
        name, scope, status, claim, _, _, releases, _, error = after
        is_good = self.fleet.kinds[name] == "good"
        if status == State.FAILED and before[2] != status and is_good and not error.startswith(PAGES.lost):
            raise Violation(f"unit {name}, which is not at fault, failed: {error}")
        if claim and not before[3]:
            for other in units.values():
                is_free = other[2] == State.OPEN and not other[3] and other[7] is None
                if other[1] == scope and is_free and other[6] < releases and other == self.units.get(other[0]):
                    raise Violation(f"unit {name}, released {releases} times, came before {other[0]}: {other[6]} times")

    def _count(self, units: dict[int, tuple[Any, ...]], scopes: dict[str, tuple[Any, ...]]) -> None:
        ended = Counter((row[1], row[2]) for row in units.values())
        for key, (_, total, status, _, _, _, done, failed, merged, _) in scopes.items():
            if (done, failed) != (ended[key, State.DONE], ended[key, State.FAILED]):
                raise Violation(f"scope {key} counts {done} done, {failed} failed; its units say otherwise")
            if (status == ScopeState.OPEN) != (done + failed < total):
                raise Violation(f"scope {key} is {status} with {done} + {failed} of {total}")
            if merged > 1 or (merged == 1) != (status == ScopeState.DONE):
                raise Violation(f"scope {key} was merged {merged} times and is {status}")
        for unit, tries in self.fleet.provider.started.items():
            if tries > MAX_ATTEMPTS + self.refunds[unit]:
                raise Violation(f"unit {unit} was tried {tries} times, {MAX_ATTEMPTS} are allowed")
        if self.fleet.provider.refused_poison > MOST_POISON:
            raise Violation(f"a unit that the provider refuses each time was tried {MOST_POISON + 1} times")
        for unit, paid in self.fleet.provider.paid.items():
            if paid > 1 + self.given_back[unit]:
                raise Violation(f"unit {unit} was paid {paid} times")

    # Messages

    def published(self, message: Message) -> None:
        """Check a sent message."""
        if message.place is None:
            return
        scope, queue, _ = message.place
        row = self.scopes.get(scope.partition(":")[2])
        most = row[9] if row and queue != MERGE else 1
        competing = [
            other for other in self.fleet.broker.outstanding(scope, queue) if not (other.touched or self.is_late(other))
        ]
        if len(competing) > most:
            listed = ", ".join(f"{other.id} ({other.place[2]})" for other in competing if other.place)
            raise Violation(f"{scope} has {len(competing)} messages in {queue} for {most} places: {listed}")
        since = self.fleet.launching.get(self.world.running)
        was_closed = since is not None and self.closed_since is not None and self.closed_since < since
        if queue == provider.QUEUE and was_closed and not self._refuses():
            raise Violation(f"{message.id} was sent to a closed gate")

    def is_late(self, message: Message) -> bool:
        """Whether a message may count as lost, though a worker has it: the worker stalls before it takes its place, or
        the message waited long, and was the last one of its queue."""
        now_us = self.world.now_us
        waited_long = now_us - message.waits_since_us > EMPTY_S * 1_000_000
        return message.taken_us is not None and (waited_long or now_us - message.taken_us > STALLS_S * 1_000_000)

    def _refuses(self) -> bool:
        """Whether faults of Redis may keep a sender from learning that the gate is closed."""
        faults = self.world.faults
        return bool(faults.redis_error or faults.full_every_s)

    def arrived(self, message: Message) -> None:
        """Note a message that waits at the gate."""
        if message.queue == provider.QUEUE:
            self.waiting[message.id] = message

    def admitted(self, message: Message) -> None:
        """Check a message that passed its gate."""
        if message.queue != provider.QUEUE:
            return
        self.waiting.pop(message.id, None)
        if self.world.faults.wrong_clocks:
            return  # the senders' clocks determine their order
        for other in self.waiting.values():
            if other.arrival < message.arrival and not other.touched and not message.touched:
                other.overtaken += 1
                self.most_overtaken = max(self.most_overtaken, other.overtaken)
                if other.overtaken > MOST_OVERTAKEN:
                    raise Violation(f"{other.overtaken} messages that came later passed {other.id} at the gate")

    def refused(self, worker: Any) -> None:
        """Count a gate's refusal of a worker."""
        when = self.refusals.setdefault(worker, deque())
        when.append(self.world.now_ms)
        while when[0] < self.world.now_ms - 1000:
            when.popleft()
        self.most_refused = max(self.most_refused, len(when))
        if len(when) > max(MOST_REFUSED, MOST_REFUSED_A_SLOT * worker.slots):
            raise Violation(f"{worker.name} asked a gate {len(when)} times in a second in vain")

    # At the provider

    def key_refused(self) -> None:
        """The provider refused a call's key. The first reply closes the gate, and later ones are those of probes."""
        fleet, shape = self.fleet, self.fleet.shape
        if self._refuses():
            return
        since_s, flushes = self.serves_nobody_since
        probes = (self.world.now_s - since_s) / provider.POLICY.cool_down_s
        at_once = min(shape.concurrency, shape.workers * shape.times * shape.slots)
        most = 2 * at_once * (1 + fleet.flushes - flushes) + probes
        if fleet.provider.refused_keys > most:
            raise Violation(f"{fleet.provider.refused_keys} calls with a refused key, {at_once} at once are allowed")

    def no_slot_of_the_dead(self) -> None:
        """Check that workers that died long enough ago hold nothing at the gate."""
        living = {worker.main.id for worker in self.fleet.workers if worker.alive}
        if dead_workers := self.fleet.gate.workers() - living:
            raise Violation(f"{LOST_SLOTS_S} s after they died, {sorted(dead_workers)} have slots at the gate")

    # When a message or a worker ends

    def holds_nothing(self, coroutine: Any) -> None:
        """Check that a completed message has settled its claims."""
        claims = {claim for claim, (holder, _) in self.holders.items() if holder is coroutine}
        if claimed := [row[0] for row in (*self.units.values(), *self.scopes.values()) if row[3] in claims]:
            raise Violation(f"its message is done, and {claimed} are still claimed by it")

    def given_back_all(self, processes: set[str]) -> None:
        """Check that a stopped worker holds nothing."""
        claims = {claim for claim, (_, process) in self.holders.items() if process.id in processes}
        if claimed := [row[0] for row in (*self.units.values(), *self.scopes.values()) if row[3] in claims]:
            raise Violation(f"a worker has ended, and {claimed} are still claimed by it")

    # The end

    def _open(self, *, but_gated: bool) -> list[tuple[Any, ...]]:
        return [
            row[:3]
            for row in self.scopes.values()
            if row[2] not in {ScopeState.DONE, ScopeState.FAILED}
            and not (but_gated and row[2] == ScopeState.OPEN and self.fleet.queue_of[row[0]] == provider.QUEUE)
        ]

    def everything_settled(self, *, but_gated: bool = False) -> bool:
        """Whether all scopes have ended. `but_gated`: ignore scopes that wait for the gate."""
        return len(self.scopes) == self.fleet.expected and not self._open(but_gated=but_gated)

    def must_be_settled(self, after_s: float, *, but_gated: bool = False) -> None:
        """Raise if a scope has not ended this long after the last fault."""
        if open_ := self._open(but_gated=but_gated):
            raise Violation(f"not settled {after_s:.0f} s after the last fault: {open_}")

    def nothing_left(self) -> None:
        """Check that no place, reservation or message is left after all work is done."""
        fleet = self.fleet
        state = fleet.gate.inspect()
        if state.queue.in_flight or state.queue.reserved:
            raise Violation(f"the gate has {state.queue.in_flight} slots and {state.queue.reserved} reservations left")
        if messages := fleet.broker.depth(QUEUES):
            raise Violation(f"{messages} messages are left")
        for unit, booked in self.fleet.scan("SELECT unit, COUNT(*) FROM ai_calls GROUP BY unit"):
            if booked > (paid := fleet.provider.paid[int(unit)]):
                raise Violation(f"unit {unit} was paid {paid} times and booked {booked} times")
        self.fleet.spending.nothing_unpaid()
        for key, row in self.scopes.items():
            for number in range(row[9]):
                queue = fleet.queue_of[key]
                if other := fleet.places.begin(Place(f"sim:{key}", queue, number), "nobody/nothing", 1):
                    raise Violation(f"place {number} of {key} in {queue} is still held by {other}")


__all__ = ["Observer"]
