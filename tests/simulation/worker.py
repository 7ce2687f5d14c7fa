"""A worker: a main process with the real gate-aware consumer and its presence, and a pool."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore
from celery.worker.consumer.consumer import Consumer
from redis import RedisError
from sqlalchemy.exc import OperationalError

from pipeline.engine.presence import Presence
from tasks.celery_internals.consumer import _PassedOn
from tasks.consumer import WAKE_QUEUE, GateConsumer
from tests.simulation import provider
from tests.simulation.broker import UNACKED, UNACKED_INDEX, Delivery, list_of
from tests.simulation.flow import CPU, FLOW, MERGE
from tests.simulation.world import Killed, Process

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet

QUEUES = (provider.QUEUE, CPU, MERGE, "control")
PRESENCE_S, PRESENCE_TTL_S = 3.0, 15.0


class Request:
    """Celery's request of a message that a process works on."""

    def __init__(self, delivery: Delivery) -> None:
        self.id = delivery.message.id
        self.delivery_info = {"routing_key": delivery.message.queue}
        self.message = SimpleNamespace(
            delivery_tag=delivery.tag,
            delivery_info=self.delivery_info,
            _raw=delivery.raw,
        )
        self.acknowledged = False
        self.chord = delivery.message
        self.group = self.group_index = self.chain = self.callbacks = None

    def update(self, **values: Any) -> None:
        vars(self).update(values)


def _replace(signature: Any) -> None:
    """As `Task.replace`."""
    signature.apply_async()
    raise Ignore


class Worker:
    """One worker of the fleet. `threads`: its pool is of threads, so that it is one process."""

    def __init__(self, fleet: "Fleet", name: str, slots: int, *, threads: bool) -> None:
        self.fleet, self.world, self.name, self.slots = fleet, fleet.world, name, slots
        self.clock_s = fleet.clock_of(name)
        self._pids = 0
        self.nonce = f"n{self.world.number()}"
        self.main = self._process()
        self.pool = [self.main] if threads else [self._process() for _ in range(slots)]
        self.threads = threads
        self.busy: dict[str, Process] = {}
        """The processes at work, by delivery."""
        self.taking: dict[str, Delivery] = {}
        """Messages that the worker has read but not handled, by delivery."""
        self.looking = False
        self.consumer = _Consumer(self)
        self._present: set[str] = set()
        self._renew()

    @property
    def alive(self) -> bool:
        return self.main.alive

    def _process(self) -> Process:
        self._pids += 1
        return Process(f"{self.name}:{self._pids}:{self.nonce}", self, clock_s=self.clock_s)

    def has(self, process_id: str) -> bool:
        """Whether this is, or was, a process of this worker."""
        host, _, nonce = process_id.rsplit(":", 2)
        return (host, nonce) == (self.name, self.nonce)

    def knows_ended(self, process_id: str) -> bool:
        """Stands for `tasks.presence.Identity.has_ended`: a worker knows its own processes."""
        if not self.has(process_id):
            return False
        return all(process.id != process_id for process in (self.main, *self.pool) if process.alive)

    # Presence

    def _renew(self) -> None:
        if not self.alive:
            return

        def renew() -> None:
            pool = {process.id for process in self.pool if process.alive and process is not self.main}
            presence = Presence(self.fleet.redis)
            try:
                presence.renew(self.main.id, PRESENCE_TTL_S, sorted(pool))
                presence.leave(*sorted(self._present - pool))
                self._present = pool
            except self.fleet.redis_errors:
                pass

        if not self.fleet.rests():  # no process reads the presence of a resting fleet
            self.world.as_process(self.main, renew)
        self.world.at(PRESENCE_S, self._renew)

    # Consuming

    def look_soon(self) -> None:
        """Look for a message."""
        if self.alive and not self.looking:
            self.looking = True
            self.world.at(self.world.rng.uniform(0.0005, 0.004), self._look)

    def _look(self) -> None:
        self.looking = False
        if not self.alive or len(self.busy) + len(self.taking) >= self.slots:
            return
        queues = [queue for queue in QUEUES if self.consumer.task_consumer.consuming_from(queue)]
        self.world.rng.shuffle(queues)
        delivery = self.fleet.broker.fetch(queues)
        if delivery is None:
            return
        self.taking[delivery.tag] = delivery
        self.world.at(self.world.rng.uniform(0.0002, 0.002), lambda: self._take(delivery))
        self.look_soon()

    def _take(self, delivery: Delivery) -> None:
        if self.taking.pop(delivery.tag, None) is None or not self.alive:
            return  # the worker died, or its connection was cut, so the message returns to its queue
        if delivery.tag not in self.fleet.broker.deliveries:
            self.look_soon()
            return
        self.world.as_process(self.main, lambda: self.consumer.take(delivery))
        self.look_soon()

    def begin(self, delivery: Delivery) -> None:
        """Hand a message to the pool."""
        working = [] if self.threads else list(self.busy.values())
        process = next(child for child in self.pool if child.alive and child not in working)
        self.busy[delivery.tag] = process
        self.fleet.observer.admitted(delivery.message)
        self.world.at(0.0005, lambda: self._start(delivery, process))

    def _start(self, delivery: Delivery, process: Process) -> None:
        if process.alive:
            self.world.spawn(process, lambda: self._work(delivery))

    def _work(self, delivery: Delivery) -> None:
        message, world = delivery.message, self.world
        self.fleet.broker.started(message)
        world.note("begins", message=message.id, place=message.place or message.queue)
        try:
            task = SimpleNamespace(request=Request(delivery), replace=_replace)
            message.body(task, *message.args)
        except Ignore:
            pass
        except (RedisError, OperationalError) as error:  # as Celery: the task failed; whatever else it raises is wrong
            world.note("fails", message=message.id, error=repr(error)[:120])
        else:
            self.fleet.observer.holds_nothing(world.running)
        message.leaving = message.has_ended = True
        world.point("before acknowledging")
        world.note("ends", message=message.id)
        self.fleet.broker.ack(delivery)
        self.busy.pop(delivery.tag, None)
        self.look_soon()

    # Death

    def child_died(self, process: Process) -> None:
        """Kill a process of the pool. Another takes its place, and its message returns to the queue."""
        if process is self.main:
            self.died()
            return
        self.pool.remove(process)
        self.pool.append(self._process())
        for tag in [tag for tag, holder in self.busy.items() if holder is process]:
            del self.busy[tag]
            if delivery := self.fleet.broker.deliveries.get(tag):
                delivery.message.touched = True
                self.world.at(0.2, lambda delivery=delivery: self._rejected(delivery))
        self.world.at(0.3, self.look_soon)

    def _rejected(self, delivery: Delivery) -> None:
        self.fleet.broker.restore(delivery, head=False)

    def died(self) -> None:
        """Kill the whole worker. Its messages return to their queues after the visibility timeout."""
        for process in (self.main, *self.pool):
            process.alive = False
        self.consumer.closed()
        broker = self.fleet.broker
        for delivery in self._unacknowledged():
            delivery.message.touched = True
            back = self.world.rng.uniform(5, 60)
            self.world.at(back, lambda delivery=delivery: broker.restore(delivery, head=self.world.rng.random() < 0.5))
        self.fleet.replace(self)

    def _unacknowledged(self) -> list[Delivery]:
        """Return the messages that the worker has read but not acknowledged."""
        own = (self.busy, self.taking, self.consumer.held)
        return [
            delivery for delivery in self.fleet.broker.deliveries.values() if any(delivery.tag in tags for tags in own)
        ]

    def end(self) -> None:
        """Stop the worker: it returns its messages, and no attempt counts. As `tasks.presence.Identity._end`."""
        self.world.note("worker ends", worker=self.name)
        process_ids = {process.id for process in (self.main, *self.pool)}
        self.died()
        leaving = Process(f"{self.name}:0:end", self, mortal=False, clock_s=self.clock_s)

        def leave() -> None:
            FLOW.release_all(self.fleet.context, sorted(process_ids))
            self.fleet.observer.given_back_all(process_ids)
            Presence(self.fleet.redis).leave(*sorted(process_ids))

        self.world.spawn(leaving, lambda: self.fleet.trying(leave))

    def cut(self) -> None:
        """Cut the connection to the broker. The messages return to their queues, and the processes go on with them."""
        self.world.note("connection is cut", worker=self.name)
        for delivery in self._unacknowledged():
            self.fleet.broker.restore(delivery, head=self.world.rng.random() < 0.5)
        self.taking.clear()
        self.consumer.reconnected()


class _Consumer(GateConsumer):
    """The real consumer. Its calls to kombu go to the simulated broker."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.held: dict[str, Delivery] = {}
        """Deliveries without a decision."""
        self._leaves = {}
        self.connection_errors = worker.fleet.redis_errors
        self.timer = SimpleNamespace(call_after=self._call_after)
        self.app = SimpleNamespace(amqp=SimpleNamespace(queues={queue: queue for queue in QUEUES}))
        self.task_consumer = _TaskConsumer(self)

    def _give_back(self, request: Any) -> None:
        self.worker.world.note("is refused", message=request.id)
        self.worker.fleet.observer.refused(self.worker)
        super()._give_back(request)

    def take(self, delivery: Delivery) -> None:
        """Handle a message that arrives."""
        self.held[delivery.tag] = delivery
        try:
            self._limit_task(Request(delivery), _PassedOn(), 1)
        finally:
            self.held.pop(delivery.tag, None)
            broker = self.worker.fleet.broker
            if delivery.tag in broker.deliveries and delivery.tag not in self.worker.busy and self.worker.alive:
                # Redis failed, so the message was neither taken nor given back: reconnect.
                self.worker.world.at(1, lambda: broker.restore(delivery, head=True))

    def _limit_move_to_pool(self, request: Any) -> None:
        self.worker.begin(self.held[request.message.delivery_tag])

    def _call_after(self, wait_s: float, act: Callable[..., None], args: tuple[Any, ...]) -> Any:
        timer = SimpleNamespace(over=False)
        timer.cancel = lambda: setattr(timer, "over", True)

        def fire() -> None:
            if not timer.over and self.worker.alive:
                self.worker.world.as_process(self.worker.main, lambda: act(*args))

        self.worker.world.at(wait_s, fire)
        return timer

    def read_tokens(self) -> None:
        """Tokens may have arrived in the worker's own list."""
        if not self._leaves or not self.worker.alive:
            return
        name = WAKE_QUEUE.format(worker=self.worker.main.id)
        redis = self.worker.fleet.redis
        while redis.wire.call("LPOP", name):
            self.worker.world.at(0.0003, lambda: self.worker.alive and self._return(provider.QUEUE))

    def closed(self) -> None:
        for leave in self._leaves.values():
            leave.timer.cancel()
        self._leaves.clear()

    def reconnected(self) -> None:
        """After a reconnect there is a new consumer, which consumes from everything."""
        self.task_consumer = _TaskConsumer(self)
        self.worker.look_soon()


assert issubclass(GateConsumer, Consumer)


class _TaskConsumer:
    """The parts of kombu that the consumer uses."""

    def __init__(self, owner: _Consumer) -> None:
        self._owner = owner
        self._from = set(QUEUES)
        broker = owner.worker.fleet.broker
        self.channel: Any = SimpleNamespace(
            qos=broker,
            active_queues=set(),
            brpop_timeout=1.0,
            unacked_key=UNACKED,
            unacked_index_key=UNACKED_INDEX,
            connection=SimpleNamespace(brpop_timeout=1.0, _callbacks=dict.fromkeys(QUEUES)),
            basic_consume=lambda name, **_: self.channel.active_queues.add(name),
            conn_or_acquire=lambda: nullcontext(owner.worker.fleet.redis),
            _q_for_pri=list_of,
            _get_message_priority=lambda raw, reverse: broker.messages[raw["headers"]["id"]].priority,
        )

    @property
    def queues(self) -> list[Any]:
        return [SimpleNamespace(name=queue) for queue in sorted(self._from)]

    def consuming_from(self, queue: str) -> bool:
        return queue in self._from

    def cancel_by_queue(self, queue: str) -> None:
        self._from.discard(queue)

    def add_queue(self, queue: str) -> None:
        self._from.add(queue)

    def consume(self) -> None:
        self._owner.worker.look_soon()


__all__ = ["Killed", "Worker"]
