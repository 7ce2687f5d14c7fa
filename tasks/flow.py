"""How any flow runs on Celery: its work is launched, woken and announced here, and each message is done once.

A flow's `canvas.py` makes one `FlowTasks` with what is its own: which messages a scope's rows ask for.
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
"""Scopes that are looked at together."""
LONGEST_WORK_S = 600.0
"""Longer than nearly all messages are worked on. After that another one may be sent, which finds nothing to claim; a
place whose end a lost Redis forgot is free again."""
HEARS_S, HEARD_S = 5.0, 0.2
"""How often a flow that follows events is asked whether anybody waits for them, and how soon it is woken."""
LEAVE_AGAIN_S = 5.0
"""How long to wait before a place is left once more, where that failed."""


@dataclass(frozen=True)
class Messages:
    """Messages that rows ask for now, in one queue. `canvas`: what to send, for the places that lack a message.

    `tail`: what follows it in its chain.
    """

    wanted: Wanted
    canvas: Callable[[Sequence[int]], Signature]
    tail: Sequence[Signature] = ()

    def whole(self, numbers: Sequence[int]) -> Signature:
        """The canvas and its tail."""
        return in_a_row(self.canvas(numbers), self.tail)


Send = Callable[[Messages, Sequence[int]], object]
"""Sends messages for these places."""


def _apply(messages: Messages, numbers: Sequence[int]) -> None:
    messages.whole(numbers).apply_async()


def in_a_row(first: Signature, rest: Sequence[Signature]) -> Signature:
    """A chain, where anything follows."""
    return chain(first, *rest) if rest else first


@dataclass(frozen=True)
class FlowTasks:
    """A flow on Celery. `wake` is its task that launches what has waited long enough."""

    flow: Flow
    messages: Callable[[Context, Sequence[str]], Iterable[Messages]]
    """The messages that these scopes' rows ask for now, be they on their way already or not."""
    announcement: Callable[[Context, str], Announcement | None] = lambda _context, _scope: None
    """How a scope stands, for those who follow it; None if there is nothing to say."""

    def __post_init__(self) -> None:
        @app.task(name=self._wake, ignore_result=True)
        def wake() -> None:
            """Launch what has waited long enough, and see to the next wake-up."""
            self.tend()

    @property
    def _wake(self) -> str:
        return f"{self.flow.name}.wake"

    @property
    def wake(self) -> Any:
        """The Celery task that launches what has waited long enough."""
        return app.tasks[self._wake]

    def launch(self, *scopes: str) -> int:
        """Send what these scopes' rows ask for and what is not on its way; how many messages. The only way work begins.

        Nothing is sent to a closed gate. A broker that is away costs time, not work: the sweeper launches what nobody
        did, also where a gate opens again.
        """
        return self._launch(get_context(), scopes)

    def replace(self, task: Any, *scopes: str) -> str:
        """Send what these scopes' rows ask for in place of `task`, whose chain goes on behind it: see `Task.replace`.

        Raises `Ignore` if it was replaced. If not, it says why, and the chain ends: the rows ask for nothing, the gate
        is closed, or other messages are on their way.
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
            return "not sent: the broker is away"
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
        asked = list(self.messages(context, scopes))
        unknown = {one.wanted.queue for one in asked} - set(app.amqp.queues)
        if unknown:
            # Of a provider that was removed: others' messages must not wait because of it. See `fail_unserved`.
            log.error("launch.unknown_queue", flow=self.flow.name, queues=sorted(unknown))
        asked = [one for one in asked if one.wanted.queue not in unknown]
        shut = {queue for queue in {one.wanted.queue for one in asked} if gates.closed_because(context, queue)}
        asked = [one for one in asked if one.wanted.queue not in shut]

        def publish(at: int, numbers: Sequence[int]) -> None:
            # Denied: else the client subscribes to a result that nobody reads, and tries for 20 s if Redis is away.
            # What is not sent counts as waiting for a while.
            with (
                denied_join_result(),
                isolated("launch.failed", OperationalError, RedisError, scope=asked[at].wanted.scope),
            ):
                send(asked[at], numbers)

        return launch(Places(context.redis), [one.wanted for one in asked], publish)

    def send(self, context: Context, dispatch: Dispatch) -> None:
        """Send what transactions asked for of this flow."""
        name = self.flow.name
        for row in dispatch.news.get(name, ()):
            self._announce(context, row)
        self._launch(context, dispatch.launches.get(name, ()))
        self._wake_in(context, dispatch.wakes_s.get(name))

    def tend(self) -> None:
        """Launch what is due, and see to the next wake-up."""
        context = get_context()
        self.launch(*self.flow.due(context))
        self.wake_in(self.flow.next_wait_s(context))

    def sweep(self, absent: set[str], go_on: Callable[[], object] = lambda: None) -> int:
        """Give back what absent processes held, and send whatever is to be done and has no message; how many.

        `go_on` is called again and again: a sweep may take long.
        """
        context = get_context()
        freed = self.flow.free_lost(context, absent)
        # What is due first: that sees to what only time brings about.
        sent = self.launch_all(go_on, self.flow.due(context))
        if sent or freed:
            log.info("sweep.launched", flow=self.flow.name, messages=sent, absent=sorted(absent))
        self.wake_in(self.flow.next_wait_s(context))
        return sent

    def launch_all(self, go_on: Callable[[], object] = lambda: None, first: Iterable[str] = ()) -> int:
        """Send whatever is to be done and has no message, but to closed gates; how many messages.

        `first`: scopes that are launched before the others.
        """
        context = get_context()
        shut = frozenset(name for name in context.gates.queues if gates.closed_because(context, name))
        before = dict.fromkeys(first)
        others = (scope for scope in self.flow.runnable(context, shut) if scope not in before)
        sent = 0
        for portion in portions(itertools.chain(before, others), PORTION):
            go_on()
            sent += self.launch(*portion)
        return sent

    def fail_unserved(self) -> None:
        """Fail what waits for a provider that is not configured any more, and tell those who follow it."""
        for scope in self.flow.fail_unserved(get_context()):
            self.announce(scope)

    def wake_in(self, wait_s: float | None) -> None:
        """See to it that the flow is woken in `wait_s` seconds; None: not because of this."""
        self._wake_in(get_context(), wait_s)

    def _wake_in(self, context: Context, wait_s: float | None) -> None:
        try:
            if wait_s is not None and context.online and plan_wakeup(context.redis, self.flow.name, wait_s):
                self.wake.apply_async(countdown=max(0.0, wait_s) + 0.05)
        except (RedisError, OperationalError) as error:
            # The sweeper finds what is due.
            log.warning("wakeup.postponed", flow=self.flow.name, error=type(error).__name__)

    def announce(self, scope: str = "") -> None:
        """Publish how the scope stands."""
        self._announce(get_context(), scope)

    def _announce(self, context: Context, scope: str) -> None:
        told = self.announcement(context, scope) if context.online else None
        if told is not None:
            event, fields = told
            events.publish(context.redis, self.flow.name, event, **fields)
        _tell_listeners(context)


def _tell_listeners(context: Context) -> None:
    """Wake the flows that follow events, if any wants one: checked every few seconds, not each time.

    Programs that need one flow alone do not load the others for this: the workers that go on with their work do it.
    """
    for flow in loaded_flows():
        if flow.hears is None:
            continue
        asked_at, hears = context.cache.get(("hears", flow.name), (-HEARS_S, False))
        if time.monotonic() - asked_at > HEARS_S:
            hears = flow.hears(context)
            context.cache["hears", flow.name] = time.monotonic(), hears
        if hears:
            flow_tasks(flow.name).wake_in(HEARD_S)


def flow_tasks(flow: str) -> FlowTasks:
    """Those of a flow, imported when they are needed."""
    found: FlowTasks = import_module(f"tasks.{flow}.canvas").TASKS
    return found


@cache
def all_flow_tasks() -> tuple[FlowTasks, ...]:
    """Those of every flow, in the order of `FLOWS`."""
    return tuple(map(flow_tasks, FLOWS))


_HELD: ContextVar[Dispatch | None] = ContextVar("held", default=None)
"""What transactions of the message that is worked on asked for."""


def send(context: Context, dispatch: Dispatch) -> None:
    """Send what a transaction asked for, now that it has committed: the launcher of contexts.

    While a message is worked on, this waits for its end: until then it has its place, and there is nothing to send.
    """
    if dispatch.gates:  # at once: others would go on calling a provider that refuses
        import_module("tasks.watchdog").tell(context, dispatch.gates)
    held = _HELD.get()
    if held is not None:
        held.add(replace(dispatch, gates={}))
        return
    for flow in dict.fromkeys((*dispatch.news, *dispatch.launches, *dispatch.wakes_s)):
        with isolated("launch.failed", flow=flow):  # the sweeper finds what is due
            flow_tasks(flow).send(context, dispatch)


@contextmanager
def _sent_at_its_end() -> Iterator[None]:
    """What transactions ask for is sent when the block ends: once, however many they are."""
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
    """A message's place while it is worked on. Say what comes after it before leaving; nothing: the place is left."""

    place: Place
    after: Signature | None = None

    def again(self, signature: Signature) -> None:
        """Queue up again at the tail, in the same place: the lane's next hop. It takes over the part in the chord."""
        self.after = signature


@contextmanager
def at_work(
    task: Any, place: Place, ttl_s: float = LONGEST_WORK_S, guarded: GuardedCall | None = None
) -> Iterator[AtWork | None]:
    """Take a message's place while it is worked on; None if a living other has it: then nothing is to be done, and
    what follows the message in its chain or chord follows the other's.

    `ttl_s`: longer than the work takes; after it the place counts as free, even if its holder lives. `guarded`: of a
    message that passed a gate; where nothing is to be done, its admission is given back.
    """
    places, holder = Places(get_context().redis), f"{identity.process_id}/{task.request.id}"
    try:
        other = places.begin(place, holder, ttl_s)
        if other and _has_ended(other):
            other = places.begin(place, holder, ttl_s, gone=other)
    except RedisError:
        _leave_later(places, place, holder)  # it may have been taken, and the answer lost
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
                take_place_again(task.request, work.after)
        except BaseException:  # a time limit, too, may end it just here
            _leave_later(places, place, holder)
            raise


def _leave_later(places: Places, place: Place, holder: str) -> None:
    """Leave a place as soon as Redis answers: else it would count as taken for as long as this process lives."""
    message = holder.rpartition("/")[2]

    def leave() -> None:
        left = False
        while not left:
            time.sleep(LEAVE_AGAIN_S)
            if deliveries.under_way(message):
                return  # it was delivered again
            with suppress(RedisError, OSError, ValueError):  # the last two: its connection was closed in the middle
                places.leave(place, holder)
                left = True

    threading.Thread(target=leave, name="leave", daemon=True).start()


def _give_back_admission(guarded: GuardedCall, other: str, message: str) -> None:
    """Leave the gate, since a living other does the work. If that other works on this very message in a process of this
    worker, it has passed the gate under the same name and may be in its call: the admission is its own to give back."""
    process, _, its_message = other.rpartition("/")
    if its_message == message and identity.has(process):
        guarded.holds = False
        return
    with suppress(RedisError):
        guarded.leave()


def _has_ended(holder: str) -> bool:
    """Whether a holder of a place is certainly no more, though its lease may say that it lives."""
    process, _, message = holder.rpartition("/")
    return identity.gone(process) or (process == identity.process_id and not deliveries.under_way(message))


ELSEWHERE = "another message does it"
"""What a message returns that finds its place taken."""


def summary(settled: Settled, unit: str) -> str:
    """What a message did, for monitors: `2 nodes`, `failed, again in 60 s`, `nothing to do`. `unit`: a singular."""
    parts = [count(settled.done, unit)] if settled.done else []
    if settled.status is not None and not settled.done:
        parts.append(str(settled.status).replace("_", " "))
    if settled.retry_in_s is not None:
        parts.append(f"again in {max(0.0, settled.retry_in_s):.0f} s")
    return ", ".join(parts) or "nothing to do"


def expect(*following: Place) -> None:
    """Note that messages are about to be sent for these places by a chain or chord that goes on: not by a launch."""
    places = Places(get_context().redis)
    for place in following:
        places.wait(place)


def owner(task: Any) -> Owner:
    """Who claims: this process, for this message."""
    return Owner(identity.process_id, task.request.id, identity.gone)


def once(body: Callable[..., Any]) -> Callable[..., Any]:
    """Do nothing if a thread of this process is working on this very message: a broker that was away repeats them.

    What its transactions ask for is sent when it has left its place. For bound tasks. A repeated message ends its
    chain.
    """

    @wraps(body)
    def run(task: Any, *args: Any, **kwargs: Any) -> Any:
        with deliveries.first(task.request.id) as is_first, _sent_at_its_end():
            if is_first:
                return body(task, *args, **kwargs)
            task.request.chain = None
            return None

    return run


def take_place_again(request: Any, hop: Signature) -> None:
    """Send a lane's next hop. It takes over the request's part in its chord, and its chain.

    What `Task.replace` does, without the exception that it raises, and with an id of the hop's own: monitors see each
    hop end. The id is drawn, not counted: if a message was delivered twice, both deliveries continue as lanes, and
    neither may take the other's work for that of a dead predecessor. `celery_internals.results` counts both once.
    """
    hop.set(chord=request.chord, group_id=request.group, group_index=request.group_index)
    in_a_row(hop, [signature(step) for step in reversed(request.chain or [])]).apply_async()
    request.update(chord=None, chain=None, callbacks=None)
