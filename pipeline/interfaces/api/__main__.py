"""The API as part of a supervised stack: `python -m pipeline.interfaces.api`."""

from collections.abc import Sequence

from pipeline.interfaces.api.server import listen, serve
from pipeline.standalone import server


def main(_: Sequence[str] = ()) -> None:
    """Serve the API until the supervisor ends this process."""
    server.run(
        "api",
        lambda context: listen(context, context.settings.api.host, context.settings.api.port),
        lambda context, listening: serve(context, context.settings.api.host, listening),
    )


if __name__ == "__main__":
    main()
