"""The ASGI application of an instance: `/ws/node`, `/ws/session`, and HTTP endpoints for monitoring."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import structlog
from pydantic import TypeAdapter
from redis import RedisError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from pipeline.engine.errors import UserError
from pipeline.nodes import names, tokens
from pipeline.nodes.gateway.connection import Connection, Ended
from pipeline.nodes.gateway.instance import Instance
from pipeline.nodes.gateway.links import NodeLink, SessionLink
from pipeline.nodes.gateway.metrics import CONTENT_TYPE, Facts, exposition
from pipeline.nodes.protocol import (
    NODE_PATH,
    SESSION_PATH,
    VERSION,
    BadMessage,
    CloseCode,
    NodeRegister,
    NodeWelcome,
    SessionOpen,
    SessionWelcome,
    from_node,
    from_session,
)
from pipeline.nodes.state.snapshots import NodeState
from pipeline.nodes.tokens import TokenKind, TokenView

log = structlog.get_logger(__name__)
_GREETING_S = 10.0
Greeting = TypeVar("Greeting", NodeRegister, SessionOpen)


def create_app(instance: Instance) -> Starlette:
    """Create the application, which starts and stops the instance."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await instance.start()
        yield
        await instance.stop()

    gateway = Gateway(instance)
    return Starlette(
        lifespan=lifespan,
        routes=[
            WebSocketRoute(NODE_PATH, gateway.node),
            WebSocketRoute(SESSION_PATH, gateway.session),
            Route("/healthz", gateway.health),
            Route("/readyz", gateway.ready),
            Route("/metrics", gateway.metrics),
            Route("/status", gateway.status),
        ],
    )


class Gateway:
    """The endpoints of one instance."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    # WebSockets

    async def node(self, socket: WebSocket) -> None:
        """Serve a node from its handshake to its disconnection."""
        await self._converse(socket, self._node)

    async def _node(self, socket: WebSocket, connection: Connection) -> None:
        instance, settings = self._instance, self._instance.settings
        token, register = await self._greeted(socket, connection, TokenKind.NODE, from_node, NodeRegister)
        if token.node_id and token.node_id != register.node_id:
            raise BadMessage("this token belongs to another node", CloseCode.UNAUTHORIZED)
        try:
            await asyncio.to_thread(names.take, instance.context, register.node_id, token, settings.max_nodes)
        except UserError as error:
            raise BadMessage(str(error), CloseCode.UNAUTHORIZED) from error
        self._check_room(instance.nodes, settings.max_nodes, register.node_id, "nodes")
        state = NodeState(
            node_id=register.node_id,
            name=register.name,
            token_id=token.id,
            instance_id=instance.instance_id,
            slots=register.slots,
            used=0,
            offers=register.offers,
            software=register.software,
            connected_ms=(now_ms := instance.now_ms()),
            last_seen_ms=now_ms,
        )
        link = NodeLink(connection, state, instance.nodes, instance.view)
        welcome = NodeWelcome(
            instance_id=instance.instance_id,
            heartbeat_ms=settings.heartbeat_ms,
            max_message_bytes=settings.max_message_bytes,
            max_attachment_bytes=settings.max_attachment_bytes,
        )
        connection.send(welcome)  # before any job
        try:
            async with instance.nodes.connected(link):
                log.info("node.connected", node=link.id, slots=register.slots)
                await instance.attempts.serve(link, register)
        except TimeoutError:
            log.warning("node.silent", node=link.id)
            instance.spawn(instance.slots.cool_down(link.id))
            raise
        finally:
            if link.id not in instance.nodes:
                instance.view.forget(link.id)
            log.info("node.gone", node=link.id)

    async def session(self, socket: WebSocket) -> None:
        """Serve a session from its handshake to its disconnection."""
        await self._converse(socket, self._session)

    async def _converse(self, socket: WebSocket, serve: Callable[[WebSocket, Connection], Awaitable[None]]) -> None:
        """Accept a connection, run `serve` until the connection ends, and close it with the code and reason of the
        error."""
        await socket.accept()
        connection = Connection(socket, self._instance.settings)
        try:
            await serve(socket, connection)
        except BadMessage as error:
            connection.close(error.close_code, str(error))
        except TimeoutError:
            connection.close(CloseCode.SILENT, "the client was silent for too long")
        except RedisError:
            connection.close(CloseCode.RESTART, "the gateway cannot reach its Redis")
        except Ended:
            pass
        finally:
            await connection.wait_closed()

    async def _session(self, socket: WebSocket, connection: Connection) -> None:
        instance, settings = self._instance, self._instance.settings
        token, opened = await self._greeted(socket, connection, TokenKind.SESSION, from_session, SessionOpen)
        session_id = f"{token.id}.{opened.session_id}"
        self._check_room(instance.sessions, settings.max_sessions, session_id, "sessions")
        link = SessionLink(session_id, token.id, connection)
        async with instance.sessions.connected(link):
            welcome = SessionWelcome(
                instance_id=instance.instance_id,
                max_message_bytes=settings.max_message_bytes,
                max_attachment_bytes=settings.max_attachment_bytes,
                max_jobs=settings.max_session_jobs,
            )
            connection.send(welcome)
            await instance.intake.serve(link)

    async def _greeted(
        self,
        socket: WebSocket,
        connection: Connection,
        kind: TokenKind,
        messages: TypeAdapter[Any],
        greeting: type[Greeting],
    ) -> tuple[TokenView, Greeting]:
        """Return the connection's token, which must be of kind `kind`, and its first message, which must be a
        `greeting`. Raises `BadMessage` if either is unusable, `TimeoutError` if the message does not come within 10 s,
        and `Ended`."""
        token = await self._token(socket, kind)
        if token is None:
            raise BadMessage(f"the {kind} needs a usable token of kind {kind}", CloseCode.UNAUTHORIZED)
        message, _ = await connection.receive(messages, _GREETING_S)
        if not isinstance(message, greeting):
            raise BadMessage(f"the first message must be {greeting.model_fields['type'].default}")
        if VERSION not in message.versions:
            raise BadMessage(f"the gateway speaks version {VERSION} of the protocol", CloseCode.VERSION)
        return token, message

    def _check_room(self, links: Collection[str], most: int, name: str, nouns: str) -> None:
        """Raise `BadMessage` if the instance is shutting down, or if it has `most` links and none of them is called
        `name`. `nouns`: the kind of link, for the message."""
        if self._instance.ending or (len(links) >= most and name not in links):
            raise BadMessage(f"this instance takes no more {nouns}: try another instance", CloseCode.FULL)

    async def _token(self, connection: WebSocket | Request, kind: TokenKind) -> TokenView | None:
        scheme, _, secret = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            return None
        return await asyncio.to_thread(tokens.authenticate, self._instance.context, secret.strip(), kind)

    # HTTP

    async def health(self, _: Request) -> Response:
        """Report that the process lives."""
        return JSONResponse({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """Report whether the instance takes connections and reaches its Redis within 2 s: status 200, otherwise 503."""
        try:
            async with asyncio.timeout(2):
                await self._instance.store.now_ms()
        except (RedisError, TimeoutError):
            return JSONResponse({"status": "redis is away"}, 503)
        return JSONResponse({"status": "ending"}, 503) if self._instance.ending else JSONResponse({"status": "ok"})

    async def metrics(self, _: Request) -> Response:
        """Return the metrics in Prometheus' text format."""
        instance, pending = self._instance, -1
        with suppress(RedisError):
            pending = await instance.inbox.pending()
        facts = Facts(instance.store.ops, len(instance.nodes), len(instance.sessions), pending, instance.dispatched)
        return Response(exposition(facts), media_type=CONTENT_TYPE)

    async def status(self, request: Request) -> Response:
        """Return as JSON the numbers of connections, jobs and known nodes of this instance. Needs a token of either
        kind."""
        if not (await self._token(request, TokenKind.SESSION) or await self._token(request, TokenKind.NODE)):
            return JSONResponse({"error": "a token is needed: Authorization: Bearer …"}, 401)
        instance = self._instance
        facts: dict[str, Any] = {
            "instance_id": instance.instance_id,
            "nodes": len(instance.nodes),
            "sessions": len(instance.sessions),
            "jobs": len(instance.dispatch.jobs),
            "nodes_seen": len(instance.view),
        }
        return JSONResponse(facts)
