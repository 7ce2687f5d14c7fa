"""Other projects' APIs, so that their clients work unchanged: one module for each API, all listed in `ROUTERS`."""

from fastapi import APIRouter
from starlette.routing import WebSocketRoute

from pipeline.interfaces.compatibility import dify, open_webui
from pipeline.interfaces.compatibility.docling import router as docling
from pipeline.interfaces.compatibility.docling import status_socket

ROUTERS: tuple[APIRouter, ...] = (docling.router, open_webui.router, dify.router)
"""The application includes them without a prefix: each names its own paths."""
SOCKETS = (WebSocketRoute("/v1/status/ws/{task_id}", status_socket.follow),)
"""The WebSockets, which check the caller themselves."""
