"""Celery's broker: check the owner of its socket (`pipeline.engine.private_socket`), and survive a full Redis."""

from typing import Any

from celery.app.amqp import AMQP
from kombu.connection import Connection
from kombu.transport import redis

from pipeline.engine.full_redis import RedisFull
from pipeline.engine.private_socket import OwnFolder
from pipeline.settings import get_settings

# Applies to all of kombu's transports to Redis: kombu treats the error of a full Redis as fatal and ends the worker.
redis.Transport.connection_errors += (RedisFull,)


class Channel(redis.Channel):
    """kombu's own, but that each of its connections looks first whose folder it is."""

    def _connparams(self, asynchronous: bool = False) -> Any:
        options = super()._connparams(asynchronous)  # type: ignore[no-untyped-call]
        options["connection_class"] = type("PrivateSocket", (OwnFolder, options["connection_class"]), {})
        return options


class Transport(redis.Transport):
    """kombu's own, over these channels."""

    Channel = Channel


class BrokerConnection(Connection):
    """kombu's own, but for such a socket. (From a URL, kombu takes a transport by the scheme, whatever it is told.)"""

    def get_transport_cls(self) -> Any:
        is_private = (self.hostname or "").startswith("socket:") and get_settings().redis.private
        return Transport if is_private else super().get_transport_cls()  # type: ignore[no-untyped-call]


class Amqp(AMQP):
    """Celery's own, over these connections."""

    Connection = BrokerConnection
