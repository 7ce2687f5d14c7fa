"""A consumer that can refuse a message before it takes a pool slot, and stop consuming single queues."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
from celery.utils.threads import bound_open_broker_sockets
from celery.worker.consumer.consumer import COLLECT_SOCKET_TIMEOUT, Consumer

from tasks.celery_internals.messages import give_back

log = structlog.get_logger(__name__)


class RefusingConsumer(Consumer, ABC):
    """Celery's consumer, but `admits` decides about each message first."""

    @abstractmethod
    def admits(self, request: Any) -> bool:
        """Whether the pool may have this message now. If not, the message goes back to the head of its queue."""

    def bucket_for_task(self, type: Any) -> Any:  # noqa: A002  # Celery's name
        """Give all tasks a bucket, because only the message itself names its queue."""
        return super().bucket_for_task(type) or _PassedOn()

    def _limit_task(self, request: Any, bucket: Any, tokens: int) -> Any:
        if not isinstance(bucket, _PassedOn):
            return super()._limit_task(request, bucket, tokens)
        if self.admits(request):
            return self._limit_move_to_pool(request)
        self._give_back(request)
        return None

    def _give_back(self, request: Any) -> None:
        try:
            give_back(self.task_consumer.channel, request.message)
        except self.connection_errors as error:
            # The broker restores the unacknowledged message with the connection.
            log.warning("gate.message_kept", task=request.id, error=type(error).__name__)
        request.acknowledged = True

    def _limit_post_eta(self, request: Any, bucket: Any, tokens: int) -> Any:
        self.qos.decrement_eventually()
        return self._limit_task(request, bucket, tokens)

    def stop_consuming(self, queue: str) -> None:
        """Stop consuming a queue; a BRPOP under way may still bring one message."""
        callbacks: Any = self.task_consumer.channel.connection._callbacks  # noqa: SLF001  # kombu's, by queue
        late = callbacks[queue]
        self.task_consumer.cancel_by_queue(queue)
        # A BRPOP under way may still bring one message, which is refused like others, and goes back to the head.
        # Without a callback, kombu would return it to the tail.
        callbacks[queue] = late

    def listen(self, key: str, on_entry: Callable[[str], object]) -> None:
        """Read the list `key` together with the queues. `on_entry` gets each entry; an entry ends a BRPOP under way."""
        channel: Any = self.task_consumer.channel
        if key not in channel.active_queues:
            channel.basic_consume(
                key, no_ack=True, callback=lambda entry: on_entry(entry.delivery_tag), consumer_tag=key
            )

    def wait_at_most(self, seconds: float | None) -> None:
        """Make the next BRPOP end after `seconds`; None: after the usual time."""
        channel: Any = self.task_consumer.channel
        channel.brpop_timeout = channel.connection.brpop_timeout if seconds is None else seconds

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Close the channel before Celery does.

        kombu 5.7 stops closing a channel whose BRPOP fails, and closes it again without a transport. This raises an
        AttributeError, which Celery treats as fatal, in a worker that holds a message and waits for another.
        """
        channel: Any = self.task_consumer and self.task_consumer.channel
        if channel:
            bound_open_broker_sockets(self.connection, COLLECT_SOCKET_TIMEOUT)
            for _ in range(2):  # the first close may fail at the BRPOP, the second has none
                with suppress(*self.connection_errors, *self.channel_errors):
                    channel.close()
        super().on_connection_error_after_connected(exc)


class _PassedOn:
    """A placeholder rate limit, which makes Celery pass each message to `_limit_task`."""

    def clear_pending(self) -> None:
        """Do nothing: this bucket has no pending messages."""
