"""`penstock api`: the REST API alone, beside workers that run elsewhere."""

from typing import Annotated

import typer

from pipeline.interfaces.cli.command import ready_context, warn_if_no_stack


def api(
    host: Annotated[str, typer.Option(help="The address to listen on. Default: PENSTOCK_API__HOST.")] = "",
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="Default: PENSTOCK_API__PORT; 0: any.")] = None,
) -> None:
    """Serve the REST API alone, beside your own workers. `penstock up` runs it too.

    On addresses beyond this machine, callers need a key (`penstock keys create`), and TLS:
    PENSTOCK_API__TLS_CERTIFICATE, or a proxy (PENSTOCK_API__TLS_BY_PROXY).
    """
    from pipeline.engine.logs import configure
    from pipeline.interfaces.api.server import listen, serve, url
    from pipeline.interfaces.cli.output import err

    context = ready_context()
    settings = context.settings
    configure(settings.log_level, as_json=settings.log_json)
    host, port = host or settings.api.host, settings.api.port if port is None else port
    listening = listen(context, host, port)

    def ready() -> None:
        err.print(f"API: {url(context, listening)}. Ctrl-C ends it.", soft_wrap=True)
        warn_if_no_stack()

    serve(context, host, listening, ready)
