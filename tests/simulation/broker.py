"""A broker over Redis lists, laid out as kombu does, that loses, duplicates, delays and reorders messages."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import OutOfMemoryError

from pipeline.engine.metrics import SENT
from tests.simulation.redis_client import SimulatedRedis
from tests.simulation.world import World

UNACKED, UNACKED_INDEX = "unacked", "unacked_index"
PRIORITIES = (0, 3, 6, 9)
PASSED_FOR_LOST = 1
"""If faults moved so many messages ahead of a message, it may count as lost: `place_lib.lua` counts the messages
that pass it, and does not know that they came out of turn."""
_FETCH = """
for i = 3, #KEYS do
  local found = redis.call('RPOP', KEYS[i])
  if found then
    local tag = cjson.decode(found).properties.delivery_tag
    redis.call('HSET', KEYS[1], tag, found)
    redis.call('ZADD', KEYS[2], 0, tag)
    return found
  end
end
"""
_ALL = """
local found = redis.call('HVALS', KEYS[1])
for i = 2, #KEYS do
  for _, message in ipairs(redis.call('LRANGE', KEYS[i], 0, -1)) do found[#found + 1] = message end
end
return found
"""


@dataclass
class Message:
    """A task's message. `touched`: a fault lost, repeated or delayed it or the one before it in its place."""

    id: str
    queue: str
    body: Callable[..., None]
    args: tuple[Any, ...]
    place: tuple[str, str, int] | None = None
    priority: int = 0
    touched: bool = False
    leaving: bool = False
    """A worker has worked on the message, and gives up its place or hands it on."""
    has_ended: bool = False
    """A worker has completed the message."""
    waits_since_us: int = 0
    """When the message was sent, or a worker gave it back because its gate refused it."""
    taken_us: int | None = None
    """When a worker received the message, until the worker takes its place."""
    arrival: int = 0
    moved: bool = False
    """A fault moved the message to the head of its queue, ahead of earlier ones."""
    overtaken: int = 0
    passed_by_moved: int = 0
    """How many later messages, moved by faults, workers handled before it."""


@dataclass
class Delivery:
    """A message that a worker holds. `raw`: its bytes in Redis."""

    message: Message
    raw: dict[str, Any]

    @property
    def tag(self) -> str:
        """The message's key among the unacknowledged ones."""
        return str(self.raw["properties"]["delivery_tag"])


class Broker:
    """The broker of one world."""

    def __init__(self, world: World, redis: SimulatedRedis) -> None:
        self.world = world
        self._redis = redis
        self.messages: dict[str, Message] = {}
        self.deliveries: dict[str, Delivery] = {}
        self._queued = 0
        """An upper bound of the messages in Redis: at zero, workers need not ask Redis."""
        self.full = False
        """Redis is at its memory limit."""
        self.waiting: dict[str, Message] = {}
        """Messages that no worker has handled yet, by id, in the order in which they were sent."""
        self.on_arrival: Callable[[Message], None] = lambda message: None
        self.held_up: Callable[[], bool] = lambda: False
        self.on_publish: Callable[[Message], None] = lambda message: None

    def _do(self, *command: Any) -> Any:
        return self._redis.wire.call(*command)

    def _later(self, *command: Any) -> None:
        self._redis.wire.later(*command)

    # Sending

    def publish(self, message: Message) -> None:
        """Send a message, as the acting process."""
        world, faults = self.world, self.world.faults
        world.point("before publishing")
        # The sender stalled after it reserved the place, so another message may have been sent instead.
        if self.full:
            raise OutOfMemoryError("OOM command not allowed when used memory > 'maxmemory'.")
        late = self.held_up()
        message.touched = message.touched or late
        world.now_us += 50
        if not late:  # a late message makes all messages reserved with it late
            self._redis.spoke()
        self.messages[message.id] = self.waiting[message.id] = message
        message.waits_since_us = world.now_us
        world.note("publishes", message=message.id, place=message.place or message.queue)
        if world.chance(faults.lose):
            world.note("is lost", message=message.id)
        elif world.chance(faults.delay):
            message.touched = True
            world.note("is delayed", message=message.id)
            world.at(world.rng.uniform(1, 60), lambda: self._put(message))
        else:
            self._put(message, head=world.chance(faults.reorder))
            if world.chance(faults.duplicate):
                world.note("is duplicated", message=message.id)
                message.touched = True
                self._put(message)
        self.on_publish(message)
        world.point("after publishing")

    def _put(self, message: Message, *, head: bool = False) -> None:
        if self.full:  # try again later
            self.world.at(1, lambda: self._put(message, head=head))
            return
        message.arrival = self.world.number()
        message.touched = message.touched or head
        message.moved = head
        sent = int(self.world.host_time().timestamp() * 1e6)
        tag = f"{message.id}-{self.world.number()}"
        raw = {
            "headers": {"id": message.id, SENT: sent},
            "properties": {"delivery_tag": tag, "delivery_info": {"routing_key": message.queue}},
        }
        self._push(message, raw, head=head)

    def _push(self, message: Message, raw: dict[str, Any], *, head: bool) -> None:
        message.leaving = False
        self._queued += 1
        self._later("RPUSH" if head else "LPUSH", list_of(message.queue, message.priority), json.dumps(raw))
        self.on_arrival(message)

    # Receiving

    def fetch(self, queues: Sequence[str]) -> Delivery | None:
        """Take the next message of these queues, as BRPOP does, and enter it among the unacknowledged ones.

        None while Redis is full: it refuses the entry."""
        if self.full or not self._queued:
            return None
        lists = [list_of(queue, priority) for priority in PRIORITIES for queue in queues]
        raw_message = self._do("EVAL", _FETCH, len(lists) + 2, UNACKED, UNACKED_INDEX, *lists)
        if not raw_message:
            return None
        self._queued -= 1
        raw = json.loads(raw_message)
        delivery = Delivery(self.messages[raw["headers"]["id"]], raw)
        delivery.message.taken_us = self.world.now_us
        self.deliveries[delivery.tag] = delivery
        return delivery

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge a message."""
        if self.deliveries.pop(delivery.tag, None):
            self._later("HDEL", UNACKED, delivery.tag)

    def returned(self, tag: str) -> None:
        """Return a message that a worker gave back."""
        self._queued += 1
        if delivery := self.deliveries.pop(tag, None):
            delivery.message.taken_us, delivery.message.waits_since_us = None, self.world.now_us

    def restore(self, delivery: Delivery, *, head: bool) -> None:
        """Return an unacknowledged message to its queue, after a cut connection or the visibility timeout."""
        delivery.message.touched = True
        if self.full:  # kombu does both in one transaction, which is refused, and tries again
            self.world.at(2, lambda: self.restore(delivery, head=head))
            return
        delivery.message.moved = delivery.message.moved or head
        if self.deliveries.pop(delivery.tag, None) and self._do("HDEL", UNACKED, delivery.tag):
            delivery.raw["headers"]["redelivered"] = True
            self._push(delivery.message, delivery.raw, head=head)

    def flushed(self) -> None:
        """Note that Redis was emptied. The flow may send messages again that workers hold."""
        for delivery in self.deliveries.values():
            delivery.message.touched = True
        self.deliveries.clear()
        self._queued = 0

    def failed_over(self, queues: Sequence[str]) -> None:
        """Note that Redis lacks the last writes: these queues have messages again that workers handled since."""
        for message in self.messages.values():
            message.touched = True
        lists = [list_of(queue, priority) for queue in queues for priority in PRIORITIES]
        raw_lists = self._redis.wire.calls([("LRANGE", name, 0, -1) for name in lists])
        self._redis.wire.call("DEL", *lists)
        self._queued = 0
        for raw_message in (raw for raws in raw_lists for raw in reversed(raws)):
            self._again(json.loads(raw_message))

    def restore_left(self) -> None:
        """Return the unacknowledged messages that no worker knows, after the visibility timeout."""
        for raw_message in self._do("HVALS", UNACKED):
            raw = json.loads(raw_message)
            self._do("HDEL", UNACKED, raw["properties"]["delivery_tag"])
            raw["headers"]["redelivered"] = True
            self.world.at(self.world.rng.uniform(30, 60), lambda raw=raw: self._again(raw))

    def _again(self, raw: dict[str, Any]) -> None:
        """Put a message back under another tag, because a worker may still hold it under this one."""
        message = self.messages[raw["headers"]["id"]]
        raw["properties"]["delivery_tag"] = f"{message.id}-{self.world.number()}"
        self._push(message, raw, head=False)

    def started(self, message: Message) -> None:
        """Record that a worker handles a message. If a fault moved it to the head, count it for those it passed."""
        is_first = self.waiting.pop(message.id, None) is not None
        # A repeated delivery does not count again while its place records that a worker started it there.
        if message.moved and (is_first or message.has_ended):
            lane = (message.queue, message.priority)
            for other in self.waiting.values():
                was_before = other.arrival < message.arrival or not is_first
                if (other.queue, other.priority) == lane and was_before:
                    other.passed_by_moved += 1
                    other.touched = other.touched or other.passed_by_moved >= PASSED_FOR_LOST

    def took_place(self, message: Message) -> bool:
        """Excuse messages that wait for the place of a message that a fault touched. Returns whether there are any."""
        assert message.place
        outstanding = self.outstanding(*message.place[:2])
        others = [other for other in outstanding if other.place == message.place and other is not message]
        for other in others:
            other.touched = True
        return bool(others)

    # Counts

    def outstanding(self, scope: str, queue: str) -> list[Message]:
        """Return the messages of a scope in a queue, waiting or held by workers."""
        lists = [list_of(queue, priority) for priority in PRIORITIES]
        raw_messages = self._do("EVAL", _ALL, len(lists) + 1, UNACKED, *lists)
        messages = [self.messages[json.loads(raw)["headers"]["id"]] for raw in raw_messages]
        return [
            message
            for message in messages
            if message.place and message.place[:2] == (scope, queue) and not message.leaving
        ]

    def depth(self, queues: Sequence[str]) -> int:
        """Count the messages that wait in these queues."""
        commands = [("LLEN", list_of(queue, priority)) for queue in queues for priority in PRIORITIES]
        return sum(self._redis.wire.calls(commands))


def list_of(queue: str, priority: int) -> str:
    """The list of a queue and a step of priority, as kombu names it."""
    return f"{queue}\x06\x16{priority}" if priority else queue
