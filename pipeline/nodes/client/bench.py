"""The jobs of a node, each in its own thread, and their results until the gateway receives them."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from pipeline.nodes.client.executor import Executor, Finished, Key, execute, failed
from pipeline.nodes.protocol import (
    NODE_BUSY,
    HeldJob,
    JobAck,
    JobAssign,
    JobError,
    JobStarted,
    Message,
    NodePartial,
)

log = structlog.get_logger(__name__)

KEPT_BYTES = 128 * 2**20
_KEPT, _REMEMBERED = 1000, 2048
_CROWDED = 100
"""While so many messages wait to be sent, the node drops pieces of texts."""
_PIECE = 65_536
_BUSY = JobError(code=NODE_BUSY, message="all slots of this node are taken", kind="transient")

Outbox = asyncio.Queue[Message | Finished | Key]
"""The messages to send on one connection, in order. A key stands for a kept result."""


class Results:
    """Results that the gateway has not received. Beyond `max_bytes` or `max_count`, drops the oldest, but
    never the newest one."""

    def __init__(self, max_bytes: int = KEPT_BYTES, max_count: int = _KEPT) -> None:
        self._max_bytes = max_bytes
        self._max_count = max_count
        self._finished: OrderedDict[Key, Finished] = OrderedDict()
        self._refused: dict[Key, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._finished)

    def keys(self) -> list[Key]:
        """Return the keys of all results, the oldest first."""
        return list(self._finished)

    def get(self, key: Key) -> Finished | None:
        return self._finished.get(key)

    def keep(self, finished: Finished) -> None:
        """Keep a result, in place of an earlier one of the same attempt. Drops the oldest results beyond the limits."""
        self.drop(finished.key)
        self._finished[finished.key] = finished
        self._bytes += _size(finished)
        while len(self._finished) > 1 and (self._bytes > self._max_bytes or len(self._finished) > self._max_count):
            oldest = next(iter(self._finished))
            log.warning("node.result_dropped", job=oldest[0], attempt=oldest[1], why="too many results wait")
            self.drop(oldest)

    def drop(self, key: Key) -> bool:
        """Forget a result. False: the result is unknown."""
        finished = self._finished.pop(key, None)
        self._refused.pop(key, None)
        if finished is not None:
            self._bytes -= _size(finished)
        return finished is not None

    def refuse(self, key: Key, times: int) -> None:
        """Count a connection that the gateway closed because of a message, after this result was sent on it. Drops the
        result once the count is `times`."""
        if key in self._finished:
            self._refused[key] = self._refused.get(key, 0) + 1
            if self._refused[key] >= times:
                log.error("node.result_dropped", job=key[0], attempt=key[1], why="the gateway refuses it")
                self.drop(key)


def _size(finished: Finished) -> int:
    return len(finished.head) + finished.attachment_bytes


@dataclass(eq=False)
class _Running:
    """An attempt whose thread runs. `wanted`: the attempt is not cancelled."""

    key: Key
    wanted: bool = True
    streaming: bool = True
    """The node has sent every piece of the text so far."""


class Bench:
    """Runs at most `slots` jobs at once, in threads. Its own methods belong to one event loop.

    Calls `changed` when a job ends, and when the gateway receives a result."""

    def __init__(
        self, executor: Executor, slots: int, changed: Callable[[], None], results: Results | None = None
    ) -> None:
        self.closed = False
        """The bench takes no new jobs."""
        self.results = Results() if results is None else results
        self._executor = executor
        self._slots = slots
        self._changed = changed
        self._running: dict[Key, _Running] = {}
        self._received: OrderedDict[Key, None] = OrderedDict()
        self._outbox: Outbox | None = None

    @property
    def threads(self) -> int:
        """The number of running threads, including those of cancelled jobs, which cannot be stopped."""
        return len(self._running)

    @property
    def wanted(self) -> int:
        """The number of running jobs that are not cancelled."""
        return sum(job.wanted for job in self._running.values())

    @property
    def idle(self) -> bool:
        """Whether all running jobs are cancelled or none runs, and no result waits for the gateway."""
        return not self.wanted and not len(self.results)

    def held(self) -> tuple[HeldJob, ...]:
        """Return the attempts to report when the node registers: running jobs and kept results."""
        keys = [key for key, job in self._running.items() if job.wanted] + self.results.keys()
        return tuple(HeldJob(job_id=job_id, attempt=attempt) for job_id, attempt in keys)

    def connect(self, outbox: Outbox) -> None:
        """Put messages into `outbox`, the queue of a new connection, from now on: first the progress of running jobs
        and all kept results."""
        self._outbox = outbox
        for key, job in self._running.items():
            if job.wanted:
                self._send_started(key)
        for key in self.results.keys():  # noqa: SIM118  # no dict
            self._send(key)

    def disconnect(self) -> None:
        """Note the lost connection: jobs run on and their results are kept, but no further pieces of their texts are
        sent."""
        self._outbox = None
        for job in self._running.values():
            job.streaming = False

    def take(self, job: JobAssign, parts: Sequence[bytes]) -> None:
        """Start a job in a thread of its own. For a running or finished attempt, send its progress or result again;
        ignore an attempt whose result the gateway has received, or that a later attempt replaced. While draining or
        without a free slot, answer `NODE_BUSY`."""
        key = (job.job_id, job.attempt)
        running = self._running.get(key)
        if running is not None and running.wanted:
            self._send_started(key)
        elif self.results.get(key) is not None:
            self._send(key)
        elif key in self._received or self._knows_later(key):
            log.info("node.job_passed_over", job=job.job_id, attempt=job.attempt)
        elif self.closed or running is not None or len(self._running) >= self._slots:
            self._send(failed(key, _BUSY))
        else:
            self._start(key, job, parts)

    def cancel(self, key: Key) -> None:
        """Drop the result of this attempt, now or when its thread ends; the thread cannot be stopped, and keeps its
        slot until then."""
        if key in self._running:
            self._running[key].wanted = False
        self.results.drop(key)
        self._changed()

    def received(self, key: Key, *, taken: bool) -> None:
        """Drop a result that the gateway has received, and remember its key, so that `take` ignores the attempt.
        `taken` False: the result came too late for the gateway."""
        if not self.results.drop(key):
            return
        if not taken:
            log.info("node.result_late", job=key[0], attempt=key[1])
        self._received[key] = None
        if len(self._received) > _REMEMBERED:
            self._received.popitem(last=False)
        self._changed()

    def _start(self, key: Key, job: JobAssign, parts: Sequence[bytes]) -> None:
        for earlier in [known for known in self._running if known[0] == key[0]]:
            self.cancel(earlier)
        for earlier in [known for known in self.results.keys() if known[0] == key[0]]:  # noqa: SIM118  # no dict
            self.results.drop(earlier)
        running = self._running[key] = _Running(key)
        self._send_started(key)
        log.debug("node.job_started", job=key[0], attempt=key[1], capability=job.capability.value)
        loop = asyncio.get_running_loop()

        def partial(text: str) -> None:
            loop.call_soon_threadsafe(self._send_piece, running, text)

        def work() -> None:
            finished = execute(self._executor, job, parts, partial)
            with suppress(RuntimeError):  # the loop is closed, because the node has ended
                loop.call_soon_threadsafe(self._finish, running, finished)

        # A daemon thread, so that a job that never ends does not keep the process alive.
        thread = threading.Thread(target=work, name=f"job-{key[0][:12]}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system cannot start another thread
            self._finish(running, failed(key, _BUSY))

    def _finish(self, job: _Running, finished: Finished) -> None:
        # Free the slot first: the gateway may send the next job as soon as it has the result.
        del self._running[job.key]
        if job.wanted:
            self.results.keep(finished)
            self._send(job.key)
        self._changed()

    def _send_piece(self, job: _Running, text: str) -> None:
        crowded = self._outbox is None or self._outbox.qsize() >= _CROWDED
        if crowded:
            # After a gap, further pieces are useless; the result has the whole text.
            job.streaming = False
        if not (job.wanted and job.streaming) or self._running.get(job.key) is not job:
            return
        for offset in range(0, len(text), _PIECE):
            piece = text[offset : offset + _PIECE]
            self._send(NodePartial(job_id=job.key[0], attempt=job.key[1], text=piece))

    def _knows_later(self, key: Key) -> bool:
        known = [*self._running, *self.results.keys(), *self._received]
        return any(job_id == key[0] and attempt > key[1] for job_id, attempt in known)

    def _send_started(self, key: Key) -> None:
        self._send(JobAck(job_id=key[0], attempt=key[1]))
        self._send(JobStarted(job_id=key[0], attempt=key[1]))

    def _send(self, item: Message | Finished | Key) -> None:
        if self._outbox is not None:
            self._outbox.put_nowait(item)
