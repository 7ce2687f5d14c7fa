"""The APIs of Open WebUI's document loaders "external" and "mineru". Its third, "docling", calls docling-serve's."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Header, Request
from pydantic import StringConstraints, ValidationError

from pipeline.flows.documents.submission import Options
from pipeline.interfaces.compatibility import conversion
from pipeline.interfaces.compatibility.docling.options import ConvertOptions
from pipeline.interfaces.compatibility.docling.result import markdown
from pipeline.interfaces.compatibility.docling.task import Task, has_result, message
from pipeline.interfaces.http.dependencies import ByCaller, spender, writer
from pipeline.interfaces.http.fields import CLEAN
from pipeline.operations import documents
from pipeline.operations.caller import Caller
from pipeline.operations.documents import Document
from pipeline.operations.refusal import Refused
from pipeline.reading.files.source import safe_filename, safe_stem

router = APIRouter(tags=["open-webui"], dependencies=[*writer, *spender])
Filename = Annotated[
    Annotated[str, StringConstraints(max_length=3000), CLEAN],
    Header(alias="X-Filename", description="Percent-encoded."),
]
_BODY: dict[str, Any] = {
    "requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}
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
                        "start_page_id": {"type": "integer", "description": "The first page, from 0."},
                        "end_page_id": {"type": "integer", "description": "The last page, from 0."},
                        "provider": {"type": "string", "description": "An addition of Penstock."},
                        "model": {"type": "string", "description": "An addition of Penstock."},
                    },
                }
            }
        },
    }
}
_LAST_PAGE = 99_999


@router.put("/process", openapi_extra=_BODY)
async def process(request: Request, caller: ByCaller, _filename: Filename = "") -> list[dict[str, Any]]:
    """Convert the file in the body; answer with the Markdown of each page that has text."""
    async with conversion.form_of(request, 1) as form:
        file = form.files[0]
        document_id = await run_sync(conversion.submit, caller, file, Options(allow_partial=True))
    document = (await _converted(caller, [document_id]))[0]
    return await run_sync(_pages, caller, document, safe_filename(file.filename))


@router.post("/file_parse", openapi_extra=_FORM)
async def file_parse(request: Request, caller: ByCaller) -> dict[str, Any]:
    """Convert files in the manner of MinerU's API; answer with their Markdown."""
    async with conversion.form_of(request) as form:
        submission = _mineru_options(form.fields).submission(caller.context.settings.provider)
        ids = [await run_sync(conversion.submit, caller, file, submission) for file in form.files]
    results: dict[str, dict[str, str]] = {}
    for file, document in zip(form.files, await _converted(caller, ids), strict=True):
        name = safe_stem(file.filename)
        text = await run_sync(markdown, caller, Task((document.id,)), document, lambda _: None)
        results[f"{name}-{len(results)}" if name in results else name] = {"md_content": text}
    return {"backend": "penstock", "version": version("penstock"), "results": results}


async def _converted(caller: Caller, ids: list[str]) -> list[Document]:
    """Wait for the documents' results, and return the documents in the order of `ids`; a partial result counts. Raises
    `Refused` if one has no result, is deleted, or takes too long."""
    patience_s = caller.context.settings.api.max_sync_wait_s
    by_id = {document.id: document for document in await conversion.settled(caller, ids, patience_s)}
    for document_id in ids:
        document = by_id.get(document_id)
        if document is None:
            raise Refused("the document was deleted while it was converted", code="unknown_document")
        if not document.at_rest:
            raise conversion.unfinished(document_id)
        if not has_result(document):
            raise Refused(f"{document.filename}: {message(document)}", code="not_converted")
    return [by_id[document_id] for document_id in ids]


def _pages(caller: Caller, document: Document, filename: str) -> list[dict[str, Any]]:
    """A dict for each page with text, also the reason for a missing one; page numbers are those in the file, from 0.
    Raises `Refused` if no page has text."""
    pages = [
        {
            "page_content": text,
            "metadata": {"source": filename, "page": number - 1, "document_id": document.id},
        }
        for number, text in documents.page_texts.by(caller, document.id)
        if text.strip()
    ]
    if not pages:
        raise Refused(f"No extractable text in {filename}", code="no_text")
    return pages


def _mineru_options(fields: Mapping[str, list[str]]) -> ConvertOptions:
    """The page range, `provider` and `model` (additions of Penstock); other options choose among MinerU's models."""
    form_values = {name: values[-1] for name, values in fields.items() if values[-1]}
    own: dict[str, Any] = {name: form_values[name] for name in ("provider", "model") if name in form_values}
    try:
        first, last = int(form_values.get("start_page_id", 0)), int(form_values.get("end_page_id", _LAST_PAGE))
        if (first, last) != (0, _LAST_PAGE):
            own["page_range"] = (first + 1, last + 1 if last < _LAST_PAGE else 10**9)
        return ConvertOptions.model_validate(own)
    except (ValidationError, ValueError):
        raise Refused("start_page_id, end_page_id, provider or model is not valid", code="invalid") from None
