"""Other people's APIs, so that their clients work unchanged: one module an API. `ROUTERS` is the one list of them."""

from fastapi import APIRouter

ROUTERS: tuple[APIRouter, ...] = ()
"""Included as they are, without a prefix: each names its own paths."""
