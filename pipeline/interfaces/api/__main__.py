"""The API as part of a supervised stack: `python -m pipeline.interfaces.api`. Where it cannot listen yet, it waits."""

import socket
import time

import structlog

from pipeline.engine.errors import UserError
from pipeline.engine.logs import configure
from pipeline.interfaces.api.server import listen, serve
from pipeline.settings import get_settings
from pipeline.standalone.child import end_with_supervisor
from pipeline.storage.context import Context, get_context

log = structlog.get_logger(__name__)
_AGAIN_S = 2.0


def main() -> None:
    """Serve until the supervisor ends it."""
    end_with_supervisor()
    settings = get_settings()
    configure(settings.log_level, as_json=settings.log_json)
    context = get_context()
    serve(context, settings.api.host, _listening(context))


def _listening(context: Context) -> socket.socket:
    """The socket, as soon as it can be had. What is in its way is said once: the rest of the stack works without it."""
    said = ""
    while True:
        try:
            return listen(context, context.settings.api.host, context.settings.api.port)
        except UserError as error:
            if str(error) != said:
                log.warning("api.waits", reason=str(error))
                said = str(error)
            time.sleep(_AGAIN_S)


if __name__ == "__main__":
    main()
