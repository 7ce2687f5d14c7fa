"""The gate-aware consumer: asks before a pool slot is used, and stops consuming a queue whose gate is closed.

Celery's own `rate_limit` is per worker and fills prefetch slots. Here a message that is not let through goes back,
and this worker leaves *that queue* alone until the gate may be open again; its other queues flow on. A queue whose gate
an operator, a breaker or a spend cap closed is not consumed from at all: the whole fleet is told at once, and whoever
missed it is refused at its next message.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

import structlog
from kombu.entity import Queue
from redis import RedisError

from pipeline.engine.gate import Admission
from tasks import panel as _panel  # noqa: F401  # the commands that workers answer
from tasks.celery_internals.consumer import RefusingConsumer
from tasks.gates import bring_in_step, gate_of
from tasks.presence import holder_of, identity

log = structlog.get_logger(__name__)
LONGEST_LEAVE_S = 1.0
"""A closed queue is looked at again at least this often: what wakes this worker may get lost."""
WAKE_QUEUE = "penstock:{{gates}}:wake:{worker}"
"""A list of the worker's own, read together with its queues. A message in it names a queue that may be open again."""
LASTING = {"operator", "spend", "breaker"}
"""What closes a gate for long: its messages need not be asked for."""


class GateConsumer(RefusingConsumer):
    """Named by the `worker_consumer` setting."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._left: dict[str, _Leave] = {}
        """Queues that are not consumed from."""

    def loop_args(self) -> Any:
        """Leave closed queues before the first message: Celery asks for these at the start and after each reconnect."""
        for queue in list(self.task_consumer.queues):
            if gate_of(queue.name) is not None:
                self.look_at(queue.name)
        return super().loop_args()

    def admits(self, request: Any) -> bool:
        queue = request.delivery_info.get("routing_key", "")
        gate = gate_of(queue)
        if gate is None:
            return True
        try:
            admission = gate.admit(holder_of(request.id), wake=WAKE_QUEUE.format(worker=identity.worker_id))
        except RedisError as error:
            # Where Redis is away, nothing can be promised: the message goes back.
            log.warning("gate.unreachable", queue=queue, error=type(error).__name__)
            admission = Admission(granted=False, wait_s=LONGEST_LEAVE_S, reason="unreachable")
        if admission.reason == "unready":
            bring_in_step()
        if not admission.granted:
            self._leave(queue, admission.wait_s, admission.reason)
        return admission.granted

    def _leave(self, queue: str, wait_s: float, reason: str) -> None:
        """Stop consuming a queue until its gate may be open: its time is over, or a token wakes this worker."""
        if self.task_consumer.consuming_from(queue):
            # A token in this worker's own list: a queue may be open again.
            self.listen(WAKE_QUEUE.format(worker=identity.worker_id), self._return)
            self.stop_consuming(queue)
            self._stay_away(queue, wait_s, reason)

    def _stay_away(self, queue: str, wait_s: float, reason: str) -> None:
        """Look at the gate again after `wait_s` seconds: whatever is told of it meanwhile may be lost."""
        left = self._left.get(queue)
        if left is not None:
            left.timer.cancel()
        paused = reason in LASTING
        if paused and not (left and left.paused):
            log.info("queue.paused", queue=queue, by=reason)
        wait_s = min(wait_s, LONGEST_LEAVE_S) + 0.001
        then = self.look_at if paused else self._return
        self._left[queue] = _Leave(wait_s, self.timer.call_after(wait_s, then, (queue,)), paused, reason)
        self._read_in_turns()

    def look_at(self, queue: str) -> None:
        """Return to a queue, or leave it, by what its gate says now: not asking for anything, and without a message."""
        consumer = self.task_consumer
        if queue not in self._left and not (consumer and _has(consumer, queue)):
            return  # it is another worker's
        gate = gate_of(queue)
        try:
            closed = gate.look().closed if gate and consumer else None
        except RedisError as error:
            # Whoever takes a message asks the gate anyway.
            log.warning("gate.unreachable", queue=queue, error=type(error).__name__)
            closed = None
        if closed is None:
            self._return(queue)
            return
        by, left_s, _ = closed
        if consumer.consuming_from(queue):
            self._leave(queue, left_s, by)
        else:
            consumer.cancel_by_queue(queue)
            self._stay_away(queue, left_s, by)

    def consumed(self) -> Iterator[Queue]:
        """The queues that this worker takes messages from, also those whose limits it waits for."""
        taken = {queue.name: queue for queue in self.task_consumer.queues} if self.task_consumer else {}
        known = self.app.amqp.queues
        held_up = {name: known[name] for name, left in self._left.items() if not left.paused and name in known}
        return iter((taken | held_up).values())

    def why_not(self) -> dict[str, str]:
        """For each queue that this worker leaves alone: which gate is closed or full, and for how long."""
        found = {}
        for queue, left in self._left.items():
            gate = gate_of(queue)
            closed = gate.look().closed if gate else None
            by, left_s, reason = closed or (left.reason, left.wait_s, "")
            until = f", {left_s:.0f} s left" if isfinite(left_s) else ""
            found[queue] = f"{by}: {reason}{until}" if reason else f"{by}{until}"
        return found

    def _read_in_turns(self) -> None:
        """Have the next BRPOP end when a queue that was left may be open again.

        One that is under way knows nothing of a queue that comes back, and would wait for the worker's other queues
        for up to a second: a provider with a few places would be used for half of the time.
        """
        consuming = self.task_consumer.consuming_from
        self.wait_at_most(
            min((leave.wait_s for queue, leave in self._left.items() if not consuming(queue)), default=None)
        )

    def _return(self, queue: str) -> None:
        leave = self._left.pop(queue, None)
        if leave is None:
            return
        leave.timer.cancel()
        if leave.paused:
            log.info("queue.resumed", queue=queue)
        consumer = self.task_consumer
        queues = self.app.amqp.queues
        # After a reconnect there is a new consumer, which consumes from everything anyway.
        if consumer is not None and queue in queues and not consumer.consuming_from(queue):
            consumer.add_queue(queues[queue])
            consumer.consume()
            self._read_in_turns()


@dataclass(frozen=True)
class _Leave:
    """A queue is left alone for `wait_s` seconds, until `timer` looks at its gate."""

    wait_s: float
    timer: Any
    paused: bool
    """Whether its gate is closed, rather than full."""
    reason: str


def _has(consumer: Any, queue: str) -> bool:
    return any(one.name == queue for one in consumer.queues)
