"""`penstock mcp`: the protocol over standard input and output, for an assistant that starts it as its own program."""

import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import anyio
from mcp.server.stdio import stdio_server
from starlette.datastructures import State
from starlette.requests import Request
from starlette.types import Message

from pipeline.interfaces.api.app import PATIENCE_S
from pipeline.interfaces.http.pictures import Pictures
from pipeline.interfaces.mcp.http import PATH
from pipeline.interfaces.mcp.server import make_server
from pipeline.operations.caller import Caller
from pipeline.operations.quotas import Quotas
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context

_CALLER, _INTERRUPTED = "stdio", 130


def serve(context: Context, *, write: bool) -> None:
    """Answer one client until it closes our standard input, or has gone."""
    # The thread that reads cannot be woken, so an interrupt ends the process; nothing that was begun is lost by that.
    signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    context.db.patience_s = PATIENCE_S
    quotas, ending = Quotas(context), threading.Event()
    requests = _Requests(context, quotas, ending, write=write)
    try:
        anyio.run(_serve, requests)
    except* BrokenPipeError:
        pass
    finally:
        ending.set()
        quotas.close()


async def _serve(requests: "_Requests") -> None:
    server = make_server(requests.make, writes=requests.write, local=True)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


class _Requests:
    """Requests that stand for messages over stdio, so that what the API uses knows context, quotas and caller."""

    def __init__(self, context: Context, quotas: Quotas, ending: threading.Event, *, write: bool) -> None:
        self._app = SimpleNamespace(
            state=State({"context": context, "quotas": quotas, "ending": ending, "pictures": Pictures(ending)})
        )
        self.write = write
        self._caller = Caller(
            context,
            _CALLER,
            "penstock mcp",
            Scope.WRITE if write else Scope.READ,
            has_key=True,
            quotas=quotas,
            ending=ending,
        )
        settings = context.settings.api
        self._scope = {
            "type": "http",
            "method": "POST",
            "path": f"{settings.prefix}{PATH}",
            "root_path": settings.prefix,
            "headers": [],
            "query_string": b"",
            "server": (settings.host, settings.port),
            "scheme": "https" if settings.tls_certificate else "http",
            "app": self._app,
        }

    def make(self, _: Any) -> Request:
        return Request({**self._scope, "state": {"caller": self._caller}}, _silent)


async def _silent() -> Message:
    """Nothing comes after a message, and nobody has gone before the input ends."""
    await anyio.sleep_forever()
    raise AssertionError
