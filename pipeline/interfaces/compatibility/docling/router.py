"""The endpoints of docling-serve, version 1.

A task here is one or more documents of Penstock; the same file with the same options is the same document. So a client
whose synchronous call took too long may send the file again, and gets the result.
"""

import base64
import binascii
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any, Literal

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import StringConstraints

from pipeline.flows.webhooks.rules.callback import Callback
from pipeline.interfaces.compatibility import conversion
from pipeline.interfaces.compatibility.docling import result
from pipeline.interfaces.compatibility.docling.options import (
    CallbackSpec,
    Chunker,
    ChunkOptions,
    ChunkRequest,
    ConvertOptions,
    ConvertRequest,
    FileSource,
    HttpSource,
    Source,
    as_zip,
    check_inbody,
    chunking_of_form,
    of_form,
)
from pipeline.interfaces.compatibility.docling.task import Chunking, Task, documents_of, status
from pipeline.interfaces.http import remote
from pipeline.interfaces.http.dependencies import ByCaller, reader, spender, writer
from pipeline.interfaces.http.downloads import from_file
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import CLEAN, MAX_WAIT_S
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.uploads import File
from pipeline.operations import webhooks
from pipeline.operations.caller import Caller
from pipeline.operations.documents import Document
from pipeline.operations.refusal import Refused
from pipeline.reading.files.source import safe_filename

router = APIRouter(tags=["docling-serve"], route_class=JsonRoute)
TaskId = Annotated[str, StringConstraints(max_length=1000), CLEAN]
PollWait = Annotated[float, Query(ge=0, le=3600, description=f"Answer after this many seconds, at most {MAX_WAIT_S}.")]

_UNSUPPORTED = {
    "converters": "no converter is kept between documents, so there is nothing to clear",
    "results": "results are kept until their documents are deleted: DELETE /api/v1/documents/{id}",
    **dict.fromkeys(("stats", "counts"), "the memory of processes is not reported: ask the operating system"),
    "batch": "files come from the request or from addresses, and results in the answer: use /v1/convert/source",
}
"""The answers at docling-serve's addresses that Penstock does not serve, by their last part."""


def _form(fields: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI description of a form with files and these fields."""
    files = {"files": {"type": "array", "items": {"type": "string", "format": "binary"}}}
    schema = {"type": "object", "required": ["files"], "properties": files | fields}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


_CONVERT_FIELDS = ConvertOptions.model_json_schema()["properties"] | {
    "to_formats": {"type": "array", "items": {"type": "string"}}
}
_FORM = _form(_CONVERT_FIELDS | {"target_type": {"type": "string", "enum": ["inbody", "zip"]}})
_CHUNK_FORM = _form(
    {f"convert_{name}": field for name, field in _CONVERT_FIELDS.items()}
    | {f"chunking_{name}": field for name, field in ChunkOptions.model_json_schema()["properties"].items()}
    | {"include_converted_doc": {"type": "boolean"}, "target_type": {"type": "string", "enum": ["inbody"]}}
)


@router.get("/health")
def health() -> dict[str, str]:
    """Say that the server answers."""
    return {"status": "ok"}


@router.get("/v1/clear/{what}", name="clear", dependencies=reader, responses=documented(501))
@router.get("/v1/memory/{what}", name="memory", dependencies=reader, responses=documented(501))
def unsupported(what: Literal["converters", "results", "stats", "counts"]) -> None:
    """Refuse, with the reason, to clear a cache or to show a process's memory."""
    raise Refused(_UNSUPPORTED[what], code="not_supported")


@router.post("/v1/convert/source/batch", dependencies=writer, responses=documented(501))
def convert_batch() -> None:
    """Refuse, with the reason, to convert a store's files to another store."""
    raise Refused(_UNSUPPORTED["batch"], code="not_supported")


@router.get("/version")
def versions() -> dict[str, str]:
    """Name the program and its version."""
    return {"penstock": version("penstock"), "docling_serve_api": "v1"}


@router.post("/v1/convert/file", dependencies=[*writer, *spender], openapi_extra=_FORM)
async def convert_file(request: Request, caller: ByCaller) -> Response:
    """Convert files and wait for the result: JSON for one file, a ZIP file for several or on request."""
    task, options = await _of_form(request, caller)
    return await _wait(caller, task, options)


@router.post("/v1/convert/file/async", dependencies=[*writer, *spender], openapi_extra=_FORM)
async def convert_file_async(request: Request, caller: ByCaller) -> dict[str, Any]:
    """Start to convert files."""
    task, _ = await _of_form(request, caller)
    return await run_sync(_status, caller, task)


@router.post("/v1/convert/source", dependencies=[*writer, *spender])
async def convert_source(caller: ByCaller, body: ConvertRequest) -> Response:
    """Convert files that the request holds or names, and wait for the result."""
    return await _wait(caller, await _of_request(caller, body), body.options)


@router.post("/v1/convert/source/async", dependencies=[*writer, *spender])
async def convert_source_async(caller: ByCaller, body: ConvertRequest) -> dict[str, Any]:
    """Start to convert files that the request holds or names."""
    return await run_sync(_status, caller, await _of_request(caller, body))


@router.post("/v1/chunk/{chunker}/file", dependencies=[*writer, *spender], openapi_extra=_CHUNK_FORM)
async def chunk_file(request: Request, caller: ByCaller, chunker: Chunker) -> Response:
    """Convert files and wait for their chunks."""
    task, options = await _of_chunk_form(request, caller, chunker)
    return await _wait(caller, task, options)


@router.post("/v1/chunk/{chunker}/file/async", dependencies=[*writer, *spender], openapi_extra=_CHUNK_FORM)
async def chunk_file_async(request: Request, caller: ByCaller, chunker: Chunker) -> dict[str, Any]:
    """Start to convert files into chunks."""
    task, _ = await _of_chunk_form(request, caller, chunker)
    return await run_sync(_status, caller, task)


@router.post("/v1/chunk/{chunker}/source", dependencies=[*writer, *spender])
async def chunk_source(caller: ByCaller, chunker: Chunker, body: ChunkRequest) -> Response:
    """Convert files that the request holds or names, and wait for their chunks."""
    return await _wait(caller, await _of_chunk_request(caller, chunker, body), body.convert_options)


@router.post("/v1/chunk/{chunker}/source/async", dependencies=[*writer, *spender])
async def chunk_source_async(caller: ByCaller, chunker: Chunker, body: ChunkRequest) -> dict[str, Any]:
    """Start to convert files that the request holds or names into chunks."""
    return await run_sync(_status, caller, await _of_chunk_request(caller, chunker, body))


@router.get("/v1/status/poll/{task_id}", dependencies=reader)
async def poll(caller: ByCaller, task_id: TaskId, wait: PollWait = 0.0) -> dict[str, Any]:
    """Show the state of a task; with `wait`, once it has ended or that time has passed."""
    task = Task.parse(task_id)
    if wait:
        await conversion.settled(caller, task.documents, min(wait, MAX_WAIT_S))
    return await run_sync(_status, caller, task)


@router.get("/v1/result/{task_id}", dependencies=reader)
def fetch(caller: ByCaller, task_id: TaskId) -> Response:
    """Fetch the result of a task that has ended, as often as you like: Penstock keeps results."""
    task = Task.parse(task_id)
    converted = documents_of(caller, task)
    if not all(document.at_rest for document in converted):
        raise Refused("Task result not found. Please wait for a completion status.", code="not_found")
    return _answer(caller, task, converted)


async def _of_form(request: Request, caller: Caller) -> tuple[Task, ConvertOptions]:
    async with conversion.form_of(request) as form:
        options, zipped = of_form(form.fields)
        return await run_sync(partial(_submitted, caller, form.files, options, zipped=zipped)), options


async def _of_chunk_form(request: Request, caller: Caller, chunker: Chunker) -> tuple[Task, ConvertOptions]:
    async with conversion.form_of(request) as form:
        options, chunk_options, documents = chunking_of_form(form.fields)
        chunking = Chunking.of(chunker, chunk_options, documents=documents)
        return await run_sync(partial(_submitted, caller, form.files, options, chunking=chunking)), options


async def _of_request(caller: Caller, body: ConvertRequest) -> Task:
    zipped = as_zip(body.target.kind)
    webhooks.check_callbacks(caller, [spec.url for spec in body.callbacks])
    async with _files(caller, body.sources) as files:
        task = await run_sync(partial(_submitted, caller, files, body.options, zipped=zipped))
        return await run_sync(_with_callbacks, caller, task, body.options, body.callbacks)


async def _of_chunk_request(caller: Caller, chunker: Chunker, body: ChunkRequest) -> Task:
    check_inbody(body.target.kind)
    chunking = Chunking.of(chunker, body.chunking_options, documents=body.include_converted_doc)
    webhooks.check_callbacks(caller, [spec.url for spec in body.callbacks])
    async with _files(caller, body.sources) as files:
        task = await run_sync(partial(_submitted, caller, files, body.convert_options, chunking=chunking))
        return await run_sync(_with_callbacks, caller, task, body.convert_options, body.callbacks)


def _with_callbacks(caller: Caller, task: Task, options: ConvertOptions, specs: Sequence[CallbackSpec]) -> Task:
    """Let the task report to these addresses; return it."""
    if specs:
        names = {document.id: document.filename for document in documents_of(caller, task)}
        callback = Callback(task.id, names, allow_partial=not options.abort_on_error)
        webhooks.call_back.by(caller, [(spec.url, spec.headers) for spec in specs], callback)
    return task


@asynccontextmanager
async def _files(caller: Caller, sources: Sequence[Source]) -> AsyncIterator[list[File]]:
    """Yield the sources' files, on disk as long as the context lasts."""
    async with AsyncExitStack() as held:
        files = []
        for number, source in enumerate(sources):
            if isinstance(source, HttpSource):
                files.append(await held.enter_async_context(remote.fetched(caller, source.url)))
            else:
                content = await run_sync(_decoded, source, number)
                files.append(await held.enter_async_context(remote.stored(caller, source.filename, content)))
        yield files


def _submitted(
    caller: Caller,
    files: Sequence[File],
    options: ConvertOptions,
    *,
    zipped: bool = False,
    chunking: Chunking | None = None,
) -> Task:
    submission = options.submission(caller.context.settings.provider)
    ids = conversion.submit_files(caller, files, submission)
    return Task.of(ids, options, zipped=zipped, filename=safe_filename(files[0].filename), chunking=chunking)


def _decoded(source: FileSource, number: int) -> bytes:
    try:
        return base64.b64decode(source.base64_string, validate=True)
    except (binascii.Error, ValueError):
        raise Refused(f"sources.{number}.base64_string is not Base64", code="invalid") from None


async def _wait(caller: Caller, task: Task, options: ConvertOptions) -> Response:
    patience_s = caller.context.settings.api.max_sync_wait_s
    if options.document_timeout is not None:
        patience_s = min(patience_s, options.document_timeout)
    await conversion.settled(caller, task.documents, patience_s)
    converted = await run_sync(documents_of, caller, task)
    if not all(document.at_rest for document in converted):
        raise conversion.unfinished(task.id)
    return await run_sync(_answer, caller, task, converted)


def _status(caller: Caller, task: Task) -> dict[str, Any]:
    return status(task, documents_of(caller, task))


def _answer(caller: Caller, task: Task, converted: list[Document]) -> Response:
    if task.chunking or not task.as_zip:
        return from_file(result.answer(caller, task, converted), "application/json")
    return from_file(result.archive(caller, task, converted), "application/zip", "converted_docs.zip")
