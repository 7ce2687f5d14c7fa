"""A gateway as part of a supervised stack: `python -m pipeline.interfaces.gateway`."""

import socket
from collections.abc import Sequence

from pipeline.interfaces.gateway.server import listen, serve
from pipeline.nodes.settings import gateway_settings
from pipeline.standalone import server
from pipeline.storage.context import Context


def main(_: Sequence[str] = ()) -> None:
    """Serve the gateway until the supervisor ends this process."""

    def listening(context: Context) -> socket.socket:
        settings = gateway_settings(context.settings)
        return listen(context, settings.host, settings.port)

    server.run("gateway", listening, serve)


if __name__ == "__main__":
    main()
