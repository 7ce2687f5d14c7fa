"""Serving the gateway with uvicorn: WebSockets without compression, and frames no larger than the settings allow."""

import os
import socket
import ssl
from collections.abc import Callable
from threading import Event
from typing import cast

import structlog
import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from pipeline.engine.errors import UserError
from pipeline.interfaces.http_server import KEEP_ALIVE_S, Patience, Server, bind, is_loopback
from pipeline.nodes import tokens
from pipeline.nodes.gateway.app import create_app
from pipeline.nodes.gateway.connection import WIRE, Wire
from pipeline.nodes.gateway.instance import Instance
from pipeline.nodes.settings import GatewaySettings, gateway_settings
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
_GRACE_S = 5
_BACKLOG = 1024
_OTHERS = 200
"""Connections besides nodes and sessions: those that have not said who they are, and those that watch."""


class NoToken(UserError):
    """Nobody could connect."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"the gateway does not listen on {host} before there is a token: run `penstock nodes tokens create NAME "
            "--kind node`, or listen on 127.0.0.1",
            code="no_token",
        )


def listen(context: Context, host: str, port: int) -> socket.socket:
    """A socket that listens. Raises `NoToken`, `PortInUse`, or `UserError` for a foreign address, or for a certificate
    that cannot be used."""
    _check_certificate(gateway_settings(context.settings))
    if not is_loopback(host) and not tokens.any_usable(context):
        raise NoToken(host)
    return bind(host, port, "PENSTOCK_GATEWAY__PORT")


def _check_certificate(settings: GatewaySettings) -> None:
    if not settings.tls_certificate:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_certificate, settings.tls_key)
    except OSError as error:  # those of TLS are among them
        names = "PENSTOCK_GATEWAY__TLS_CERTIFICATE and PENSTOCK_GATEWAY__TLS_KEY"
        message = f"{names} are not a PEM certificate and its key: {error.strerror or error}"
        raise UserError(message, code="tls") from None


def url(settings: GatewaySettings, listening: socket.socket) -> str:
    """Where nodes and sessions connect to."""
    host, port = listening.getsockname()[:2]
    scheme = "wss" if settings.tls_certificate else "ws"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


class Protocol(WebSocketsSansIOProtocol):
    """Tells the application what ASGI does not: when something came last, and how to end one that does not read."""

    heard_at = 0.0

    def data_received(self, data: bytes) -> None:
        self.heard_at = self.loop.time()
        super().data_received(data)

    async def run_asgi(self) -> None:
        wire = Wire(self.transport.abort, lambda: self.loop.time() - self.heard_at)
        cast("dict[str, object]", self.scope)[WIRE] = wire
        await super().run_asgi()


def config(instance: Instance) -> uvicorn.Config:
    """How an instance is served."""
    settings = instance.settings
    protocol = type("Protocol", (Patience,), {"head_s": instance.context.settings.api.head_timeout_s})
    return uvicorn.Config(
        create_app(instance), http=protocol, ws=Protocol, lifespan="on", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, timeout_keep_alive=KEEP_ALIVE_S, backlog=_BACKLOG,
        timeout_graceful_shutdown=_GRACE_S, ws_per_message_deflate=False, ws_ping_interval=20, ws_ping_timeout=20,
        limit_concurrency=settings.max_nodes + settings.max_sessions + _OTHERS,
        ws_max_size=max(settings.max_message_bytes, settings.max_attachment_bytes),
        ssl_certfile=settings.tls_certificate or None, ssl_keyfile=settings.tls_key or None,
    )  # fmt: skip


def serve(context: Context, listening: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Share work out until SIGINT or SIGTERM; then send everybody to other instances."""
    instance = Instance(context, gateway_settings(context.settings))
    log.info("gateway.listening", url=url(instance.settings, listening), process=os.getpid())
    ready()
    Server(config(instance), Event()).run([listening])
