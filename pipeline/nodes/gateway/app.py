"""The ASGI application of an instance: `/ws/node`, `/ws/session`, and a little HTTP for those who watch it."""

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
_FIRST_WORD_S = 10.0
Greeting = TypeVar("Greeting", NodeRegister, SessionOpen)


def create_app(instance: Instance) -> Starlette:
    """The application over an instance, which it starts and stops."""

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
        self._at = instance

    # WebSockets

    async def node(self, socket: WebSocket) -> None:
        """A node, from its handshake to its end."""
        await self._converse(socket, self._node)

    async def _node(self, socket: WebSocket, connection: Connection) -> None:
        at, settings = self._at, self._at.settings
        token, register = await self._greeted(socket, connection, TokenKind.NODE, from_node, NodeRegister)
        if token.node_id and token.node_id != register.node_id:
            raise BadMessage("this token is for another node", CloseCode.UNAUTHORIZED)
        try:
            await asyncio.to_thread(names.take, at.context, register.node_id, token, settings.max_nodes)
        except UserError as error:
            raise BadMessage(str(error), CloseCode.UNAUTHORIZED) from error
        self._make_room(at.nodes, settings.max_nodes, register.node_id, "nodes")
        state = NodeState(
            node_id=register.node_id,
            name=register.name,
            token_id=token.id,
            instance_id=at.instance_id,
            slots=register.slots,
            used=0,
            offers=register.offers,
            software=register.software,
            connected_ms=(now_ms := at.now_ms()),
            last_seen_ms=now_ms,
        )
        link = NodeLink(connection, state, at.nodes, at.view)
        welcome = NodeWelcome(
            instance_id=at.instance_id,
            heartbeat_ms=settings.heartbeat_ms,
            max_message_bytes=settings.max_message_bytes,
            max_attachment_bytes=settings.max_attachment_bytes,
        )
        connection.send(welcome)  # before any job
        try:
            async with at.nodes.connected(link):
                log.info("node.connected", node=link.id, slots=register.slots)
                await at.attempts.serve(link, register)
        except TimeoutError:
            log.warning("node.silent", node=link.id)
            at.spawn(at.slots.cool_down(link.id))
            raise
        finally:
            if link.id not in at.nodes:
                at.view.forget(link.id)
            log.info("node.gone", node=link.id)

    async def session(self, socket: WebSocket) -> None:
        """A session, from its handshake to its end."""
        await self._converse(socket, self._session)

    async def _converse(self, socket: WebSocket, serve: Callable[[WebSocket, Connection], Awaitable[None]]) -> None:
        """Serve a connection, and close it with a reason."""
        await socket.accept()
        connection = Connection(socket, self._at.settings)
        try:
            await serve(socket, connection)
        except BadMessage as error:
            connection.close(error.close_code, str(error))
        except TimeoutError:
            connection.close(CloseCode.SILENT, "nothing was heard of it")
        except RedisError:
            connection.close(CloseCode.RESTART, "the gateway cannot reach its Redis")
        except Ended:
            pass
        finally:
            await connection.ended()

    async def _session(self, socket: WebSocket, connection: Connection) -> None:
        at, settings = self._at, self._at.settings
        token, opened = await self._greeted(socket, connection, TokenKind.SESSION, from_session, SessionOpen)
        session_id = f"{token.id}.{opened.session_id}"
        self._make_room(at.sessions, settings.max_sessions, session_id, "sessions")
        link = SessionLink(session_id, token.id, connection)
        async with at.sessions.connected(link):
            welcome = SessionWelcome(
                instance_id=at.instance_id,
                max_message_bytes=settings.max_message_bytes,
                max_attachment_bytes=settings.max_attachment_bytes,
                max_jobs=settings.max_session_jobs,
            )
            connection.send(welcome)
            await at.intake.serve(link)

    async def _greeted(
        self,
        socket: WebSocket,
        connection: Connection,
        kind: TokenKind,
        messages: TypeAdapter[Any],
        greeting: type[Greeting],
    ) -> tuple[TokenView, Greeting]:
        """The token of a connection, and its first message. Raises `BadMessage` for another."""
        token = await self._token(socket, kind)
        if token is None:
            raise BadMessage(f"this is not a usable token of a {kind}", CloseCode.UNAUTHORIZED)
        message, _ = await connection.receive(messages, _FIRST_WORD_S)
        if not isinstance(message, greeting):
            raise BadMessage(f"the first message is {greeting.model_fields['type'].default}")
        if VERSION not in message.versions:
            raise BadMessage(f"version {VERSION} of the protocol is spoken here", CloseCode.VERSION)
        return token, message

    def _make_room(self, links: Collection[str], most: int, name: str, nouns: str) -> None:
        """Raise `BadMessage` if no further one can connect here."""
        if self._at.ending or (len(links) >= most and name not in links):
            raise BadMessage(f"no more {nouns} here: try another instance", CloseCode.FULL)

    async def _token(self, connection: WebSocket | Request, kind: TokenKind) -> TokenView | None:
        scheme, _, secret = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            return None
        return await asyncio.to_thread(tokens.authenticate, self._at.context, secret.strip(), kind)

    # HTTP

    async def health(self, _: Request) -> Response:
        """The process answers."""
        return JSONResponse({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """It takes connections, and reaches its Redis."""
        try:
            async with asyncio.timeout(2):
                await self._at.store.now_ms()
        except (RedisError, TimeoutError):
            return JSONResponse({"status": "redis is away"}, 503)
        return JSONResponse({"status": "ending"}, 503) if self._at.ending else JSONResponse({"status": "ok"})

    async def metrics(self, _: Request) -> Response:
        """Prometheus' text."""
        at, pending = self._at, -1
        with suppress(RedisError):
            pending = await at.inbox.pending()
        facts = Facts(at.store.ops, len(at.nodes), len(at.sessions), pending, at.dispatched)
        return Response(exposition(facts), media_type=CONTENT_TYPE)

    async def status(self, request: Request) -> Response:
        """What is connected here, for a token of either kind."""
        if not (await self._token(request, TokenKind.SESSION) or await self._token(request, TokenKind.NODE)):
            return JSONResponse({"error": "a token is needed: Authorization: Bearer …"}, 401)
        at = self._at
        facts: dict[str, Any] = {
            "instance_id": at.instance_id,
            "nodes": len(at.nodes),
            "sessions": len(at.sessions),
            "jobs": len(at.dispatch.jobs),
            "nodes_seen": len(at.view),
        }
        return JSONResponse(facts)
