"""Celery's broker: checks the owner of its socket (`pipeline.engine.private_socket`), and survives a full Redis."""

from typing import Any

from celery.app.amqp import AMQP
from kombu.connection import Connection
from kombu.transport import redis

from pipeline.engine.full_redis import RedisFull
from pipeline.engine.private_socket import OwnFolder
from pipeline.settings import get_settings

# For all of kombu's transports to Redis: kombu treats the error of a full Redis as fatal and ends the worker.
redis.Transport.connection_errors += (RedisFull,)


class Channel(redis.Channel):
    """kombu's channel, but each of its connections first checks the owner of the socket's folder."""

    def _connparams(self, asynchronous: bool = False) -> Any:
        options = super()._connparams(asynchronous)  # type: ignore[no-untyped-call]
        options["connection_class"] = type("PrivateSocket", (OwnFolder, options["connection_class"]), {})
        return options


class Transport(redis.Transport):
    """kombu's transport over these channels."""

    Channel = Channel


class BrokerConnection(Connection):
    """kombu's connection, with this transport for a private socket. (kombu ignores other ways to set it for a URL.)"""

    def get_transport_cls(self) -> Any:
        is_private = (self.hostname or "").startswith("socket:") and get_settings().redis.private
        return Transport if is_private else super().get_transport_cls()  # type: ignore[no-untyped-call]


class Amqp(AMQP):
    """Celery's AMQP interface over these connections."""

    Connection = BrokerConnection
