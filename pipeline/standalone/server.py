"""Run a server as a part of a supervised stack. While it cannot listen, it waits: the rest works without it."""

import socket
import time
from collections.abc import Callable

import structlog

from pipeline.engine import privacy
from pipeline.engine.errors import UserError
from pipeline.engine.logs import configure
from pipeline.process import get_context
from pipeline.standalone.child import end_with_supervisor
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
_RETRY_S = 2.0


def run(name: str, listen: Callable[[Context], socket.socket], serve: Callable[[Context, socket.socket], None]) -> None:
    """Serve until the supervisor ends this process. Repeats `listen`, which returns the socket, while it raises
    `UserError`."""
    end_with_supervisor()
    privacy.begin()
    context = get_context()
    configure(context.settings.log_level, as_json=context.settings.log_json)
    serve(context, _listening(name, lambda: listen(context)))


def _listening(name: str, listen: Callable[[], socket.socket]) -> socket.socket:
    """Wait until the socket is available and return it. Log each reason for waiting once."""
    logged = ""
    while True:
        try:
            return listen()
        except UserError as error:
            if str(error) != logged:
                log.warning("server.waits", server=name, reason=str(error))
                logged = str(error)
            time.sleep(_RETRY_S)
