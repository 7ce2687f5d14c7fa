"""Fetch from addresses that strangers name: within limits, and never from our own network unless that is allowed."""

import math
import re
import ssl
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import httpcore2
import httpx2

from pipeline.engine.errors import UnitError
from pipeline.engine.retry import seconds_or_date
from pipeline.reading.sandbox.limits import FetchLimits, Wanted, refused
from pipeline.reading.web import addresses
from pipeline.reading.web.addresses import MAX_URL, AllowPrivate, Resolve
from pipeline.reading.web.connection import OutOfTime, Patience, PinnedBackend

_AGENT = "Penstock"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TRANSIENT = frozenset({408, 425, 429})
_CODINGS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_PART_BYTES = 65_536
_ANSWER_BYTES = 2_048
_ODD = re.compile(r"[\x00-\x20\x7f-\x9f\ud800-\udfff\\]")
_MAX_WAIT_S = 86_400.0


@dataclass(frozen=True)
class Fetched:
    """A server's response. `url`: its address after redirects; `body` is empty if it was written to a file.

    `headers` have lower-case names; `content_type` is in lower case and without parameters, such as `charset`.
    """

    url: str
    status: int
    content_type: str
    charset: str
    headers: Mapping[str, str]
    size_bytes: int
    body: bytes = field(default=b"", repr=False)


def parse_url(text: str) -> httpx2.URL:
    """Return the address without its fragment if it may be fetched: http or https, with a host, and without a user or
    password.

    Raises `UnitError` (permanent) with code `bad_url`, or `address_refused` for a port that web servers do not use.
    """
    if len(text) > MAX_URL or _ODD.search(text.strip()):
        raise refused("This is not an address: it is too long, or has spaces or control characters.", "bad_url")
    try:
        url = httpx2.URL(text.strip())
        host, port = url.host, url.port  # parsed only here, and may be invalid
    except (httpx2.InvalidURL, ValueError, UnicodeError) as error:
        raise refused("This is not an address that can be fetched.", "bad_url") from error
    if url.scheme not in {"http", "https"} or not host:
        raise refused("Only addresses that begin with http:// or https:// are fetched.", "bad_url")
    if url.userinfo:
        raise refused("The address must not hold a user or a password.", "bad_url")
    if port is not None:
        addresses.check_port(port)
    url = url.copy_with(fragment=None)
    if len(str(url)) > MAX_URL:  # a character of another script takes up to twelve
        raise refused(f"This address is longer than {MAX_URL:,} characters.", "bad_url")
    return url


def fetch(
    address: str,
    limits: FetchLimits,
    wanted: Wanted,
    *,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    to: Path | None = None,
    allow_private: AllowPrivate = False,
    resolve: Resolve = addresses.resolve,
    tls: ssl.SSLContext | None = None,
) -> Fetched:
    """Send a request and read the whole answer, into memory or, with `to`, only into that file.

    Every address of the host must be public or allowed, again after each redirect, and the connection goes to a checked
    address. Redirects are followed for GET and HEAD only, never from https to http, and `headers` are not sent to
    another host. Proxies and credentials in the environment are ignored. The whole request ends within
    `limits.timeout_s`.

    Raises `Unwanted`, or `UnitError`: permanent with code `bad_url`, `address_refused`, `redirects`, `too_large`,
    `unsupported` (its compression), `bad_certificate` or `http_404` (the status); transient with code `http_503`,
    `unknown_host`, `unreachable`, `timeout` or `bad_reply`.
    """
    url = parse_url(address)
    patience = Patience(time.monotonic() + limits.timeout_s, wanted)
    tls = tls or trusted()
    sent = dict(headers or {})
    for _ in range(limits.max_redirects + 1):
        backend = PinnedBackend(patience, limits.connect_s, allow_private, resolve)
        try:
            with httpcore2.ConnectionPool(ssl_context=tls, network_backend=backend) as pool:
                answer = _exchange(pool, url, method, body, sent, to, limits)
        except OutOfTime:
            message = f"{url.host} did not answer completely within {limits.timeout_s:g} s."
            raise UnitError(message, code="timeout") from None
        except (httpcore2.NetworkError, httpcore2.TimeoutException) as error:
            raise _unreachable(url, error) from None
        except (httpcore2.ProtocolError, zlib.error) as error:
            raise UnitError(f"{url.host} broke off, or does not speak HTTP: {error}", code="bad_reply") from None
        if isinstance(answer, Fetched):
            return answer
        following = _redirected(url, answer)
        if (following.scheme, following.host, following.port) != (url.scheme, url.host, url.port):
            sent = {}
        url = following
    raise refused(f"{address[:200]} redirects more than {limits.max_redirects} times.", "redirects")


@cache
def trusted() -> ssl.SSLContext:
    """Return the context that verifies certificates, set by the environment. It is loaded once a process: loading is
    slow."""
    return httpcore2.default_ssl_context()


def _exchange(
    pool: httpcore2.ConnectionPool,
    url: httpx2.URL,
    method: str,
    body: bytes | None,
    headers: Mapping[str, str],
    to: Path | None,
    limits: FetchLimits,
) -> Fetched | str:
    """Return the answer, or the address of a redirect. Raises `UnitError` with the beginning of the body unless the
    status is 2xx."""
    sent = {"host": url.netloc.decode("ascii"), "user-agent": _AGENT, "accept-encoding": "gzip", "accept": "*/*"}
    sent |= {name.lower(): value for name, value in headers.items()}
    sent |= {"connection": "close"} | ({"content-length": str(len(body))} if body is not None else {})
    target = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
    fields = [(name.encode("ascii"), value.encode("latin-1", "replace")) for name, value in sent.items()]
    with pool.stream(method.encode("ascii"), target, headers=fields, content=body) as response:
        received: dict[str, str] = {}
        for name, value in response.headers:
            received.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
        if response.status in _REDIRECTS and received.get("location") and method in {"GET", "HEAD"}:
            return received["location"]
        if not 200 <= response.status < 300:
            error = _failed(url, response.status, received)
            error.beginning = _beginning(_unpacked(response.iter_stream(), received, url, limits))
            raise error
        parts = _unpacked(_bounded(response.iter_stream(), received, url, limits), received, url, limits)
        content = bytearray()
        size = 0
        if to is None:
            for part in parts:
                content += part
            size = len(content)
        else:
            with to.open("wb") as file:
                for part in parts:
                    size += file.write(part)
    kind, _, parameters = received.get("content-type", "").partition(";")
    charset = re.search(r"""charset\s*=\s*["']?([\w.:-]{1,40})""", parameters, re.IGNORECASE)
    return Fetched(
        str(url), response.status, kind.strip().lower(), charset[1] if charset else "", received, size, bytes(content)
    )


def _beginning(parts: Iterator[bytes]) -> str:
    """Return the first 2 KB of an error's body as text, or as much as arrives."""
    content = bytearray()
    try:
        for part in parts:
            content += part
            if len(content) >= _ANSWER_BYTES:
                break
    except (
        UnitError,
        OutOfTime,
        httpcore2.NetworkError,
        httpcore2.TimeoutException,
        httpcore2.ProtocolError,
        zlib.error,
    ):
        pass
    return content[:_ANSWER_BYTES].decode("utf-8", "replace")


def _bounded(
    parts: Iterator[bytes], headers: Mapping[str, str], url: httpx2.URL, limits: FetchLimits
) -> Iterator[bytes]:
    """Yield the body as sent, compressed or not. Raises `UnitError` with code `too_large` beyond the size limit."""
    declared = headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limits.max_bytes):
        raise _too_large(url, limits)
    size = 0
    for part in parts:
        size += len(part)
        if size > limits.max_bytes:
            raise _too_large(url, limits)
        yield part


def _unpacked(
    parts: Iterator[bytes], headers: Mapping[str, str], url: httpx2.URL, limits: FetchLimits
) -> Iterator[bytes]:
    """Yield the decompressed body piece by piece: a few compressed bytes may stand for gigabytes.

    Raises `UnitError` with code `too_large`, `unsupported` (another compression) or `bad_reply` (cut off).
    """
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding in {"", "identity"}:
        yield from parts
        return
    if coding not in _CODINGS:
        raise refused(f"{url.host} sends its answer packed by {coding[:40]}, which was not requested.", "unsupported")
    unpacker = zlib.decompressobj(_CODINGS[coding])
    size = 0
    for part in parts:
        remaining = part
        while remaining and not unpacker.eof:
            piece = unpacker.decompress(remaining, _PART_BYTES)
            remaining = unpacker.unconsumed_tail
            size += len(piece)
            if size > limits.max_bytes:
                raise _too_large(url, limits)
            yield piece
    yield unpacker.flush()
    if not unpacker.eof:
        raise UnitError(f"{url.host} broke off in the middle of its answer.", code="bad_reply")


def _redirected(url: httpx2.URL, location: str) -> httpx2.URL:
    try:
        following = parse_url(str(url.join(location)))
    except (httpx2.InvalidURL, ValueError, UnicodeError) as error:
        raise refused(f"{url.host} redirects to something that is not an address.", "bad_url") from error
    if url.scheme == "https" and following.scheme == "http":
        raise refused(f"{url.host} redirects from https to http, which is not followed.", "redirects")
    return following


def _failed(url: httpx2.URL, status: int, headers: Mapping[str, str]) -> UnitError:
    message = f"{url.host} answered with status {status}."
    if status in _TRANSIENT or status >= 500:
        return UnitError(message, code=f"http_{status}", retry_after_s=_retry_after_s(headers))
    return refused(message, f"http_{status}")


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    wait = seconds_or_date(headers.get("retry-after"), datetime.now(UTC))
    return min(max(0.0, wait), _MAX_WAIT_S) if wait is not None and math.isfinite(wait) else None


def _unreachable(url: httpx2.URL, error: Exception) -> UnitError:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return refused(f"The certificate of {url.host} is not valid.", "bad_certificate")
    return UnitError(f"{url.host} cannot be reached: {error}", code="unreachable")


def _too_large(url: httpx2.URL, limits: FetchLimits) -> UnitError:
    message = f"{url.host} sends more than the {limits.max_bytes / 1e6:,.0f} MB that are accepted."
    return refused(message, "too_large")
