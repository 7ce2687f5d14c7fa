"""`penstock mcp`: the protocol over standard input and output, for an assistant that starts it as its own program."""

import os
import signal
import threading

import anyio
from mcp.server.stdio import stdio_server

from pipeline.interfaces.http.dependencies import PATIENCE_S
from pipeline.interfaces.http.pictures import Pictures
from pipeline.interfaces.mcp.server import CallOf, make_server
from pipeline.interfaces.mcp.tool import Call
from pipeline.operations.caller import Caller
from pipeline.operations.quotas import Quotas
from pipeline.standalone.address import api_address
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context

_INTERRUPTED = 130


def serve(context: Context, *, write: bool) -> None:
    """Serve the tools to one assistant over standard input and output, until it closes our input or disappears.

    `write`: also the tools that write.
    """
    # An interrupt cannot wake the reading thread, so it ends the process; work under way is in the database.
    signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    context.db.patience_s = PATIENCE_S
    quotas, ending, scope = Quotas(context), threading.Event(), Scope.WRITE if write else Scope.READ
    caller = Caller(context, "stdio", "penstock mcp", scope, has_key=True, quotas=quotas, ending=ending)
    pictures, base = Pictures(ending), api_address(context.settings.api)
    try:
        anyio.run(_serve, lambda _, report: Call(caller, pictures, base, report, local=True), write)
    except* BrokenPipeError:
        pass
    finally:
        ending.set()
        quotas.close()


async def _serve(call_of: CallOf, writes: bool) -> None:
    server = make_server(call_of, writes=writes, local=True)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())
