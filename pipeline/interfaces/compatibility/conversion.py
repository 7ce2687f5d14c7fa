"""The part that the other APIs share: submits a request's files as documents, and waits for them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from fastapi import Request

from pipeline.engine.errors import UserError
from pipeline.flows.documents.submission import Options
from pipeline.interfaces.http.long_poll import wait_for
from pipeline.interfaces.http.uploads import File, Form, receive
from pipeline.operations import documents
from pipeline.operations.caller import Caller
from pipeline.operations.documents import Document
from pipeline.operations.refusal import Refused

MAX_FILES = 20


@asynccontextmanager
async def form_of(request: Request, max_files: int = MAX_FILES) -> AsyncIterator[Form]:
    """Yield the request's form; its files are on disk as long as the context lasts.

    Raises `Refused` for no file, and the errors of `receive`.
    """
    async with receive(request, max_files) as form:
        if not form.files:
            raise Refused("the form holds no file: send it as `files` in multipart/form-data", code="invalid")
        yield form


def submit(caller: Caller, file: File, options: Options) -> str:
    """Submit a file; return the document's id. If its page range `A-B` is refused, as one beyond the last page is,
    submits `A-` instead. Blocks."""

    def send(options: Options) -> str:
        return documents.submit_upload.by(caller, file.path, file.filename, options, file.sha256).id

    try:
        return send(options)
    except UserError as error:
        first, dash, last = options.page_range.partition("-")
        if error.code != "page_range" or not (dash and last):
            raise
        return send(replace(options, page_range=f"{first}-"))


def submit_files(caller: Caller, files: Sequence[File], options: Options) -> list[str]:
    """Submit files, and the files of ZIP archives among them; return the ids of at most `MAX_FILES` documents. Raises
    `UserError` for a refused file, except for those of an archive that has others. Blocks."""
    ids: list[str] = []
    for file in files:
        most = MAX_FILES - len(ids)
        archived = documents.submit_archive.by(caller, file.path, file.filename, options, most)
        if archived is None:
            ids.append(submit(caller, file, options))
        else:
            ids += [each.document.id for each in archived if each.document]
    if len(ids) > MAX_FILES:
        raise Refused(f"at most {MAX_FILES} files are accepted at once", code="too_large")
    return ids


async def settled(caller: Caller, ids: Sequence[str], timeout_s: float) -> list[Document]:
    """Wait until all documents are at rest, at most `timeout_s`, or not at all if too many requests wait; return their
    state then, without deleted ones."""
    read = partial(documents.several.by, caller, ids)
    return await wait_for(caller, read, lambda states: all(document.at_rest for document in states), timeout_s)


def unfinished(task_id: str) -> Refused:
    """The error (504) to raise for a synchronous call whose conversion continues as a task."""
    where = f"/v1/status/poll/{task_id}"
    message = (
        f"the conversion takes longer and goes on as task {task_id}: ask {where}, or send the same file again later"
    )
    return Refused(message, code="too_long", headers={"Location": where})
