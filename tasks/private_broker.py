"""Celery's broker on a socket in a folder whose name anybody can guess: see `pipeline.engine.private_socket`."""

from typing import Any

from kombu.transport import redis

from pipeline.engine.private_socket import OwnFolder


class Channel(redis.Channel):
    """kombu's own, but that each of its connections looks first whose folder it is."""

    def _connparams(self, asynchronous: bool = False) -> Any:
        options = super()._connparams(asynchronous)  # type: ignore[no-untyped-call]
        options["connection_class"] = type("PrivateSocket", (OwnFolder, options["connection_class"]), {})
        return options


class Transport(redis.Transport):
    """kombu's own, over these channels."""

    Channel = Channel
