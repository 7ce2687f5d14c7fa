"""The endpoints of docling-serve, version 1.

A document of Penstock is a task here; the same file under the same options is the same document. So a client whose
synchronous call took too long may send the file again, and finds it done.
"""

import base64
import binascii
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import IO, Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import StringConstraints

from pipeline.flows.documents.views import DocumentView
from pipeline.interfaces.compatibility import conversion
from pipeline.interfaces.compatibility.docling import result
from pipeline.interfaces.compatibility.docling.options import (
    ConvertOptions,
    ConvertRequest,
    FileSource,
    HttpSource,
    as_zip,
    of_form,
)
from pipeline.interfaces.compatibility.docling.task import Task, documents_of, status
from pipeline.interfaces.http import remote
from pipeline.interfaces.http.dependencies import InContext, reader, spender, writer
from pipeline.interfaces.http.fields import CLEAN, MAX_WAIT_S
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.uploads import File
from pipeline.operations.refusal import Refused
from pipeline.reading.files.source import safe_filename
from pipeline.storage.context import Context

router = APIRouter(tags=["docling-serve"], route_class=JsonRoute)
TaskId = Annotated[str, StringConstraints(max_length=1000), CLEAN]
PollWait = Annotated[float, Query(ge=0, le=3600, description=f"Answer after this many seconds, at most {MAX_WAIT_S}.")]

_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["files"],
                    "properties": {
                        "files": {"type": "array", "items": {"type": "string", "format": "binary"}},
                        **ConvertOptions.model_json_schema()["properties"],
                        "to_formats": {"type": "array", "items": {"type": "string"}},
                        "target_type": {"type": "string", "enum": ["inbody", "zip"]},
                    },
                }
            }
        },
    }
}
_CHUNK_BYTES = 256_000


@router.get("/health")
def health() -> dict[str, str]:
    """Say that the server answers."""
    return {"status": "ok"}


@router.get("/version")
def versions() -> dict[str, str]:
    """Which program this is."""
    return {"penstock": version("penstock"), "docling_serve_api": "v1"}


@router.post("/v1/convert/file", dependencies=[*writer, *spender], openapi_extra=_FORM)
async def convert_file(request: Request, context: InContext) -> Response:
    """Convert files and wait for the result: JSON for one file, a ZIP file for several."""
    task, options = await _of_form(request, context)
    return await _wait(request, context, task, options)


@router.post("/v1/convert/file/async", dependencies=[*writer, *spender], openapi_extra=_FORM)
async def convert_file_async(request: Request, context: InContext) -> dict[str, Any]:
    """Begin to convert files."""
    task, _ = await _of_form(request, context)
    return await run_sync(_status, context, task)


@router.post("/v1/convert/source", dependencies=[*writer, *spender])
async def convert_source(request: Request, context: InContext, body: ConvertRequest) -> Response:
    """Convert files that are in the request, or that it names, and wait for the result."""
    return await _wait(request, context, await _of_sources(request, context, body), body.options)


@router.post("/v1/convert/source/async", dependencies=[*writer, *spender])
async def convert_source_async(request: Request, context: InContext, body: ConvertRequest) -> dict[str, Any]:
    """Begin to convert files that are in the request, or that it names."""
    return await run_sync(_status, context, await _of_sources(request, context, body))


@router.get("/v1/status/poll/{task_id}", dependencies=reader)
async def poll(request: Request, context: InContext, task_id: TaskId, wait: PollWait = 0.0) -> dict[str, Any]:
    """Say how a task is doing, at once or when it has ended."""
    task = Task.parse(task_id)
    if wait:
        await conversion.settled(request, context, task.documents, min(wait, MAX_WAIT_S))
    return await run_sync(_status, context, task)


@router.get("/v1/result/{task_id}", dependencies=reader)
def fetch(context: InContext, task_id: TaskId) -> Response:
    """Fetch the result of a task that has ended, as often as you like: results are kept."""
    task = Task.parse(task_id)
    found = documents_of(context, task)
    if not all(document.at_rest for document in found):
        raise Refused("Task result not found. Please wait for a completion status.", code="not_found")
    return _answer(context, task, found)


async def _of_form(request: Request, context: Context) -> tuple[Task, ConvertOptions]:
    async with conversion.form_of(request) as form:
        options, zipped = of_form(form.fields)
        return await run_sync(_submitted, request, context, form.files, options, zipped), options


async def _of_sources(request: Request, context: Context, body: ConvertRequest) -> Task:
    zipped = as_zip(body.target.kind)
    async with AsyncExitStack() as held:
        files = []
        for number, source in enumerate(body.sources):
            if isinstance(source, HttpSource):
                files.append(await held.enter_async_context(remote.fetched(request.state.caller, source.url)))
            else:
                content = await run_sync(_decoded, source, number)
                files.append(
                    await held.enter_async_context(remote.stored(request.state.caller, source.filename, content))
                )
        return await run_sync(_submitted, request, context, files, body.options, zipped)


def _submitted(
    request: Request, context: Context, files: Sequence[File], options: ConvertOptions, zipped: bool
) -> Task:
    submission = options.submission(context.settings.provider)
    ids = [conversion.submit(request, file, submission) for file in files]
    return Task.of(ids, options, zipped=zipped, filename=safe_filename(files[0].filename))


def _decoded(source: FileSource, number: int) -> bytes:
    try:
        return base64.b64decode(source.base64_string, validate=True)
    except (binascii.Error, ValueError):
        raise Refused(f"sources.{number}.base64_string is not Base64", code="invalid") from None


async def _wait(request: Request, context: Context, task: Task, options: ConvertOptions) -> Response:
    patience_s = context.settings.api.max_sync_wait_s
    if options.document_timeout is not None:
        patience_s = min(patience_s, options.document_timeout)
    await conversion.settled(request, context, task.documents, patience_s)
    found = await run_sync(documents_of, context, task)
    if not all(document.at_rest for document in found):
        raise conversion.unfinished(task.id)
    return await run_sync(_answer, context, task, found)


def _status(context: Context, task: Task) -> dict[str, Any]:
    return status(task, documents_of(context, task))


def _answer(context: Context, task: Task, found: list[DocumentView]) -> Response:
    if not task.as_zip:
        return JSONResponse(result.body(context, task, found[0]))
    file = result.archive(context, task, found)
    headers = {"Content-Disposition": 'attachment; filename="converted_docs.zip"'}
    return StreamingResponse(_parts(file), media_type="application/zip", headers=headers)


def _parts(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while part := file.read(_CHUNK_BYTES):
            yield part
