"""What a worker's main process does with its connection to the broker."""

from contextlib import suppress
from typing import Any

from celery.utils.threads import bound_open_broker_sockets
from celery.worker.consumer.consumer import COLLECT_SOCKET_TIMEOUT
from celery.worker.consumer.consumer import Consumer as CeleryConsumer


class Consumer(CeleryConsumer):
    """Celery's consumer, but a worker survives every loss of the broker."""

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Close the channel before Celery does.

        kombu 5.7 breaks off closing a channel whose BRPOP fails, and closes it anew when its transport is gone. That
        ends a worker which holds a message and waits for another one, by an AttributeError that Celery takes for fatal.
        """
        channel: Any = self.task_consumer and self.task_consumer.channel
        if channel:
            bound_open_broker_sockets(self.connection, COLLECT_SOCKET_TIMEOUT)
            for _ in range(2):  # the first may be broken off, the second then has no BRPOP to end
                with suppress(*self.connection_errors, *self.channel_errors):
                    channel.close()
        super().on_connection_error_after_connected(exc)
