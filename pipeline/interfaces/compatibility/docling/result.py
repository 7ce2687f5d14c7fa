"""The results of a task in docling-serve's shapes: JSON for one document, a ZIP file for several."""

import json
import re
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import IO, Any

from pipeline.flows.documents.states import PageStatus
from pipeline.interfaces.compatibility.docling.task import Chunking, Task, conversion_status, has_result, message
from pipeline.operations import documents
from pipeline.operations.caller import Caller
from pipeline.operations.documents import Document
from pipeline.reading.export import docling, markup
from pipeline.reading.files.source import safe_stem

Picture = Callable[[str], str | None]
_PICTURE = re.compile(r"!\[[^\]\n]{0,200}\]\((pictures/page-[0-9]{4,7}-[0-9]{1,3}\.png)\)")
_SUFFIXES = {"md": ".md", "json": ".json", "html": ".html", "text": ".txt", "doctags": ".doctags"}
_MEMORY_BYTES = 1_000_000


def answer(caller: Caller, task: Task, converted: Sequence[Document]) -> IO[bytes]:
    """The answer of `/v1/result`, and of synchronous calls, as JSON in a file, open at its beginning: the result, or
    the reason why it is missing; for a task with a chunker, the chunks of all its documents, and if the task wants
    them the documents in its formats and as a DoclingDocument. The caller closes it."""
    with ExitStack() as opened:
        _hold_place(opened, caller, task, converted)
        pieces = (
            _body(opened, caller, task, converted[0])
            if task.chunking is None
            else (_chunked(opened, caller, task, converted, task.chunking))
        )
        return documents.spooled(caller, pieces)


def _hold_place(opened: ExitStack, caller: Caller, task: Task, converted: Sequence[Document]) -> None:
    """Hold a place for the export of the documents until `opened` closes, if their Markdown is parsed."""
    if task.chunking or task.formats - {"md"}:
        opened.enter_context(documents.export(caller, [document.id for document in converted]))


def _body(opened: ExitStack, caller: Caller, task: Task, document: Document) -> Iterator[str]:
    facts = {
        "status": conversion_status(document),
        "errors": errors(caller, document),
        "processing_time": _took_s(document),
        "timings": {},
    }
    yield '{"document": '
    yield from _document(opened, caller, task, document)
    yield f", {_dumped(facts)[1:]}"


def _chunked(
    opened: ExitStack, caller: Caller, task: Task, converted: Sequence[Document], chunker: Chunking
) -> Iterator[str]:
    from pipeline.interfaces.compatibility.docling import chunking  # noqa: PLC0415  # its splitter is slow to import

    yield '{"chunks": ['
    between = ""
    for document in filter(has_result, converted):
        origin = docling.origin(**documents.docling_facts.by(caller, document.id))
        parts = documents.docling_parts.by(caller, document.id)
        for chunk in chunking.chunks(parts, origin, chunker, task.filename or document.filename):
            yield between + _dumped(chunk)
            between = ", "
    yield '], "documents": ['
    shown = replace(task, formats=task.formats | {"json"} if chunker.documents else frozenset())
    for number, document in enumerate(converted):
        yield (", " if number else "") + '{"kind": "ExportResult", "content": '
        yield from _document(opened, caller, shown, document)
        facts = {"status": conversion_status(document), "errors": errors(caller, document), "timings": {}}
        yield f", {_dumped(facts)[1:]}"
    yield f"], {_dumped({'processing_time': sum(map(_took_s, converted)), 'chunking_info': None})[1:]}"


def _document(opened: ExitStack, caller: Caller, task: Task, document: Document) -> Iterator[str]:
    """Yield the JSON of a document with its content in each format; null for formats that the task does not want."""
    written = _contents(opened, caller, task, document) if has_result(document) else {}
    yield _dumped({"filename": task.filename or document.filename})[:-1]
    for form in _SUFFIXES:
        yield f', "{form}_content": '
        if form not in written:
            yield "null"
        elif form == "json":
            yield from written[form]
        else:
            yield '"'
            yield from (_dumped(piece)[1:-1] for piece in written[form])
            yield '"'
    yield "}"


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _took_s(document: Document) -> float:
    if not (document.started_at and document.finished_at):
        return 0.0
    return max(0.0, (document.finished_at - document.started_at).total_seconds())


def _contents(opened: ExitStack, caller: Caller, task: Task, document: Document) -> dict[str, Iterator[str]]:
    """Return the pieces of the document's content in each format of the task. `opened` closes the file of its parts."""
    picture = documents.embedded_picture.by(caller, document.id) if task.embedded else lambda _: None
    written: dict[str, Iterator[str]] = {}
    if "md" in task.formats:
        written["md"] = iter([markdown(caller, task, document, picture)])
    if task.formats - {"md"}:
        parts = opened.enter_context(docling.Kept(documents.docling_parts.by(caller, document.id, picture)))
        facts = documents.docling_facts.by(caller, document.id)
        forms: dict[str, Callable[[], Iterator[str]]] = {
            "json": lambda: docling.pieces(parts, **facts),
            "html": lambda: markup.html(docling.name_of(document.filename), parts),
            "text": lambda: markup.text(parts),
            "doctags": lambda: markup.doctags(parts),
        }
        written |= {name: make() for name, make in forms.items() if name in task.formats}
    return written


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
    with ExitStack() as opened, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        _hold_place(opened, caller, task, converted)
        for document in filter(has_result, converted):
            name = safe_stem(document.filename)
            seen[name] += 1
            name += f"-{seen[name]}" if seen[name] > 1 else ""
            for form, pieces in _contents(opened, caller, task, document).items():
                info = zipfile.ZipInfo(name + _SUFFIXES[form])
                info.compress_type = zipfile.ZIP_DEFLATED
                with target.open(info, "w", force_zip64=True) as entry:
                    for piece in pieces:
                        entry.write(piece.encode())
    file.seek(0)
    return file


def _error(text: str, page: int | None) -> dict[str, Any]:
    return {"component_type": "pipeline", "module_name": "penstock", "error_message": text[:2000], "page_no": page}
