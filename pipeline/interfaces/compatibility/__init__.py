"""Other projects' APIs, so that their clients work unchanged: one module for each API, all listed in `ROUTERS`."""

from fastapi import APIRouter

from pipeline.interfaces.compatibility import dify, open_webui
from pipeline.interfaces.compatibility.docling import router as docling

ROUTERS: tuple[APIRouter, ...] = (docling.router, open_webui.router, dify.router)
"""The application includes them without a prefix: each names its own paths."""
