"""Addresses of the console as browsers use them: below the prefix of a reverse proxy."""

import hashlib
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from urllib.parse import quote, unquote

from fastapi import Request
from starlette.requests import HTTPConnection

from pipeline.interfaces.http.identity import LOGIN

__all__ = ["LOGIN", "ROOT", "STATIC", "asset", "is_console", "path_of", "place", "placed", "url", "within"]
ROOT = "/console"
STATIC = Path(__file__).parent / "static"
_PREFIX: ContextVar[str] = ContextVar("console_prefix", default="")


async def placed(request: Request) -> None:
    """Set the proxy's prefix, which `url` puts before paths, for everything that this request renders."""
    place(request)


def place(request: HTTPConnection) -> None:
    """Make `url` put the settings' `api.prefix` before paths. For code that can run without the dependency `placed`,
    such as error handlers."""
    _PREFIX.set(request.app.state.context.settings.api.prefix)


def url(path: str) -> str:
    """Return the address of a console path, with the prefix."""
    return f"{_PREFIX.get()}{path}"


def path_of(request: HTTPConnection) -> str:
    """Return the request's path without the prefix."""
    prefix: str = request.app.state.context.settings.api.prefix
    return str(request.scope["path"]).removeprefix(prefix)


def is_console(path: str) -> bool:
    """Return whether this path, without the prefix, belongs to the console."""
    return path in {"/", ROOT} or path.startswith(f"{ROOT}/")


@cache
def asset(name: str) -> str:
    """Return the address of a static file, without the prefix. It changes with the file, so browsers may cache it."""
    version = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"{ROOT}/static/{quote(name)}?v={version}"


def within(path: str) -> str:
    """Return this path if it lies within the console, else the overview's: no login or form leads to another site."""
    place, _, _ = path.partition("?")
    inside = place == ROOT or place.startswith(f"{ROOT}/")
    odd = "\\" in path or "//" in place or any(ord(char) < 33 for char in path)
    # Browsers resolve dots, also in the form %2e.
    leads_out = any(unquote(part) in {".", ".."} for part in place.partition("#")[0].split("/"))
    return path if inside and not odd and not leads_out else f"{ROOT}/"
