"""Files that arrive inside a JSON body, or that the request names by address."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from anyio.to_thread import run_sync

from pipeline.interfaces.http.uploads import UPLOADS, File
from pipeline.operations.caller import Caller
from pipeline.operations.refusal import Refused
from pipeline.reading.sandbox.limits import FetchLimits
from pipeline.reading.web.fetch import fetch
from pipeline.storage import installation

FETCH_S = 60.0
"""Seconds within which a fetched file arrives."""


@asynccontextmanager
async def stored(caller: Caller, filename: str, content: bytes) -> AsyncIterator[File]:
    """Yield this content as a file on disk, which the end of the context removes.

    Raises `Refused` (429) above the upload quota, `ForeignFolder` if the data folder is another database's.
    """
    context, folder = caller.context, caller.context.settings.upload_dir
    file = File("files", filename, folder / f"incoming-{uuid4().hex}")

    def write() -> None:
        # Check before the first file: a file in a new folder would make it look used.
        installation.check(context.db, context.settings)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.path.touch(mode=0o600)
        file.add(content)
        file.write()

    try:
        await run_sync(_count, caller, len(content))
        await run_sync(write)
        yield file
    finally:
        await run_sync(lambda: file.path.unlink(missing_ok=True))


@asynccontextmanager
async def fetched(caller: Caller, url: str) -> AsyncIterator[File]:
    """Yield the file at `url`, fetched to disk; the end of the context removes it.

    Raises `Refused` if the settings forbid fetching, too many uploads run, or the file exceeds the caller's upload
    quota; `UnitError` if the fetch fails; `Unwanted` if the server shuts down; `ForeignFolder` if the data folder is
    another database's.
    """
    settings = caller.context.settings.api
    if not settings.fetch:
        message = "this server fetches nothing (PENSTOCK_API__FETCH): send the file itself"
        raise Refused(message, code="not_allowed")
    limits = FetchLimits(max_bytes=settings.max_upload_mb * 1_000_000, timeout_s=FETCH_S)
    name = unquote(urlsplit(url).path.rpartition("/")[2], errors="replace")[:1000]
    async with stored(caller, name, b"") as file:

        def get() -> None:
            fetch(url, limits, caller.goes_on, to=file.path, allow_private=settings.fetch_private)
            file.measure()
            _count(caller, file.size)

        with UPLOADS.one(caller.id):
            await run_sync(get)
        yield file


def _count(caller: Caller, size: int) -> None:
    """Count these bytes against the caller's upload quota, in whole megabytes. Raises `Refused` (429) above it.
    Blocks."""
    if size and caller.quotas is not None:
        caller.quotas.take_upload(caller.id, math.ceil(size / 1e6))
