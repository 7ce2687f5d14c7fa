"""Rules of all our servers: the host names that they answer under, keys in addresses, security headers."""

import ipaddress
import json
import re
from collections.abc import Collection
from http import HTTPStatus
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.types import Scope

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "cache-control": "no-store",
}
"""Default headers of every answer."""
PROBLEM = "application/problem+json"
_SECRET = re.compile(rb"pst[knuw]_[A-Za-z0-9_-]{20,}")
"""A key or token of Penstock."""


def host_of(netloc: str) -> str:
    """The name in a Host header, without its port; empty if malformed."""
    try:
        return (urlsplit(f"//{netloc}").hostname or "").rstrip(".") if netloc.isascii() and "@" not in netloc else ""
    except ValueError:
        return ""


def netloc_of(origin: str) -> str:
    """Host and port of an origin; empty if malformed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def is_own_host(host: str, scope: Scope, names: Collection[str] = ()) -> bool:
    """Whether the server answers under this host: one of `names` (`*`: any host), loopback, or the address on which the
    connection arrived.

    A page of another site cannot have such an address as its own host.
    """
    address = scope["server"][0] if scope.get("server") else ""
    return host in LOOPBACK or host in names or "*" in names or (_is_address(host) and host == address)


def holds_secret(scope: Scope) -> bool:
    """Whether the request's path or query contains a key or token of Penstock: logs and histories keep addresses."""
    raw = scope.get("raw_path") or scope["path"].encode()
    return bool(_SECRET.search(unquote_to_bytes(raw + b"?" + scope["query_string"])))


def without_secrets(path: str) -> str:
    """A path for the log: shortened, with keys and tokens removed."""
    return _SECRET.sub(b"pst\xe2\x80\xa6", path[:200].encode(errors="replace")).decode(errors="replace")


def problem(status: int, code: str, detail: str) -> bytes:
    """Problem details (RFC 9457) as JSON."""
    title = HTTPStatus(status).phrase
    fields = {"type": "about:blank", "title": title, "status": status, "detail": detail, "code": code}
    return json.dumps(fields).encode()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
