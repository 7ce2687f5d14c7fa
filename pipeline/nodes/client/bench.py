"""The jobs of a node: each in a thread of its own, and their results until the gateway has received them."""

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
"""Messages that wait to be sent; with so many, pieces of texts are left out."""
_PIECE = 65_536
_BUSY = JobError(code=NODE_BUSY, message="all slots of this node are taken", kind="transient")

Outbox = asyncio.Queue[Message | Finished | Key]
"""What is to be said on one connection, in order. A key stands for a result that is kept."""


class Results:
    """Results that were not received yet: at most so many bytes, of which the oldest give way to new ones."""

    def __init__(self, max_bytes: int = KEPT_BYTES, max_count: int = _KEPT) -> None:
        self._max_bytes = max_bytes
        self._max_count = max_count
        self._kept: OrderedDict[Key, Finished] = OrderedDict()
        self._refused: dict[Key, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keys(self) -> list[Key]:
        """The oldest first."""
        return list(self._kept)

    def get(self, key: Key) -> Finished | None:
        return self._kept.get(key)

    def keep(self, finished: Finished) -> None:
        """Keep a result, in the place of another of the same attempt."""
        self.drop(finished.key)
        self._kept[finished.key] = finished
        self._bytes += _size(finished)
        while len(self._kept) > 1 and (self._bytes > self._max_bytes or len(self._kept) > self._max_count):
            oldest = next(iter(self._kept))
            log.warning("node.result_dropped", job=oldest[0], attempt=oldest[1], why="too many wait to be received")
            self.drop(oldest)

    def drop(self, key: Key) -> bool:
        """Forget a result; False if there is none."""
        finished = self._kept.pop(key, None)
        self._refused.pop(key, None)
        if finished is not None:
            self._bytes -= _size(finished)
        return finished is not None

    def refuse(self, key: Key, times: int) -> None:
        """A connection was closed as if for this result; the `times`-th time it is dropped, so as to end that."""
        if key in self._kept:
            self._refused[key] = self._refused.get(key, 0) + 1
            if self._refused[key] >= times:
                log.error("node.result_dropped", job=key[0], attempt=key[1], why="the gateway does not take it")
                self.drop(key)


def _size(finished: Finished) -> int:
    return len(finished.head) + finished.attachment_bytes


@dataclass(eq=False)
class _InHand:
    """An attempt whose thread is under way. `wanted`: nobody has cancelled it."""

    key: Key
    wanted: bool = True
    streaming: bool = True
    """No piece of its text was left out so far."""


class Bench:
    """At most `slots` jobs at once. All but the jobs happens on the loop that `take` is called on.

    `changed` is called whenever a job ends or a result is received."""

    def __init__(
        self, executor: Executor, slots: int, changed: Callable[[], None], results: Results | None = None
    ) -> None:
        self.closed = False
        """Take no more jobs."""
        self.results = Results() if results is None else results
        self._executor = executor
        self._slots = slots
        self._changed = changed
        self._in_hand: dict[Key, _InHand] = {}
        self._received: OrderedDict[Key, None] = OrderedDict()
        self._outbox: Outbox | None = None

    @property
    def threads(self) -> int:
        """Threads at work, also those of cancelled jobs: a thread cannot be stopped."""
        return len(self._in_hand)

    @property
    def wanted(self) -> int:
        """Jobs under way that somebody waits for."""
        return sum(job.wanted for job in self._in_hand.values())

    @property
    def idle(self) -> bool:
        """Nothing is under way, and no result waits."""
        return not self.wanted and not len(self.results)

    def held(self) -> tuple[HeldJob, ...]:
        """What a registration says."""
        keys = [key for key, job in self._in_hand.items() if job.wanted] + self.results.keys()
        return tuple(HeldJob(job_id=job_id, attempt=attempt) for job_id, attempt in keys)

    def connect(self, outbox: Outbox) -> None:
        """Speak on a new connection, and say first what was perhaps not heard on the last one."""
        self._outbox = outbox
        for key, job in self._in_hand.items():
            if job.wanted:
                self._say_begun(key)
        for key in self.results.keys():  # noqa: SIM118  # no dict
            self._say(key)

    def disconnect(self) -> None:
        """Go on without a connection."""
        self._outbox = None
        for job in self._in_hand.values():
            job.streaming = False

    def take(self, job: JobAssign, parts: Sequence[bytes]) -> None:
        """Begin a job; or say again what is known of it; or that there is no slot."""
        key = (job.job_id, job.attempt)
        mine = self._in_hand.get(key)
        if mine is not None and mine.wanted:
            self._say_begun(key)
        elif self.results.get(key) is not None:
            self._say(key)
        elif key in self._received or self._knows_later(key):
            log.info("node.job_passed_over", job=job.job_id, attempt=job.attempt)
        elif self.closed or mine is not None or len(self._in_hand) >= self._slots:
            self._say(failed(key, _BUSY))
        else:
            self._begin(key, job, parts)

    def cancel(self, key: Key) -> None:
        """Drop what becomes of this attempt. Its thread keeps its slot until it ends."""
        if key in self._in_hand:
            self._in_hand[key].wanted = False
        self.results.drop(key)
        self._changed()

    def received(self, key: Key, *, taken: bool) -> None:
        """The gateway has the result."""
        if not self.results.drop(key):
            return
        if not taken:
            log.info("node.result_late", job=key[0], attempt=key[1])
        self._received[key] = None
        if len(self._received) > _REMEMBERED:
            self._received.popitem(last=False)
        self._changed()

    def _begin(self, key: Key, job: JobAssign, parts: Sequence[bytes]) -> None:
        for earlier in [known for known in self._in_hand if known[0] == key[0]]:
            self.cancel(earlier)
        for earlier in [known for known in self.results.keys() if known[0] == key[0]]:  # noqa: SIM118  # no dict
            self.results.drop(earlier)
        mine = self._in_hand[key] = _InHand(key)
        self._say_begun(key)
        log.debug("node.job_started", job=key[0], attempt=key[1], capability=job.capability.value)
        loop = asyncio.get_running_loop()

        def say_piece(text: str) -> None:
            loop.call_soon_threadsafe(self._piece, mine, text)

        def work() -> None:
            finished = execute(self._executor, job, parts, say_piece)
            with suppress(RuntimeError):  # the loop is closed: the node has ended meanwhile
                loop.call_soon_threadsafe(self._finish, mine, finished)

        # A daemon: a job that does not end must not keep the process alive.
        thread = threading.Thread(target=work, name=f"job-{key[0][:12]}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            self._finish(mine, failed(key, _BUSY))

    def _finish(self, job: _InHand, finished: Finished) -> None:
        # The slot first: the gateway may send the next job as soon as it has the result.
        del self._in_hand[job.key]
        if job.wanted:
            self.results.keep(finished)
            self._say(job.key)
        self._changed()

    def _piece(self, job: _InHand, text: str) -> None:
        crowded = self._outbox is None or self._outbox.qsize() >= _CROWDED
        if crowded:
            # The pieces after a gap would make no text; the result has all of it.
            job.streaming = False
        if not (job.wanted and job.streaming) or self._in_hand.get(job.key) is not job:
            return
        for begin in range(0, len(text), _PIECE):
            piece = text[begin : begin + _PIECE]
            self._say(NodePartial(job_id=job.key[0], attempt=job.key[1], text=piece))

    def _knows_later(self, key: Key) -> bool:
        known = [*self._in_hand, *self.results.keys(), *self._received]
        return any(job_id == key[0] and attempt > key[1] for job_id, attempt in known)

    def _say_begun(self, key: Key) -> None:
        self._say(JobAck(job_id=key[0], attempt=key[1]))
        self._say(JobStarted(job_id=key[0], attempt=key[1]))

    def _say(self, what: Message | Finished | Key) -> None:
        if self._outbox is not None:
            self._outbox.put_nowait(what)
