"""The ASGI application of an instance: `/ws/node`, `/ws/session`, and a little HTTP for those who watch it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import structlog
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
from pipeline.nodes.gateway.metrics import CONTENT_TYPE, Facts, exposition
from pipeline.nodes.gateway.node_link import NodeLink
from pipeline.nodes.gateway.session_link import SessionLink
from pipeline.nodes.protocol import (
    NODE_PATH,
    SESSION_PATH,
    VERSION,
    BadMessage,
    CloseCode,
    NodeRegister,
    SessionOpen,
    from_node,
    from_session,
)
from pipeline.nodes.tokens import TokenKind, TokenView

log = structlog.get_logger(__name__)
_FIRST_WORD_S = 10.0


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
        at = self._at
        token = await self._token(socket, TokenKind.NODE)
        if token is None:
            raise BadMessage("this is not a usable token of a node", CloseCode.UNAUTHORIZED)
        register, _ = await connection.receive(from_node, _FIRST_WORD_S)
        if not isinstance(register, NodeRegister):
            raise BadMessage("the first message is node_register")
        self._agree(register.versions)
        if token.node_id and token.node_id != register.node_id:
            raise BadMessage("this token is for another node", CloseCode.UNAUTHORIZED)
        try:
            await asyncio.to_thread(names.take, at.context, register.node_id, token, at.settings.max_nodes)
        except UserError as error:
            raise BadMessage(str(error), CloseCode.UNAUTHORIZED) from error
        if at.ending or (len(at.nodes) >= at.settings.max_nodes and register.node_id not in at.nodes):
            raise BadMessage("no more nodes here: try another instance", CloseCode.FULL)
        await self._enter_node(NodeLink(at, connection, register, token, at.now_ms()), register)

    async def _enter_node(self, link: NodeLink, register: NodeRegister) -> None:
        at = self._at
        if before := at.nodes.get(link.id):
            before.close(CloseCode.REPLACED, "the node has connected anew")
        link.welcome()
        at.nodes[link.id] = link
        try:
            owner = await at.state.instances.take_node(link.id, at.instance_id)
            link.owned = True
            if owner and owner != at.instance_id:
                await at.state.inbox.send(owner, "kick", {"node_id": link.id})
            log.info("node.connected", node=link.id, slots=register.slots)
            await link.serve(register)
        except TimeoutError:
            log.warning("node.silent", node=link.id)
            at.spawn(at.state.slots.dropped(link.id))
            raise
        finally:
            if at.nodes.get(link.id) is link:
                del at.nodes[link.id]
                at.view.forget(link.id)
                at.spawn(self._left(link))
            log.info("node.gone", node=link.id)

    async def _left(self, link: NodeLink) -> None:
        """Unless it has come back meanwhile, here or elsewhere, the node is nobody's."""
        at = self._at
        if await at.state.instances.owner_of_node(link.id) == at.instance_id and link.id not in at.nodes:
            await at.state.snapshots.gone(link.id, at.instance_id)
        if link.id not in at.nodes:
            await at.state.instances.drop_node(link.id, at.instance_id)
            if link.id in at.nodes:  # it came back meanwhile
                await at.state.instances.take_node(link.id, at.instance_id)

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
        at = self._at
        token = await self._token(socket, TokenKind.SESSION)
        if token is None:
            raise BadMessage("this is not a usable token of a session", CloseCode.UNAUTHORIZED)
        opened, _ = await connection.receive(from_session, _FIRST_WORD_S)
        if not isinstance(opened, SessionOpen):
            raise BadMessage("the first message is session_open")
        self._agree(opened.versions)
        session_id = f"{token.id}.{opened.session_id}"
        if at.ending or (len(at.sessions) >= at.settings.max_sessions and session_id not in at.sessions):
            raise BadMessage("no more sessions here: try another instance", CloseCode.FULL)
        link = SessionLink(at, connection, session_id, opened.name, token)
        if before := at.sessions.get(session_id):
            before.close(CloseCode.REPLACED, "the session has connected anew")
        at.sessions[session_id] = link
        try:
            owner = await at.state.instances.take_session(session_id, at.instance_id)
            link.owned = True
            if owner and owner != at.instance_id:
                await at.state.inbox.send(owner, "kick", {"session_id": session_id})
            await link.serve()
        finally:
            if at.sessions.get(session_id) is link:
                del at.sessions[session_id]
                at.spawn(self._session_left(session_id))

    async def _session_left(self, session_id: str) -> None:
        """Unless it has come back meanwhile, the session is nobody's."""
        at = self._at
        if session_id not in at.sessions:
            await at.state.instances.drop_session(session_id, at.instance_id)
            if session_id in at.sessions:
                await at.state.instances.take_session(session_id, at.instance_id)

    async def _token(self, connection: WebSocket | Request, kind: TokenKind) -> TokenView | None:
        scheme, _, secret = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            return None
        return await asyncio.to_thread(tokens.authenticate, self._at.context, secret.strip(), kind)

    @staticmethod
    def _agree(versions: tuple[int, ...]) -> None:
        if VERSION not in versions:
            raise BadMessage(f"version {VERSION} of the protocol is spoken here", CloseCode.VERSION)

    # HTTP

    async def health(self, _: Request) -> Response:
        """The process answers."""
        return JSONResponse({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """It takes connections, and reaches its Redis."""
        try:
            async with asyncio.timeout(2):
                await self._at.state.now_ms()
        except (RedisError, TimeoutError):
            return JSONResponse({"status": "redis is away"}, 503)
        return JSONResponse({"status": "ending"}, 503) if self._at.ending else JSONResponse({"status": "ok"})

    async def metrics(self, _: Request) -> Response:
        """Prometheus' text."""
        at, pending = self._at, -1
        with suppress(RedisError):
            pending = await at.state.inbox.pending()
        facts = Facts(at.state.store.ops, len(at.nodes), len(at.sessions), pending, at.dispatched)
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
