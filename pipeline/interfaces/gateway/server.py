"""Serving the gateway with uvicorn: WebSockets without compression, and frames no larger than the settings allow."""

import os
import socket
from collections.abc import Callable
from threading import Event
from typing import cast

import structlog
import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from pipeline.engine.errors import UserError
from pipeline.interfaces.gateway.guard import Guard
from pipeline.interfaces.http.connections import Server, bind, check_openness, configuration
from pipeline.nodes import tokens
from pipeline.nodes.gateway.app import create_app
from pipeline.nodes.gateway.connection import WIRE, Wire
from pipeline.nodes.gateway.instance import Instance
from pipeline.nodes.settings import GatewaySettings, gateway_settings
from pipeline.standalone.address import announced, is_loopback
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
_GRACE_S = 5
_BACKLOG = 1024
_OTHERS = 200
"""Connections beyond nodes and sessions: clients that have not registered yet, and monitors."""


class NoToken(UserError):
    """The gateway may not listen beyond this machine without a token."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"the gateway listens on {host} only once a token exists: run `penstock nodes tokens create NAME "
            "--kind node`, or listen on 127.0.0.1",
            code="no_token",
        )


class NameTaken(UserError):
    """A newer gateway process has taken the instance's name."""

    def __init__(self, instance_id: str) -> None:
        super().__init__(
            f"another gateway named '{instance_id}' has started and replaces this one: give each its own "
            "PENSTOCK_GATEWAY__INSTANCE_ID, or leave it at 'auto'",
            code="name_taken",
        )


def listen(context: Context, host: str, port: int) -> socket.socket:
    """Open the listening socket.

    Raises `NoToken`, `NoTls`, `PortInUse`, or `UserError` for an unusable certificate or an address on which it cannot
    listen.
    """
    if not is_loopback(host) and not tokens.any_usable(context):
        raise NoToken(host)
    check_openness(host, gateway_settings(context.settings), "GATEWAY")
    return bind(host, port, "PENSTOCK_GATEWAY__PORT")


def url(settings: GatewaySettings, listening: socket.socket) -> str:
    """Return the address to which nodes and sessions connect."""
    host, port = listening.getsockname()[:2]
    scheme = "wss" if settings.tls_certificate else "ws"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


class Protocol(WebSocketsSansIOProtocol):
    """Adds a `Wire` to the ASGI scope, which tells when the last byte arrived and can abort the connection."""

    received_at = 0.0

    def data_received(self, data: bytes) -> None:
        self.received_at = self.loop.time()
        super().data_received(data)

    async def run_asgi(self) -> None:
        wire = Wire(self.transport.abort, lambda: self.loop.time() - self.received_at)
        cast("dict[str, object]", self.scope)[WIRE] = wire
        await super().run_asgi()


def config(instance: Instance) -> uvicorn.Config:
    """Return the server's configuration for an instance."""
    settings = instance.settings
    most = settings.max_nodes + settings.max_sessions + _OTHERS
    api = instance.context.settings.api
    limits = {"head_s": api.head_timeout_s, "most": most, "most_each": most, "heads_each": api.heads_per_address}
    return configuration(
        Guard(create_app(instance), instance.context),
        settings,
        limits,
        ws=Protocol,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_GRACE_S,
        ws_per_message_deflate=False,
        ws_ping_interval=20,
        ws_ping_timeout=20,
        ws_max_size=max(settings.max_message_bytes, settings.max_attachment_bytes),
    )


def serve(context: Context, listening: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Run an instance until SIGINT or SIGTERM, which make its nodes and sessions connect to other instances.

    `ready`: called just before it accepts connections. Raises `NameTaken` if another instance with the same id starts
    while this one runs.
    """
    instance = Instance(context, gateway_settings(context.settings))
    log.info("gateway.listening", url=url(instance.settings, listening), process=os.getpid())
    ready()
    server = Server(config(instance), Event())
    instance.end = lambda: setattr(server, "should_exit", True)
    with announced(context.settings, "gateway", url(instance.settings, listening)):
        server.run([listening])
    if instance.replaced:
        raise NameTaken(instance.instance_id)
