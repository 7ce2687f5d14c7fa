"""Flows on Celery: launch, wake and announce their work, and handle each message once.

A flow's `canvas.py` makes one `FlowTasks` with its own part: the messages that a scope's rows need.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, wraps
from importlib import import_module
from typing import Any

import structlog
from celery import Signature, chain, group, signature
from celery.result import denied_join_result
from kombu.exceptions import OperationalError
from redis import RedisError

from pipeline.engine import deliveries, events
from pipeline.engine.claims import Owner
from pipeline.engine.guarded_call import GuardedCall
from pipeline.engine.isolation import isolated
from pipeline.engine.launch import Place, Places, Wanted, launch
from pipeline.engine.nouns import count
from pipeline.engine.settled import Settled
from pipeline.engine.tables import portions
from pipeline.engine.transaction import Dispatch
from pipeline.engine.wakeups import plan_wakeup
from pipeline.flows import FLOWS, loaded_flows
from pipeline.flows.flow import Flow
from pipeline.process import get_context
from pipeline.providers import gates
from pipeline.storage.context import Context
from tasks.app import app
from tasks.presence import identity

log = structlog.get_logger(__name__)
Announcement = tuple[str, dict[str, str | int]]
"""An event's name and its fields."""
PORTION = 500
"""How many scopes one query reads."""
LONGEST_WORK_S = 600.0
"""How long a place stays taken, longer than nearly all messages need. Later, a second message may be sent, which finds
nothing to claim. This frees the place if Redis lost the record that its message finished."""
FOLLOWERS_CHECK_S, FOLLOWERS_WAKE_S = 5.0, 0.2
"""The time between two checks whether a flow that follows events has followers, and the delay of its wake-up."""
LEAVE_RETRY_S = 5.0
"""The wait before the next try to free a place, after a failure."""


@dataclass(frozen=True)
class Messages:
    """Messages that rows need now, in one queue. `canvas`: builds the messages for the places that lack one.

    `tail`: the tasks that follow in its chain.
    """

    wanted: Wanted
    canvas: Callable[[Sequence[int]], Signature]
    tail: Sequence[Signature] = ()

    def whole(self, numbers: Sequence[int]) -> Signature:
        """Return one chain of the canvas for these numbers of places, and its tail."""
        return in_a_row(self.canvas(numbers), self.tail)


Send = Callable[[Messages, Sequence[int]], object]
"""Sends messages for these numbers of places."""


def _apply(messages: Messages, numbers: Sequence[int]) -> None:
    messages.whole(numbers).apply_async()


def in_a_row(first: Signature, rest: Sequence[Signature]) -> Signature:
    """Return a chain, or `first` alone if no task follows."""
    return chain(first, *rest) if rest else first


@dataclass(frozen=True)
class FlowTasks:
    """A flow on Celery. `wake` is its task that launches due scopes."""

    flow: Flow
    messages: Callable[[Context, Sequence[str]], Iterable[Messages]]
    """The messages that these scopes' rows need now, whether they are on their way or not."""
    announcement: Callable[[Context, str], Announcement | None] = lambda _context, _scope: None
    """The event about a scope's state for its followers; None for no event."""

    def __post_init__(self) -> None:
        @app.task(name=self._wake, ignore_result=True)
        def wake() -> None:
            """Launch due scopes, and plan the next wake-up."""
            self.tend()

    @property
    def _wake(self) -> str:
        return f"{self.flow.name}.wake"

    @property
    def wake(self) -> Any:
        """The Celery task that launches due scopes."""
        return app.tasks[self._wake]

    def launch(self, *scopes: str) -> int:
        """Send the messages that these scopes' rows need and that are not on their way; return their number.

        All work starts here. Sends nothing to a closed gate. An unreachable broker costs time, not work: the sweep
        launches the rest, also after a gate opens.
        """
        return self._launch(get_context(), scopes)

    def replace(self, task: Any, *scopes: str) -> str:
        """Replace `task` by the messages that these scopes' rows need; its chain follows them: see `Task.replace`.

        Raises `Ignore` after the replacement by a chain; after that by a group, returns the number of messages. If it
        sends nothing, ends the chain and returns the reason: the rows need no message, the gate is closed, or other
        messages are on their way.
        """
        canvases: list[Signature] = []
        self._launch(get_context(), scopes, lambda messages, numbers: canvases.append(messages.canvas(numbers)))
        if not canvases:
            task.request.chain = None
            return "nothing to send"
        replacement, *others = canvases
        try:
            with denied_join_result():
                for canvas in others:
                    canvas.apply_async()
                if not isinstance(replacement, group):
                    task.replace(replacement)
                replacement.apply_async()  # `Task.replace` would add a task that collects results
        except (OperationalError, RedisError) as error:
            log.warning("launch.failed", flow=self.flow.name, scopes=scopes, error=type(error).__name__)
            return "not sent: the broker is unreachable"
        finally:
            task.request.chain = None
        return count(len(replacement.tasks), "message")

    def _launch(self, context: Context, scopes: Iterable[str], send: Send = _apply) -> int:
        if not context.online:
            return 0
        sent = 0
        try:
            for portion in portions(scopes, PORTION):
                sent += self._launch_portion(context, portion, send)
        except (OperationalError, RedisError) as error:
            log.warning("launch.postponed", flow=self.flow.name, error=type(error).__name__)
        return sent

    def _launch_portion(self, context: Context, scopes: Sequence[str], send: Send) -> int:
        needed = list(self.messages(context, scopes))
        unknown = {messages.wanted.queue for messages in needed} - set(app.amqp.queues)
        if unknown:
            # Queues of a removed provider must not hold up other messages. See `fail_unserved`.
            log.error("launch.unknown_queue", flow=self.flow.name, queues=sorted(unknown))
        needed = [messages for messages in needed if messages.wanted.queue not in unknown]
        queues = {messages.wanted.queue for messages in needed}
        closed_queues = {queue for queue in queues if gates.closed_because(context, queue)}
        needed = [messages for messages in needed if messages.wanted.queue not in closed_queues]

        def publish(at: int, numbers: Sequence[int]) -> None:
            # Denied: otherwise the client subscribes to an unused result, and tries for 20 s if Redis is unreachable.
            # A message that failed counts as waiting for a while.
            with (
                denied_join_result(),
                isolated("launch.failed", OperationalError, RedisError, scope=needed[at].wanted.scope),
            ):
                send(needed[at], numbers)

        return launch(Places(context.redis), [messages.wanted for messages in needed], publish)

    def send(self, context: Context, dispatch: Dispatch) -> None:
        """Perform this flow's part of a transaction's requests: announce rows, launch scopes, plan a wake-up."""
        name = self.flow.name
        for row in dispatch.news.get(name, ()):
            self._announce(context, row)
        self._launch(context, dispatch.launches.get(name, ()))
        self._wake_in(context, dispatch.wakes_s.get(name))

    def tend(self) -> None:
        """Launch due scopes, and plan the next wake-up."""
        context = get_context()
        self.launch(*self.flow.due(context))
        self.wake_in(self.flow.next_wait_s(context))

    def sweep(self, absent: set[str], go_on: Callable[[], object] = lambda: None) -> int:
        """Give back units of absent processes, launch all runnable scopes, and plan the next wake-up; return the number
        of messages.

        Calls `go_on` often, because a sweep may take long.
        """
        context = get_context()
        freed = self.flow.free_lost(context, absent)
        # Due scopes first: only time starts their work.
        sent = self.launch_all(go_on, self.flow.due(context))
        if sent or freed:
            log.info("sweep.launched", flow=self.flow.name, messages=sent, absent=sorted(absent))
        self.wake_in(self.flow.next_wait_s(context))
        return sent

    def launch_all(self, go_on: Callable[[], object] = lambda: None, first: Iterable[str] = ()) -> int:
        """Send the missing messages of all runnable scopes, except to closed gates; return their number.

        `first`: scopes that are launched before the others.
        """
        context = get_context()
        closed_queues = frozenset(name for name in context.gates.queues if gates.closed_because(context, name))
        before = dict.fromkeys(first)
        others = (scope for scope in self.flow.runnable(context, closed_queues) if scope not in before)
        sent = 0
        for portion in portions(itertools.chain(before, others), PORTION):
            go_on()
            sent += self.launch(*portion)
        return sent

    def fail_unserved(self) -> None:
        """Fail work that waits for a removed provider, and announce that."""
        for scope in self.flow.fail_unserved(get_context()):
            self.announce(scope)

    def wake_in(self, wait_s: float | None) -> None:
        """Make sure that a message wakes the flow within `wait_s` seconds. None, or more than a minute: leave that to
        the sweep."""
        self._wake_in(get_context(), wait_s)

    def _wake_in(self, context: Context, wait_s: float | None) -> None:
        try:
            if wait_s is not None and context.online and plan_wakeup(context.redis, self.flow.name, wait_s):
                self.wake.apply_async(countdown=max(0.0, wait_s) + 0.05)
        except (RedisError, OperationalError) as error:
            # The sweep launches due scopes.
            log.warning("wakeup.postponed", flow=self.flow.name, error=type(error).__name__)

    def announce(self, scope: str = "") -> None:
        """Publish the state of a scope in Redis, and wake the flows that follow events."""
        self._announce(get_context(), scope)

    def _announce(self, context: Context, scope: str) -> None:
        announcement = self.announcement(context, scope) if context.online else None
        if announcement is not None:
            event, fields = announcement
            events.publish(context.redis, self.flow.name, event, **fields)
        _wake_followers(context)


def _wake_followers(context: Context) -> None:
    """Wake the flows that follow events and have followers; check for followers every few seconds only.

    Checks loaded flows only, because a program may use a single flow; workers load all.
    """
    for flow in loaded_flows():
        if flow.has_subscribers is None:
            continue
        checked_at, has_followers = context.cache.get(("hears", flow.name), (-FOLLOWERS_CHECK_S, False))
        if time.monotonic() - checked_at > FOLLOWERS_CHECK_S:
            has_followers = flow.has_subscribers(context)
            context.cache["hears", flow.name] = time.monotonic(), has_followers
        if has_followers:
            flow_tasks(flow.name).wake_in(FOLLOWERS_WAKE_S)


def flow_tasks(flow: str) -> FlowTasks:
    """The `FlowTasks` of a flow, imported on first use."""
    tasks: FlowTasks = import_module(f"tasks.{flow}.canvas").TASKS
    return tasks


@cache
def all_flow_tasks() -> tuple[FlowTasks, ...]:
    """The `FlowTasks` of every flow, in the order of `FLOWS`."""
    return tuple(map(flow_tasks, FLOWS))


_HELD: ContextVar[Dispatch | None] = ContextVar("held", default=None)
"""The requests of transactions during the current message."""


def send(context: Context, dispatch: Dispatch) -> None:
    """Perform the requests of a committed transaction: the launcher of contexts.

    Announces its gates at once. During a message, keeps the other requests until its end: until then the message
    occupies its place, so a launch would send nothing.
    """
    if dispatch.gates:  # at once: other workers would still call a provider that refuses
        import_module("tasks.watchdog").announce_gates(context, dispatch.gates)
    held = _HELD.get()
    if held is not None:
        held.add(replace(dispatch, gates={}))
        return
    for flow in dict.fromkeys((*dispatch.news, *dispatch.launches, *dispatch.wakes_s)):
        with isolated("launch.failed", flow=flow):  # the sweep launches due scopes
            flow_tasks(flow).send(context, dispatch)


@contextmanager
def _sent_at_end() -> Iterator[None]:
    """Collect the requests of all transactions in the block, and perform them once at its end, also after an error."""
    held = Dispatch()
    token = _HELD.set(held)
    try:
        yield
    finally:
        _HELD.reset(token)
        if held:
            send(get_context(), held)


@dataclass
class AtWork:
    """The place of the current message. At the end its holder frees it, or sends the next hop after `requeue`."""

    place: Place
    after: Signature | None = None

    def requeue(self, signature: Signature) -> None:
        """Queue up again at the tail, in the same place: the lane's next hop, with its part in the chord."""
        self.after = signature


@contextmanager
def at_work(
    task: Any, place: Place, ttl_s: float = LONGEST_WORK_S, guarded: GuardedCall | None = None
) -> Iterator[AtWork | None]:
    """Hold a message's place during its work. Yield None if another live message has the place: then do nothing; the
    rest of the chain or chord follows the other message.

    `ttl_s`: longer than the work takes; after it the place counts as free, even if its holder lives. `guarded`: the
    call of a message that passed a gate; without work, this gives its admission back. Raises `RedisError`.
    """
    places, holder = Places(get_context().redis), f"{identity.process_id}/{task.request.id}"
    try:
        other = places.begin(place, holder, ttl_s)
        if other and _has_ended(other):
            other = places.begin(place, holder, ttl_s, dead_holder=other)
    except RedisError:
        _leave_later(places, place, holder)  # Redis may have taken the place, and its answer was lost
        raise
    if other:
        if guarded is not None:
            _give_back_admission(guarded, other, task.request.id)
        task.request.update(chord=None, chain=None, callbacks=None)
        yield None
        return
    work = AtWork(place)
    try:
        yield work
    finally:
        try:
            if work.after is None:
                places.leave(place, holder)
            elif places.wait(place, holder):
                send_next_hop(task.request, work.after)
        except BaseException:  # also a time limit at this point
            _leave_later(places, place, holder)
            raise


def _leave_later(places: Places, place: Place, holder: str) -> None:
    """Start a thread that frees a place as soon as Redis answers: otherwise it would count as taken as long as this
    process lives. Stops if the message is redelivered to this process."""
    message = holder.rpartition("/")[2]

    def leave() -> None:
        has_left = False
        while not has_left:
            time.sleep(LEAVE_RETRY_S)
            if deliveries.under_way(message):
                return  # the message was redelivered
            with suppress(RedisError, OSError, ValueError):  # the last two: a connection closed during the call
                places.leave(place, holder)
                has_left = True

    threading.Thread(target=leave, name="leave", daemon=True).start()


def _give_back_admission(guarded: GuardedCall, other: str, message: str) -> None:
    """Leave the gate, because another live message does the work. If the other is a second delivery of this message to
    this worker, it has the admission under the same holder and may be in its call: leave the admission to it."""
    process, _, its_message = other.rpartition("/")
    if its_message == message and identity.has(process):
        guarded.holds = False
        return
    with suppress(RedisError):
        guarded.leave()


def _has_ended(holder: str) -> bool:
    """Whether the holder of a place has certainly ended: a dead process of this worker, or a message that no thread of
    this process works on.

    False for other workers' processes, whose state is unknown here.
    """
    process, _, message = holder.rpartition("/")
    return identity.has_ended(process) or (process == identity.process_id and not deliveries.under_way(message))


ELSEWHERE = "another message does the work"
"""The result of a message whose place is taken."""


def summary(settled: Settled, unit: str) -> str:
    """Return a message's work in words for monitors: `2 nodes`, `failed, retry in 60 s`, `nothing to do`. `unit`: a
    singular noun."""
    parts = [count(settled.done, unit)] if settled.done else []
    if settled.status is not None and not settled.done:
        parts.append(str(settled.status).replace("_", " "))
    if settled.retry_in_s is not None:
        parts.append(f"retry in {max(0.0, settled.retry_in_s):.0f} s")
    return ", ".join(parts) or "nothing to do"


def expect(*following: Place) -> None:
    """Mark these places as waiting, so that no launch sends their messages: a chain or chord is about to do so."""
    places = Places(get_context().redis)
    for place in following:
        places.wait(place)


def owner(task: Any) -> Owner:
    """The owner of claims: this process, for this message."""
    return Owner(identity.process_id, task.request.id, identity.has_ended)


def once(body: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the body of a bound task: skip a message that another thread of this process works on, since the broker
    redelivers it after a lost connection. A skipped message ends its chain.

    Performs the requests of the message's transactions after it has freed its place.
    """

    @wraps(body)
    def run(task: Any, *args: Any, **kwargs: Any) -> Any:
        with deliveries.first(task.request.id) as is_first, _sent_at_end():
            if is_first:
                return body(task, *args, **kwargs)
            task.request.chain = None
            return None

    return run


def send_next_hop(request: Any, hop: Signature) -> None:
    """Send a lane's next hop, which takes over the request's part in its chord, and its chain.

    Like `Task.replace`, but without an exception, and with an own id for the hop, so that monitors see each hop end.
    The id is random, not a number: after a double delivery, both deliveries continue as lanes, and neither may take the
    other's work for that of a dead predecessor. `celery_internals.results` counts both once.
    """
    hop.set(chord=request.chord, group_id=request.group, group_index=request.group_index)
    in_a_row(hop, [signature(step) for step in reversed(request.chain or [])]).apply_async()
    request.update(chord=None, chain=None, callbacks=None)
