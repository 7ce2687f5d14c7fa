"""Serves the API with uvicorn, with a time-out for every phase of a request, heads included."""

import os
import socket
from collections.abc import Callable

import structlog
import uvicorn
from fastapi import FastAPI

from pipeline.engine.errors import UserError
from pipeline.interfaces.api.app import create_app
from pipeline.interfaces.http.connections import Patience, Server, bind, check_openness, configuration
from pipeline.settings import ApiSettings
from pipeline.standalone.address import address_of, announced, is_loopback
from pipeline.storage import api_keys
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
GRACE_S = 8
"""Seconds that requests under way may take when the server shuts down: less than the supervisor waits."""

_MAX_MESSAGE_BYTES = 4096
"""The largest message that a client may send through a WebSocket: its content does not matter."""


class NoKey(UserError):
    """The API would be open to every client on the network."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"the API needs a key before it listens on {host}: run `penstock keys create NAME`, or listen on 127.0.0.1",
            code="no_key",
        )


def listen(context: Context, host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises `NoKey`, `NoTls`, `PortInUse`, or `UserError` for an unusable certificate or an address on which it cannot
    listen.
    """
    if not is_loopback(host) and not api_keys.any_usable(context):
        raise NoKey(host)
    check_openness(host, context.settings.api, "API")
    return bind(host, port, "PENSTOCK_API__PORT")


def url(context: Context, listening: socket.socket) -> str:
    """The API's address, for people."""
    host, port = listening.getsockname()[:2]
    return address_of(context.settings.api, host, port)


def config(app: FastAPI, settings: ApiSettings) -> uvicorn.Config:
    """uvicorn's configuration for the application."""
    limits = {
        "head_s": settings.head_timeout_s,
        "most": settings.max_connections,
        "most_each": settings.connections_per_address,
        "heads_each": settings.heads_per_address,
        "health": frozenset({*Patience.health, *(settings.prefix + path for path in Patience.health)}),
    }
    return configuration(
        app,
        settings,
        limits,
        ws="websockets-sansio",
        ws_max_size=_MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=GRACE_S,
    )


def serve(context: Context, host: str, listening: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Answer requests until SIGINT or SIGTERM; then requests under way have `GRACE_S` seconds to end.

    `host`: the address of `listening`; beyond loopback, requests need keys. `ready`: called just before the server
    accepts connections.
    """
    app = create_app(context, host)
    served = config(app, context.settings.api)
    log.info("api.listening", url=url(context, listening), process=os.getpid())
    ready()
    with announced(context.settings, "api", url(context, listening)):
        Server(served, app.state.ending).run([listening])
