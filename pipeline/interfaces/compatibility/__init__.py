"""Other people's APIs, so that their clients work unchanged: one module an API. `ROUTERS` is the one list of them."""

from fastapi import APIRouter

from pipeline.interfaces.compatibility import dify, open_webui
from pipeline.interfaces.compatibility.docling import router as docling

ROUTERS: tuple[APIRouter, ...] = (docling.router, open_webui.router, dify.router)
"""Included as they are, without a prefix: each names its own paths."""
