"""What the other APIs have in common: files of a request become documents, and someone waits for them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from anyio.to_thread import run_sync
from fastapi import Request

from pipeline.engine.errors import UserError
from pipeline.flows.documents import queries
from pipeline.flows.documents.queries import DocumentView
from pipeline.interfaces.api.problems import Refused
from pipeline.interfaces.api.uploads import File, Form, receive
from pipeline.interfaces.api.v1.documents import submit_file
from pipeline.interfaces.api.waiting import wait_for
from pipeline.reading.content import FetchLimits
from pipeline.reading.fetch import fetch
from pipeline.storage import installation
from pipeline.storage.context import Context
from tasks.documents import Options

MAX_FILES = 20
FETCH_S = 60.0
"""How long a file that a request names may take to come."""


@asynccontextmanager
async def form_of(request: Request, max_files: int = MAX_FILES) -> AsyncIterator[Form]:
    """The form that the request carries. Raises `Refused` if there is no file in it, or too many."""
    async with receive(request, max_files) as form:
        if not form.files:
            raise Refused("there is no file: send it as `files` in multipart/form-data", code="invalid")
        yield form


@asynccontextmanager
async def stored(context: Context, filename: str, content: bytes) -> AsyncIterator[File]:
    """A file that is in the request itself, on disk as long as the context lasts."""
    folder = context.settings.upload_dir
    file = File("files", filename, folder / f"incoming-{uuid4().hex}")

    def write() -> None:
        # Before the first file: it would make a new folder look like one that is in use.
        installation.check(context.db, context.settings)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.path.touch(mode=0o600)
        file.add(content)
        file.write()

    try:
        await run_sync(write)
        yield file
    finally:
        await run_sync(lambda: file.path.unlink(missing_ok=True))


@asynccontextmanager
async def fetched(request: Request, context: Context, url: str) -> AsyncIterator[File]:
    """A file that the request names, fetched if that is allowed. Raises `Refused`, or `UnitError` that says why not."""
    settings = context.settings.api
    if not settings.fetch:
        message = "this server fetches nothing (PENSTOCK_API__FETCH): send the file itself"
        raise Refused(message, code="not_allowed")
    limits = FetchLimits(max_bytes=settings.max_upload_mb * 1_000_000, timeout_s=FETCH_S)
    name = unquote(urlsplit(url).path.rpartition("/")[2], errors="replace")[:1000]
    async with stored(context, name, b"") as file:

        def get() -> None:
            ending = request.app.state.ending
            fetch(url, limits, lambda: not ending.is_set(), to=file.path, allow_private=settings.fetch_private)
            file.look()

        await run_sync(get)
        yield file


def submit(request: Request, file: File, options: Options) -> str:
    """Submit a file; returns the document's id. A page range that reaches beyond the last page ends with it. Blocks."""
    try:
        return submit_file(request, file, options).id
    except UserError as error:
        first, dash, last = options.page_range.partition("-")
        if error.code != "page_range" or not (dash and last):
            raise
        return submit_file(request, file, replace(options, page_range=f"{first}-")).id


async def settled(request: Request, context: Context, ids: Sequence[str], timeout_s: float) -> list[DocumentView]:
    """The documents once all are at rest, or after `timeout_s` as they are then."""
    return await wait_for(
        request, lambda: queries.documents_by_id(context, ids),
        lambda found: all(document.at_rest for document in found), timeout_s,
    )  # fmt: skip


def unfinished(task_id: str) -> Refused:
    """The answer to a synchronous call whose conversion goes on without it."""
    where = f"/v1/status/poll/{task_id}"
    message = (
        f"the conversion takes longer and goes on as task {task_id}: ask {where}, or send the same file again later"
    )
    return Refused(message, code="too_long", headers={"Location": where})
