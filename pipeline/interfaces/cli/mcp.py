"""`penstock mcp`: the tools for assistants, over standard input and output."""

import sys
from typing import Annotated

import typer

from pipeline.interfaces.cli.command import ready_context, warn_if_no_stack


def mcp(
    write: Annotated[
        bool, typer.Option("--write", help="Include tools that convert, retry and add. Default: only tools that read.")
    ] = False,
) -> None:
    """Serve an assistant on this machine by the Model Context Protocol, over standard input and output.

    Assistants start it themselves; docs/how-to/mcp.md shows their settings. Assistants elsewhere use the
    API's address /mcp instead.
    """
    from pipeline.engine.logs import configure
    from pipeline.interfaces.cli.output import err
    from pipeline.interfaces.mcp.stdio import serve

    context = ready_context()
    if sys.stdin.isatty():
        err.print("Waiting for an assistant, which normally starts this command: docs/how-to/mcp.md. Ctrl-C ends it.")
    configure(context.settings.log_level, as_json=context.settings.log_json)
    warn_if_no_stack()
    serve(context, write=write)
