"""The results of a task in docling-serve's shapes: JSON for one document, a ZIP file for several."""

import json
import re
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import IO, Any

from pipeline.flows.documents.states import PageStatus
from pipeline.interfaces.compatibility.docling.task import Task, conversion_status, has_result, message
from pipeline.operations import documents
from pipeline.operations.caller import Caller
from pipeline.operations.documents import Document
from pipeline.operations.quotas import AtOnce
from pipeline.reading.export import markup
from pipeline.reading.files.source import safe_stem

Picture = Callable[[str], str | None]
_PICTURE = re.compile(r"!\[[^\]\n]{0,200}\]\((pictures/page-[0-9]{4,7}-[0-9]{1,3}\.png)\)")
_SUFFIXES = {"md": ".md", "json": ".json", "html": ".html", "text": ".txt", "doctags": ".doctags"}
_MEMORY_BYTES = 1_000_000
_EXPORTS = AtOnce(16, 8, "exports of documents")
"""Each export parses the pages whose text a model wrote."""


def body(caller: Caller, task: Task, document: Document) -> dict[str, Any]:
    """The answer of `/v1/result`, and of synchronous calls: the result, or the reason why it is missing."""
    contents_by_format = contents(caller, task, document) if has_result(document) else {}
    return {
        "document": {
            "filename": task.filename or document.filename,
            **{f"{name}_content": contents_by_format.get(name) for name in _SUFFIXES},
        },
        "status": conversion_status(document),
        "errors": errors(caller, document),
        "processing_time": _took_s(document),
        "timings": {},
    }


def chunks(caller: Caller, task: Task, converted: Sequence[Document]) -> dict[str, Any]:
    """The answer of `/v1/result`, and of synchronous calls, for a task with a chunker: the chunks of all its documents,
    and the documents themselves only if the task wants them."""
    from pipeline.interfaces.compatibility.docling import chunking  # noqa: PLC0415  # its splitter is slow to import

    assert task.chunking is not None
    wanted = task if task.chunking.documents else replace(task, formats=frozenset())
    chunked: list[dict[str, Any]] = []
    details = []
    for document in converted:
        answer = body(caller, wanted, document)
        details.append(
            {"kind": "ExportResult", "content": answer["document"]}
            | {name: answer[name] for name in ("status", "errors", "timings")}
        )
        if has_result(document):
            with _EXPORTS.one(caller.id):
                whole = documents.docling.by(caller, document.id)
                chunked += chunking.chunks(whole, task.chunking, answer["document"]["filename"])
    took_s = sum(map(_took_s, converted))
    return {"chunks": chunked, "documents": details, "processing_time": took_s, "chunking_info": None}


def _took_s(document: Document) -> float:
    if not (document.started_at and document.finished_at):
        return 0.0
    return max(0.0, (document.finished_at - document.started_at).total_seconds())


def contents(caller: Caller, task: Task, document: Document) -> dict[str, Any]:
    """The document's content by format, for the formats of the task: a dict for `json`, text for the others."""
    picture = documents.embedded_picture.by(caller, document.id) if task.embedded else lambda _: None
    by_format: dict[str, Any] = {}
    if "md" in task.formats:
        by_format["md"] = markdown(caller, task, document, picture)
    if task.formats - {"md"}:
        with _EXPORTS.one(caller.id):
            docling = documents.docling.by(caller, document.id, picture)
        formats: dict[str, Callable[[Any], Any]] = {
            "json": dict,
            "html": markup.html,
            "text": markup.text,
            "doctags": markup.doctags,
        }
        by_format |= {name: make(docling) for name, make in formats.items() if name in task.formats}
    return by_format


def markdown(caller: Caller, task: Task, document: Document, picture: Picture) -> str:
    """The Markdown without page numbers, as Docling writes it, with the task's page break between pages with text."""
    # A table over two pages is one table, unless the client asked for a page break.
    pages = documents.page_texts.by(caller, document.id, joined=not task.page_break)

    def shown(link: re.Match[str]) -> str:
        uri = picture(link[1])
        return f"![Image]({uri})" if uri else "<!-- image -->"

    texts = [_PICTURE.sub(shown, text).strip("\n") for _, text in pages]
    between = f"\n\n{task.page_break}\n\n" if task.page_break else "\n\n"
    return between.join(text for text in texts if text.strip())


def errors(caller: Caller, document: Document) -> list[dict[str, Any]]:
    """The errors, in docling-serve's shape, of a document without a result and of each failed page; empty before the
    end."""
    if not document.at_rest or conversion_status(document) == "success":
        return []
    failed = documents.pages.by(caller, document.id, status=PageStatus.FAILED) if document.failed_count else []
    of_pages = [
        _error(f"page {page.page_source}: {page.error or 'not converted'}", page.page_source) for page in failed
    ]
    return of_pages if has_result(document) else [_error(message(document), None), *of_pages]


def archive(caller: Caller, task: Task, converted: Sequence[Document]) -> IO[bytes]:
    """A ZIP file, positioned at its beginning, with each result in each format, named as by docling-serve; leaves out
    documents without a result. The caller closes it."""
    # SIM115: the response closes it.
    file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES)  # noqa: SIM115
    seen: Counter[str] = Counter()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        for document in filter(has_result, converted):
            name = safe_stem(document.filename)
            seen[name] += 1
            name += f"-{seen[name]}" if seen[name] > 1 else ""
            for form, content in contents(caller, task, document).items():
                text = json.dumps(content, ensure_ascii=False) if form == "json" else content
                target.writestr(name + _SUFFIXES[form], text)
    file.seek(0)
    return file


def _error(text: str, page: int | None) -> dict[str, Any]:
    return {"component_type": "pipeline", "module_name": "penstock", "error_message": text[:2000], "page_no": page}
