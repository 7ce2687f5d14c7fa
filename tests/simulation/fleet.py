"""A fleet: workers, beat and clients over one database, one Redis and one provider, and their faults."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any

from redis import RedisError
from sqlalchemy import insert
from sqlalchemy.exc import OperationalError

from pipeline.engine.accounts import OverCap
from pipeline.engine.breaker import Breaker
from pipeline.engine.claims import Owner
from pipeline.engine.errors import UnitError
from pipeline.engine.gate import FOR_EVER, Gate, Window
from pipeline.engine.launch import Places, Wanted, launch
from pipeline.settings import Settings
from tasks import maintenance
from tasks.flow import FlowTasks, Messages, send
from tests.simulation import flow, provider
from tests.simulation.bodies import Bodies
from tests.simulation.broker import Broker, Message
from tests.simulation.flow import CPU, SCOPES, UNITS, ScopeState, State
from tests.simulation.invariants import LOST_SLOTS_S, Observer
from tests.simulation.spending import AGAIN_S, Spending
from tests.simulation.worker import QUEUES, Worker
from tests.simulation.world import Process, World

SWEEP_S = 5.0
SLOT_TTL_S = 60.0
_REPLICATE = "for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('COPY', key, key, 'DB', 1) end"


class Signature:
    """An unsent message, like Celery's signature."""

    def __init__(self, fleet: "Fleet", *messages: Message) -> None:
        self._fleet, self.messages = fleet, messages

    def set(self, *, chord: Any = None, **_: Any) -> "Signature":
        """Take over a request's part in its chord: in the simulation, the faults of the message."""
        for message in self.messages:
            message.touched = message.touched or bool(chord and chord.touched)
        return self

    def apply_async(self, countdown: float = 0) -> None:
        fleet = self._fleet
        if countdown:
            fleet.world.at(countdown, lambda: fleet.by_client(self.apply_async))
            return
        for message in self.messages:
            fleet.broker.publish(message)


class Tasks(FlowTasks):
    """The real launches, wake-ups and sweeps of a flow; its messages go to the simulated broker."""

    fleet: "Fleet"

    def __post_init__(self) -> None:
        """Stands for a call outside of Celery tasks."""

    @property
    def wake(self) -> Any:
        fleet = self.fleet
        return Signature(fleet, Message(fleet.name("wake"), "control", fleet.bodies.wake, ()))

    def _launch_portion(self, context: Any, scopes: Sequence[str], send: Any) -> int:
        fleet, running = self.fleet, self.fleet.world.running
        fleet.launching[running] = fleet.world.number()
        try:
            return super()._launch_portion(context, scopes, send)
        finally:
            fleet.launching.pop(running, None)


@dataclass(frozen=True)
class Shape:
    """The size and the work of a fleet."""

    scopes: int
    units: int
    places: int
    workers: int
    slots: int
    faults_s: float
    limit: Window
    concurrency: int
    stays_closed: bool = False
    """The gate stays closed after the faults. All work that does not wait for the gate must settle nevertheless."""
    times: int = 1
    """The factor by which scopes and workers are multiplied."""
    busy: bool = False
    """After the faults a queue is never empty, and the fleet must find messages that were lost behind others."""


class Fleet:
    """The fleet of one seed."""

    redis_errors = (RedisError,)

    def __init__(self, world: World, redis: Any, db: Any, shape: Shape, scan: Callable[[str], Iterable[Any]]) -> None:
        self.world, self.redis, self.db, self.shape, self.scan = world, redis, db, shape, scan
        redis.world = db.world = world
        redis.after_gate, redis.spoke = self._tokens, self.spoke
        self.provider = provider.Provider(world)
        self.call_ids = count()
        self.broker = Broker(world, redis)
        self.observer = Observer(self)
        db.after_commit = self.observer.committed
        db.send = lambda dispatch: send(self.context, dispatch)
        self.bodies = Bodies(self)
        self.context: Any = SimpleNamespace(
            db=db,
            redis=redis,
            online=True,
            made={},
            settings=Settings.model_construct(),
            gates=SimpleNamespace(queues=(provider.QUEUE,)),
        )
        db.go_by(self.context.settings)
        self.launching: dict[Any, int] = {}
        self.queue_of: dict[str, str] = {}
        self.kinds: dict[int, str] = {}
        self.expected = shape.scopes * shape.times
        self.spending = Spending(self)
        self.places = Places(redis)
        self.gate = Gate(redis, provider.QUEUE, f"{provider.NAME}:vision", SLOT_TTL_S)
        self.breaker = Breaker(redis, f"{provider.NAME}:vision", provider.POLICY)
        # Real processes have a breaker each. Here they share one, and may stall while they hold its lock.
        self.breaker._breaker._lock = nullcontext()  # type: ignore[assignment]
        self.tasks = Tasks(flow.FLOW, messages=self._messages)
        object.__setattr__(self.tasks, "fleet", self)
        self.clocks: dict[str, float] = {}
        self.workers: list[Worker] = []
        self._closed = False
        self.flushes = 0
        """How often Redis lost data."""
        self._replicated_ms: int | None = None
        """The time of the last write that the replica has, once it is cut off."""
        world.on_kill = self._killed
        self.broker.on_publish = self.observer.published
        self.provider.on_refused_key = self.observer.key_refused
        self.broker.held_up = self.held_up
        self.broker.on_arrival = self._arrival

    # Names and signatures

    def name(self, prefix: str) -> str:
        return f"{prefix}{self.world.number()}"

    def clock_of(self, host: str) -> float:
        if not self.world.faults.wrong_clocks:
            return 0.0
        return self.clocks.setdefault(host, self.world.rng.choice((-3600.0, -5.0, 0.0, 0.0, 3600.0)))

    def chained(self, scope_id: str) -> bool:
        """Whether the task before a scope's merge sends the merge, as a chord sends its body."""
        return int(scope_id[1:]) % 2 == 0

    def owner(self, task: Any) -> Owner:
        process = self._acting()
        worker = process.worker
        return Owner(process.id, task.request.id, worker.knows_ended)

    def holder_of(self, request_id: str) -> str:
        return f"{self._acting().worker.main.id}/{request_id}"

    def _acting(self) -> Process:
        assert self.world.acting is not None
        return self.world.acting

    def signature(
        self, body: Any, scope: str, queue: str, number: int, scope_id: str, batch: int = 1, priority: int = 0
    ) -> Signature:
        message = Message(
            self.name("m"), queue, body, (scope_id, queue, number, batch), (scope, queue, number), priority
        )
        return Signature(self, message)

    @property
    def merge_priority(self) -> int:
        """Less urgent than pages, but where those never end: a queue is read by strict priority."""
        return 0 if self.shape.busy else 3

    def other_signature(self, body: Any, number: int) -> Signature:
        """Return a message of work that the invariants ignore."""
        return Signature(self, Message(self.name("busy"), CPU, body, (number,)))

    def _messages(self, context: Any, scopes: Sequence[str]) -> Iterable[Messages]:
        for group in flow.wanted(context, scopes, self.merge_priority):
            body = self.bodies.merge if group.queue == flow.MERGE else self.bodies.page
            scope_id = group.scope.partition(":")[2]

            def canvas(
                numbers: Sequence[int], group: Any = group, body: Any = body, scope_id: str = scope_id
            ) -> Signature:
                batch = [
                    self.signature(body, group.scope, group.queue, number, scope_id, 1, group.priority).messages[0]
                    for number in numbers
                ]
                return Signature(self, *batch)

            yield Messages(group, canvas)

    def as_chord(self, signature: Signature) -> Signature:
        """Send a chord's message, even if a sweep has sent the same message in the meantime."""
        for message in signature.messages:
            assert message.place
            message.touched = bool(self.broker.outstanding(*message.place[:2]))
        return signature

    def held_up(self) -> bool:
        """Whether the acting process has stalled, or Redis was emptied, since the process last called Redis."""
        spoke = self.world.running and self.world.running.spoke
        return spoke is not None and spoke != (self.world.now_us, self.flushes)

    def spoke(self) -> None:
        """Note that the acting process has called Redis."""
        if self.world.running is not None:
            self.world.running.spoke = (self.world.now_us, self.flushes)

    # Start

    def begin(self) -> None:
        """Start workers and beat, and let users submit scopes."""
        world, shape = self.world, self.shape
        self._configure()
        for number in range(shape.workers * shape.times):
            self.workers.append(self._worker(f"w{number}"))
        for number in range(self.expected):
            scope_id = f"s{number}"
            world.at(world.rng.uniform(0, shape.faults_s / 3), lambda scope_id=scope_id: self._submit(scope_id))
        world.at(SWEEP_S, self._beat)
        faults = world.faults
        world.every(faults.flush_every_s, self.flush)
        world.every(faults.full_every_s, self._fill)
        world.every(faults.gate_every_s, self._turn_gate)
        world.every(faults.limits_every_s, lambda: self._insist(self._change_limits))
        world.every(faults.fail_over_every_s, self._cut_off_replica)
        world.every(faults.kill_worker_every_s, lambda: self._some(lambda worker: world.kill(worker.main)))
        world.every(
            faults.kill_child_every_s, lambda: self._some(lambda worker: world.kill(world.rng.choice(worker.pool)))
        )
        world.every(faults.end_worker_every_s, lambda: self._some(lambda worker: worker.end()))
        world.every(faults.cut_every_s, lambda: self._some(lambda worker: worker.cut()))
        for why, happens in ((provider.OUTAGE, faults.outage), (provider.WRONG_KEY, faults.wrong_key)):
            if happens:
                world.at(world.rng.uniform(0, shape.faults_s / 2), lambda why=why: self._serve_nobody(why))
        world.at(shape.faults_s, self._calm)

    def _worker(self, name: str) -> Worker:
        threads = self.world.rng.random() < 0.4
        return Worker(self, name, self.shape.slots, threads=threads)

    def _some(self, act: Callable[[Worker], object]) -> None:
        living = [worker for worker in self.workers if worker.alive]
        if living:
            worker = self.world.rng.choice(living)
            self.world.note("fault", worker=worker.name)
            act(worker)

    def _calm(self) -> None:
        self.world.note("no faults any more")
        self.world.calm = True
        self._empty()
        self._serve_all()
        self.world.at(LOST_SLOTS_S, self.observer.no_slot_of_the_dead)
        if self._closed != self.shape.stays_closed:
            self._turn_gate()
        if self.shape.busy:
            self._keep_busy()

    def open_for_good(self) -> None:
        """Open the gate."""
        if self._closed:
            self._turn_gate()

    def _keep_busy(self) -> None:
        if self.observer.everything_settled():
            return
        places = self.shape.workers * self.shape.slots + 3
        endless = [Wanted("busy", CPU, places)]
        self.by_client(lambda: launch(self.places, endless, lambda _, numbers: self._endless(numbers)))
        self.world.at(SWEEP_S, self._keep_busy)

    def _endless(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.broker.publish(Message(self.name("busy"), CPU, self.bodies.endless, (number,)))

    def replace(self, worker: Worker) -> None:
        """Start another worker in the place of a dead one."""

        def birth() -> None:
            self.workers[self.workers.index(worker)] = replaced = self._worker(worker.name)
            replaced.look_soon()

        self.world.at(self.world.rng.uniform(1, 6), birth)

    def _killed(self, process: Process) -> None:
        if process.worker is not None:
            process.worker.child_died(process)

    def by_client(self, act: Callable[[], object]) -> None:
        """Run this function as a process of its own."""
        client = Process(self.name("client"), clock_s=self.clock_of("client"))
        self.world.spawn(client, lambda: self.trying(act))

    def as_stored(self, when: Any) -> str:
        """Convert a time to the database's form."""
        return when.strftime("%Y-%m-%d %H:%M:%S.%f")

    def trying(self, act: Callable[[], object]) -> None:
        """A process that gives up when a service stays away."""
        try:
            act()
        except (RedisError, OperationalError) as error:
            self.world.note("gives up", error=repr(error)[:100])

    def _submit(self, scope_id: str) -> None:
        rng, shape = self.world.rng, self.shape
        queue = rng.choice((provider.QUEUE, provider.QUEUE, CPU))
        units = rng.randint(1, shape.units)
        self.queue_of[scope_id] = queue
        kinds = rng.choices(("good", "flaky", "bad", "deadly"), (12, 3, 1, 1 if self.world.faults.kill else 0), k=units)
        if self.world.faults.poison and scope_id == "s0":
            kinds[0] = "poison"
        places = rng.randint(1, shape.places)
        scope = {
            "id": scope_id,
            "status": ScopeState.OPEN,
            "queue": queue,
            "places": places,
            "total": units,
            "done": 0,
            "failed": 0,
            "merged": 0,
            "attempts": 0,
        }
        first = int(scope_id[1:]) * 1000
        self.kinds |= {first + n: kind for n, kind in enumerate(kinds)}
        rows = [
            {"id": first + n, "scope_id": scope_id, "number": n, "status": State.OPEN, "kind": kind, "attempts": 0}
            for n, kind in enumerate(kinds)
        ]
        self._insist(lambda: self._store(scope, rows))

    def _store(self, scope: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        with self.db.transaction() as session:
            session.execute(insert(SCOPES), [scope])
            session.execute(insert(UNITS), rows)
            self.spending.admit(session, scope["id"], scope["queue"], len(rows))
        self.world.note("submitted", scope=scope["id"], queue=scope["queue"], units=len(rows), places=scope["places"])
        if self.chained(scope["id"]):
            first = Message(self.name("chain"), CPU, self.bodies.convert, (scope["id"],))
            self.by_client(Signature(self, first).apply_async)
        else:
            self.by_client(lambda: self.tasks.launch(scope["id"]))

    def rests(self) -> bool:
        """Whether all work is settled and no dead worker holds a slot: then no process reads the presence."""
        return self.world.calm and self.observer.everything_settled() and not self.gate.workers()

    def _beat(self) -> None:
        if self.rests():
            return
        self.by_client(maintenance.sweep)
        self.world.at(SWEEP_S, self._beat)

    # Faults

    def flush(self) -> None:
        """Empty Redis."""
        self.world.note("redis is emptied")
        self._replicated_ms = None
        self.redis.wire.call("FLUSHALL")
        self.broker.flushed()
        self.provider.emptied()
        self._lost_data()

    def _lost_data(self) -> None:
        self.flushes += 1
        self.observer.waiting.clear()
        self.observer.closed_since = None
        self.world.at(self.world.rng.uniform(0.1, 1.5), lambda: self._insist(self._configure))

    def _cut_off_replica(self) -> None:
        """Stop replication, some seconds before the master dies."""
        if self._replicated_ms is None and not self.broker.full:
            self.world.note("the replica is cut off")
            self._replicated_ms = self.world.now_ms
            self.redis.wire.call("EVAL", _REPLICATE, 0)
            self.world.at(self.world.rng.choice((0.05, 1, 4)) * self.world.rng.random(), self._fail_over)

    def _fail_over(self) -> None:
        """Let the replica take the place of Redis, without the last writes. All connections break."""
        if self._replicated_ms is None:
            return
        self.world.note("the replica takes over", since_ms=self._replicated_ms)
        self._empty()
        new_history = ("REPLICAOF", "127.0.0.1", 1), ("REPLICAOF", "NO", "ONE")
        for command in (("FLUSHDB",), ("SWAPDB", 0, 1), *new_history):
            self.redis.wire.call(*command)
        self.provider.emptied(self._replicated_ms)
        self._replicated_ms = None
        self._lost_data()
        self.broker.failed_over(QUEUES)
        for worker in self.workers:
            if worker.alive:
                worker.cut()
        self.broker.restore_left()

    def _serve_nobody(self, why: UnitError) -> None:
        """Make the provider refuse every call for a while."""
        world = self.world
        if self.provider.serves_nobody is None and not world.calm:
            world.note("provider serves nobody", why=str(why))
            self.provider.serves_nobody = why
            self.observer.serves_nobody_since = (world.now_s, self.flushes)
            world.at(world.rng.uniform(5, self.shape.faults_s), self._serve_all)

    def _serve_all(self) -> None:
        self.provider.serves_nobody = None

    def _fill(self) -> None:
        """Keep Redis at its memory limit for a while."""
        if not self.broker.full:
            self.world.note("redis is full")
            self.broker.full = True
            self.redis.wire.call("CONFIG", "SET", "maxmemory", 1)
            self.world.at(self.world.rng.uniform(0.5, 8), self._empty)

    def _empty(self) -> None:
        if self.broker.full:
            self.world.note("redis has room again")
            self.redis.wire.call("CONFIG", "SET", "maxmemory", 0)
            self.broker.full = False
            for worker in self.workers:
                worker.look_soon()

    def _insist(self, act: Callable[[], object]) -> None:
        """Call a function, and retry it while Redis or the database refuses."""
        try:
            act()
        except (RedisError, OperationalError):
            self.world.at(1, lambda: self._insist(act))
        except OverCap:
            self.world.note("over the cap")
            self.world.at(AGAIN_S, lambda: self._insist(act))

    def _configure(self) -> None:
        """Fill the gates from the database, as each worker does every second."""
        shape = self.shape
        self.provider.windows, self.provider.concurrency = [shape.limit], shape.concurrency
        self.gate.shared.configure([shape.limit], shape.concurrency, version=1, on_record=self.provider.on_record)
        self.gate.own.configure([], None, version=1)
        if self._closed:
            self.gate.own.close("operator", FOR_EVER)
            self.observer.closed_since = self.world.number()
        else:
            self.gate.own.reopen("operator")

    def _turn_gate(self) -> None:
        if self.broker.full:
            return
        self._closed = not self._closed
        self.world.note("gate", closed=self._closed)
        if self._closed:
            self.gate.own.close("operator", FOR_EVER)
            self.observer.closed_since = self.world.number()
        else:
            self.observer.closed_since = None
            self.gate.own.reopen("operator")
        for worker in self.workers:  # notify the whole fleet; workers that miss it find out by themselves
            if worker.alive and not self.world.chance(0.3):
                self.world.as_process(worker.main, lambda worker=worker: worker.consumer.follow_gate(provider.QUEUE))
        self._tokens()

    def _change_limits(self) -> None:
        """Change the windows of the settings, and change them back. The used amounts must stay."""
        limit, fleet = self.shape.limit, self.gate.shared
        self.world.note("limits change")
        other = [Window(limit.limit, limit.window_s), Window(limit.limit * 50, limit.window_s * 2)]
        fleet.configure(other, self.shape.concurrency, version=1, on_record=self.provider.on_record)
        fleet.configure([limit], self.shape.concurrency, version=1, on_record=self.provider.on_record)

    # What wakes workers

    def _arrival(self, message: Message) -> None:
        self.observer.arrived(message)
        for worker in self.workers:
            worker.look_soon()

    def _tokens(self) -> None:
        for worker in self.workers:
            worker.consumer.read_tokens()
