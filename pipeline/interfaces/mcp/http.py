"""`/mcp` of the API: the protocol's streamable HTTP, without sessions, so that any process may answer any request.

The API's middleware has checked hosts, origins, keys, quotas and sizes before. The first call of an assistant imports
the protocol's package: most servers never get one.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup, TaskStatus
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from pipeline.interfaces.http.bodies import replay
from pipeline.interfaces.http.json_bodies import text_of, turns
from pipeline.interfaces.mcp.tool import Call, Report, may_use
from pipeline.settings import ApiSettings

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

PATH = "/mcp"
MAX_PARTS = 2_000
"""Limit for one message, which the protocol's package parses and validates on the event loop."""


class Mcp:
    """An ASGI application for one path. The API's lifespan enters `running`."""

    path = PATH

    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self._tasks: TaskGroup | None = None
        self._managers: dict[bool, StreamableHTTPSessionManager] = {}
        """One server for callers with the scope `write`, one for readers: each lists the tools its callers may use."""
        self._beginning = anyio.Lock()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run while the API runs, and cancel calls under way at its end."""
        async with anyio.create_task_group() as self._tasks:
            try:
                yield
            finally:
                self._tasks.cancel_scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self  # names the route for the metrics, as a mounted application does not
        body = await Request(scope, receive).body()  # `BodyLimits` has a limit for it
        request = Request(scope)
        await turns(request).read(request, body, partial(text_of, most=MAX_PARTS))
        manager = await self._manager(writes=may_use(request.state.caller, writes=True, local=False))
        await manager.handle_request(scope, replay(body, receive), send)

    async def _manager(self, *, writes: bool) -> "StreamableHTTPSessionManager":
        async with self._beginning:
            if writes not in self._managers:
                assert self._tasks is not None, "the lifespan of the API has not begun"
                self._managers[writes] = await self._tasks.start(self._run, writes)
            return self._managers[writes]

    async def _run(self, writes: bool, *, task_status: TaskStatus["StreamableHTTPSessionManager"]) -> None:
        manager = await run_sync(self._make, writes)
        async with manager.run():
            task_status.started(manager)
            await anyio.sleep_forever()

    def _make(self, writes: bool) -> "StreamableHTTPSessionManager":
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager  # noqa: PLC0415  # see above
        from mcp.server.transport_security import TransportSecuritySettings  # noqa: PLC0415
        from sse_starlette.sse import AppStatus  # noqa: PLC0415

        from pipeline.interfaces.mcp.server import make_server  # noqa: PLC0415

        # At shutdown, waiting calls get an answer; the package would cut them off.
        AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]
        return StreamableHTTPSessionManager(
            make_server(_call, writes=writes, local=False),
            stateless=True,
            # `Guard` has checked host and origin, by the settings and the address of the connection.
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            max_request_body_size=self._settings.max_json_mb * 1_000_000,
        )


def _call(context: Any, report: Report) -> Call:
    request: Request = context.request
    base, caller = request.base_url, request.state.caller
    if caller.context.settings.api.tls_by_proxy:
        base = base.replace(scheme="https")
    return Call(caller, request.app.state.pictures, str(base).rstrip("/"), report)
