"""Limit the size of HTTP replies: count unpacked bytes, since a few packed bytes may hold gigabytes."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import httpx2

_READABLE = {"", "identity", "gzip", "x-gzip", "deflate"}


@dataclass(frozen=True)
class ReplyLimit:
    """Refuses replies of more than `max_bytes` after unpacking, and replies in an unknown compression.

    `refusal` makes an error from a sentence's end and a code, `too_large` or `unsupported`."""

    max_bytes: int
    refusal: Callable[[str, str], Exception]

    async def apply(self, response: httpx2.Response) -> None:
        """Wrap the content of a response, as a hook of an `httpx2.AsyncClient`: it arrives unpacked, and reading more
        than `max_bytes` raises the refusal. Raises the refusal at once for an unknown content encoding."""
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        codings = [coding.strip().lower() for coding in response.headers.get("content-encoding", "").split(",")]
        if unknown := [coding for coding in codings if coding not in _READABLE]:
            raise self.refusal(f"sent a reply packed by {unknown[0][:40]!a}, which was not requested", "unsupported")
        # The library does not know the older name `x-gzip`, and would pass the packed bytes on.
        packed = [(b"content-encoding", coding.removeprefix("x-").encode()) for coding in codings if coding]
        inner = httpx2.Response(200, headers=packed, stream=response.stream)
        inner.request = response.request
        response.headers.pop("content-encoding", None)
        response.stream = _Limited(inner, self)


class _Limited(httpx2.AsyncByteStream):
    def __init__(self, packed: httpx2.Response, limit: ReplyLimit) -> None:
        self._packed = packed
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        seen = 0
        async with aclosing(self._packed.aiter_bytes()) as parts:
            async for part in parts:
                seen += len(part)
                if seen > self._limit.max_bytes:
                    raise self._limit.refusal(f"sent a reply of more than {self._limit.max_bytes} bytes", "too_large")
                yield part

    async def aclose(self) -> None:
        await self._packed.aclose()
