"""The gate-aware consumer: asks the gate before a message takes a pool slot, and stops consuming a closed queue.

Celery's own `rate_limit` is per worker and fills prefetch slots. Here a refused message goes back to its queue, and
this worker leaves *that queue* until its gate may be open again, while it consumes its other queues. While an operator,
a breaker or a spend cap closes a gate, no worker consumes its queue: a broadcast tells the whole fleet at once. A
worker that missed it is refused at its next message.
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
from tasks.gates import gate_of, sync_now
from tasks.presence import holder_of, identity

log = structlog.get_logger(__name__)
LONGEST_LEAVE_S = 1.0
"""The longest time between two checks of a closed queue: a wake-up of this worker may get lost."""
WAKE_QUEUE = "penstock:{{gates}}:wake:{worker}"
"""The worker's own list, read together with its queues. An entry names a queue that may be open again."""
LASTING = {"operator", "spend", "breaker"}
"""Reasons that close a gate for long, so that the worker checks the gate without a message."""


class GateConsumer(RefusingConsumer):
    """The consumer of all workers, named by the setting `worker_consumer`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._leaves: dict[str, _Leave] = {}
        """Queues that this worker has left, by name."""

    def loop_args(self) -> Any:
        """Leave closed queues before the first message. Celery calls this at the start and after each reconnect."""
        for queue in list(self.task_consumer.queues):
            if gate_of(queue.name) is not None:
                self.follow_gate(queue.name)
        return super().loop_args()

    def admits(self, request: Any) -> bool:
        queue = request.delivery_info.get("routing_key", "")
        gate = gate_of(queue)
        if gate is None:
            return True
        try:
            admission = gate.admit(holder_of(request.id), wake=WAKE_QUEUE.format(worker=identity.worker_id))
        except RedisError as error:
            # Redis cannot admit the message: it goes back.
            log.warning("gate.unreachable", queue=queue, error=type(error).__name__)
            admission = Admission(granted=False, wait_s=LONGEST_LEAVE_S, reason="unreachable")
        if admission.reason == "unready":
            sync_now()
        if not admission.granted:
            self._leave(queue, admission.wait_s, admission.reason)
        return admission.granted

    def _leave(self, queue: str, wait_s: float, reason: str) -> None:
        """Stop consuming a queue until a token wakes this worker, or for `wait_s` seconds, but at most
        `LONGEST_LEAVE_S`; then check its gate again."""
        if self.task_consumer.consuming_from(queue):
            # A token in this list says that a queue may be open again.
            self.listen(WAKE_QUEUE.format(worker=identity.worker_id), self._return)
            self.stop_consuming(queue)
            self._stay_away(queue, wait_s, reason)

    def _stay_away(self, queue: str, wait_s: float, reason: str) -> None:
        """Check the gate again after `wait_s` seconds at most, because a wake-up may get lost."""
        leave = self._leaves.get(queue)
        if leave is not None:
            leave.timer.cancel()
        paused = reason in LASTING
        if paused and not (leave and leave.paused):
            log.info("queue.paused", queue=queue, by=reason)
        wait_s = min(wait_s, LONGEST_LEAVE_S) + 0.001
        act = self.follow_gate if paused else self._return
        self._leaves[queue] = _Leave(wait_s, self.timer.call_after(wait_s, act, (queue,)), paused, reason)
        self._read_in_turns()

    def follow_gate(self, queue: str) -> None:
        """Check a queue's gate without a message or an admission: return to the queue if the gate is open, else leave
        it. Ignores queues of other workers."""
        consumer = self.task_consumer
        if queue not in self._leaves and not (consumer and _has(consumer, queue)):
            return  # a queue of other workers
        gate = gate_of(queue)
        try:
            closed = gate.inspect().closed if gate and consumer else None
        except RedisError as error:
            # The next message asks the gate anyway.
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
        """The queues that this worker consumes, including queues whose limits it waits for."""
        consumed = {queue.name: queue for queue in self.task_consumer.queues} if self.task_consumer else {}
        known = self.app.amqp.queues
        held_up = {name: known[name] for name, leave in self._leaves.items() if not leave.paused and name in known}
        return iter((consumed | held_up).values())

    def waiting_reasons(self) -> dict[str, str]:
        """Return, for each queue that this worker has left, in words why its gate is closed or full, and for how
        long."""
        reasons = {}
        for queue, leave in self._leaves.items():
            gate = gate_of(queue)
            closed = gate.inspect().closed if gate else None
            by, left_s, reason = closed or (leave.reason, leave.wait_s, "")
            until = f", {left_s:.0f} s left" if isfinite(left_s) else ""
            reasons[queue] = f"{by}: {reason}{until}" if reason else f"{by}{until}"
        return reasons

    def _read_in_turns(self) -> None:
        """Make the next BRPOP end when a left queue may be open again.

        A BRPOP under way does not read a returning queue, and would wait for the worker's other queues for up to a
        second: a provider with a few slots would be idle for half of the time.
        """
        consuming = self.task_consumer.consuming_from
        self.wait_at_most(
            min((leave.wait_s for queue, leave in self._leaves.items() if not consuming(queue)), default=None)
        )

    def _return(self, queue: str) -> None:
        leave = self._leaves.pop(queue, None)
        if leave is None:
            return
        leave.timer.cancel()
        if leave.paused:
            log.info("queue.resumed", queue=queue)
        consumer = self.task_consumer
        queues = self.app.amqp.queues
        # After a reconnect, the new consumer consumes all queues anyway.
        if consumer is not None and queue in queues and not consumer.consuming_from(queue):
            consumer.add_queue(queues[queue])
            consumer.consume()
            self._read_in_turns()


@dataclass(frozen=True)
class _Leave:
    """A queue that the worker has left for `wait_s` seconds, until `timer` checks its gate."""

    wait_s: float
    timer: Any
    paused: bool
    """Whether its gate is closed; else it is full."""
    reason: str


def _has(consumer: Any, queue: str) -> bool:
    return any(each.name == queue for each in consumer.queues)
