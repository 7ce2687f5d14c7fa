"""Serving the API with uvicorn, patient with nobody: heads of requests, too, have a time-out here."""

import os
import socket
from collections.abc import Callable

import structlog
import uvicorn

from pipeline.engine.errors import UserError
from pipeline.interfaces.api.app import create_app
from pipeline.interfaces.http_server import BACKLOG, KEEP_ALIVE_S, Patience, Server, bind, is_loopback
from pipeline.storage import api_keys
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
GRACE_S = 8
"""How long requests under way may take when the server ends: less than the supervisor waits."""
_MAX_HEAD_BYTES = 32 * 1024


class NoKey(UserError):
    """The API would be open to everybody."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"the API does not listen on {host} before there is a key: run `penstock keys create NAME`, or listen on "
            "127.0.0.1",
            code="no_key",
        )


def listen(context: Context, host: str, port: int) -> socket.socket:
    """A socket that listens. Raises `NoKey`, `PortInUse`, or `UserError` for an address that is not this machine's."""
    if not is_loopback(host) and not api_keys.any_usable(context):
        raise NoKey(host)
    return bind(host, port, "PENSTOCK_API__PORT")


def url(context: Context, listening: socket.socket) -> str:
    """Where the API is, for people."""
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}{context.settings.api.prefix}"


def serve(context: Context, host: str, listening: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Answer requests until SIGINT or SIGTERM; then let those under way end."""
    app, settings = create_app(context, host), context.settings.api
    protocol = type("Protocol", (Patience,), {"head_s": settings.head_timeout_s})
    config = uvicorn.Config(
        app, http=protocol, ws="none", lifespan="on", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, timeout_keep_alive=KEEP_ALIVE_S, backlog=BACKLOG,
        timeout_graceful_shutdown=GRACE_S, limit_concurrency=settings.max_connections,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
    )  # fmt: skip
    log.info("api.listening", url=url(context, listening), process=os.getpid())
    ready()
    Server(config, app.state.ending).run([listening])
