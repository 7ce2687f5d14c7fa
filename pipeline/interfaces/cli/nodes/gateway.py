"""`penstock gateway`: one instance of the gateway that inference nodes connect to."""

from typing import Annotated

import typer

from pipeline.interfaces.cli.command import ready_context


def gateway(
    host: Annotated[str, typer.Option(help="The address to listen on. Default: PENSTOCK_GATEWAY__HOST.")] = "",
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Default: PENSTOCK_GATEWAY__PORT; 0: any.")
    ] = None,
) -> None:
    """Run an instance of the gateway: nodes connect to it and offer capabilities, sessions request them.

    Run as many as you like over one Redis: they share the work, and losing one loses nothing. `penstock up` runs one if
    PENSTOCK_GATEWAY__ENABLED is set.

    On addresses beyond this machine, it needs a token (`penstock nodes tokens create`), and TLS:
    PENSTOCK_GATEWAY__TLS_CERTIFICATE, or a proxy (PENSTOCK_GATEWAY__TLS_BY_PROXY).
    """
    from pipeline.engine.logs import configure
    from pipeline.interfaces.cli.output import err
    from pipeline.interfaces.gateway.server import listen, serve, url
    from pipeline.nodes import service
    from pipeline.nodes.settings import gateway_settings

    context = ready_context()
    settings = gateway_settings(context.settings)
    configure(context.settings.log_level, as_json=context.settings.log_json)
    service.require_redis(context)
    listening = listen(context, host or settings.host, settings.port if port is None else port)
    serve(
        context, listening, lambda: err.print(f"Gateway: {url(settings, listening)}. Ctrl-C ends it.", soft_wrap=True)
    )
