"""What all our servers refuse and say: under which names they answer, keys in addresses, headers of every answer."""

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
"""For answers that say nothing else of themselves."""
PROBLEM = "application/problem+json"
_SECRET = re.compile(rb"pst[knw]_[A-Za-z0-9_-]{20,}")
"""A key or token of ours."""


def host_of(given: str) -> str:
    """The name in a Host header, without its port; empty for nonsense."""
    try:
        return (urlsplit(f"//{given}").hostname or "").rstrip(".") if given.isascii() and "@" not in given else ""
    except ValueError:
        return ""


def netloc_of(origin: str) -> str:
    """Host and port of an origin; empty for nonsense."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def is_ours(host: str, scope: Scope, names: Collection[str] = ()) -> bool:
    """Whether this is a name of ours: one of these, this machine, or the address that the connection came to, which no
    site can have as its own name."""
    address = scope["server"][0] if scope.get("server") else ""
    return host in LOOPBACK or host in names or "*" in names or (_is_address(host) and host == address)


def holds_secret(scope: Scope) -> bool:
    """Whether a key or token stands in the address, where logs and histories keep it."""
    raw = scope.get("raw_path") or scope["path"].encode()
    return bool(_SECRET.search(unquote_to_bytes(raw + b"?" + scope["query_string"])))


def without_secrets(path: str) -> str:
    """A path for the log: short, and without a key or token that stands in it."""
    return _SECRET.sub(b"pst\xe2\x80\xa6", path[:200].encode(errors="replace")).decode(errors="replace")


def problem(status: int, code: str, detail: str) -> bytes:
    """Problem details (RFC 9457) as JSON."""
    said = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, "code": code}
    return json.dumps(said).encode()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
