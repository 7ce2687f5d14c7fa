"""The order of messages in a queue: by their time of sending, a message that is given back finds its old position."""

import time
from typing import Any

from celery.signals import before_task_publish
from kombu.transport.virtual import QoS
from kombu.utils.json import dumps

from pipeline.engine.launch import DELIVERED_KEY
from pipeline.engine.leases import script
from pipeline.engine.metrics import SENT


@before_task_publish.connect
def _note_when(headers: dict[str, Any] | None = None, **_: Any) -> None:
    if headers is not None:
        headers[SENT] = time.time_ns() // 1000


def give_back(channel: Any, message: Any) -> None:
    """Return a message to its position at the head of its queue. kombu would return it to the tail.

    All messages of a gated queue wait for the same gate, so the head delays no other message, and the order stays.
    Raises the connection's errors.
    """
    payload, tag = message._raw, message.delivery_tag  # noqa: SLF001  # kombu has no public name for it
    payload["headers"]["redelivered"] = payload["properties"]["delivery_info"]["redelivered"] = True
    priority = channel._get_message_priority(payload, reverse=False)  # noqa: SLF001
    queue = channel._q_for_pri(message.delivery_info["routing_key"], priority)  # noqa: SLF001
    keys = [channel.unacked_key, channel.unacked_index_key, queue, DELIVERED_KEY]
    with channel.conn_or_acquire() as client:
        act = client.register_script(script("give_back"))
        text = dumps(payload)  # type: ignore[no-untyped-call]
        act(keys=keys, args=[tag, text, payload["headers"].get(SENT, 0)])
    # Like the end of kombu's `reject`: the message is no longer to be acknowledged.
    QoS.ack(channel.qos, tag)  # type: ignore[no-untyped-call]
