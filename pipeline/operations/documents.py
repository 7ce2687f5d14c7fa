"""Operations of the documents flow: submit, inspect and command documents, and read their results."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from os import PathLike
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from pipeline.engine.accounts import OverCap
from pipeline.engine.errors import PenstockError, UnitError, UserError, told
from pipeline.engine.presence import NoWorker
from pipeline.engine.views import PASSING, view_of
from pipeline.flows.documents import archive as archives
from pipeline.flows.documents import (
    backlog,
    catalog,
    outputs,
    page_pictures,
    queries,
    searchable,
    service,
    strip,
    submission,
)
from pipeline.flows.documents import reasons as reasoning
from pipeline.flows.documents import search as searching
from pipeline.flows.documents.catalog import Filter, Key
from pipeline.flows.documents.page_pictures import Encoding, Rendering
from pipeline.flows.documents.queries import UnknownDocument
from pipeline.flows.documents.service import Choice
from pipeline.flows.documents.states import DocumentStatus
from pipeline.flows.documents.submission import Options
from pipeline.flows.documents.views import DocumentView
from pipeline.operations import watch as watching
from pipeline.operations.caller import Caller, owner
from pipeline.operations.operation import Operation, operation, reads
from pipeline.operations.quotas import AtOnce
from pipeline.operations.refusal import Refused
from pipeline.reading.export.docling import Parts, PictureData
from pipeline.reading.export.formats import Format
from pipeline.reading.files.inputs import manifest_path
from pipeline.reading.files.source import parse_page_range, safe_filename
from pipeline.reading.sandbox.limits import Unwanted
from pipeline.reading.text.zip_archive import Entry, may_be_archive, unpacked
from pipeline.storage.api_keys import Scope

MOST_ARCHIVED = 500
"""The most files of an uploaded archive, which a request submits one after another."""
# Each action takes a thread, and so does one that waits; other requests need threads too.
_INSPECTIONS = AtOnce(4, "inspections of files", wait_s=20, waiting=16)
"""Child processes that inspect uploads."""
_EXPORTS = AtOnce(4, "results in other formats", wait_s=20, waiting=12)
"""Each parses the pages whose text a model wrote. A large document takes both places of its caller."""
_PDFS = AtOnce(2, "searchable PDFs", wait_s=20, waiting=4)
_LARGE_CHARACTERS = 200_000
_ASK_S = 0.5
_ARCHIVE_S = 600.0
"""How long the submission of an archive goes on; then its other files are refused."""
_MEMORY_BYTES = 1_000_000
"""Larger results wait on disk for the client to read them."""


@dataclass(frozen=True)
class Document(DocumentView):
    """A document's state at the time of the call."""

    no_worker: NoWorker | None = field(default=None, metadata={PASSING: True})
    """Why no worker can take it, as `watch` and `wait` report; None if a worker runs."""

    def wait(self, timeout_s: float | None = None) -> "Document":
        """Wait until the document is at rest or paused; return its state then.

        Warns (`NoWorkerWarning`) if no worker runs. Raises `TimeoutError` after `timeout_s` seconds, and
        `UnknownDocument` after a deletion.
        """
        latest = self
        for latest in watch([self.id], timeout_s=timeout_s):  # noqa: B007  # the last one is the answer
            pass
        return latest

    def read_text(self) -> str:
        """Return the merged Markdown. Raises `UserError` before the merge."""
        return self.result_path.read_text(encoding="utf-8")

    def layout(self, page: int | None = None) -> dict[str, Any]:
        """Return a dict, ready for JSON, with the blocks of all pages, or of one, in reading order, with their
        boxes."""
        return layout(self.id, page)

    def docling(self) -> dict[str, Any]:
        """Return a dict, ready for JSON, with the document in the format of the Docling project (a DoclingDocument)."""
        return docling(self.id)

    def result(self, form: Format | str = Format.MD, *, markers: bool = True) -> bytes:
        """Return the result in a format: md, json, html, docling, txt or pdf, the submitted file as a searchable PDF.

        `markers`: keep the comment with its number before each page of Markdown, and the rule between pages. Raises
        `UserError` for a document without a result.
        """
        return result(self.id, Format(form), markers=markers)

    def archive(self, *, split: bool = False, tables: bool = False) -> Iterator[bytes]:
        """Return a ZIP archive of Markdown, pictures, blocks and manifest, as an iterator of its bytes. `split`: with
        the Markdown of each page as a file; `tables`: with each table as CSV. The call itself raises `UserError` for a
        document without a result."""
        return archive(self.id, split=split, tables=tables)

    @property
    def pictures_folder(self) -> Path | None:
        """The folder of the pictures that the merged Markdown links to; None without pictures."""
        return pictures_folder(self.id) if self.merged_path else None

    @property
    def manifest_path(self) -> Path | None:
        """The path of the manifest beside the merged Markdown; None before the merge."""
        return manifest_path(Path(self.merged_path)) if self.merged_path else None


def watch(
    document_ids: str | Iterable[str],
    *,
    timeout_s: float | None = None,
    idle: Callable[[], object] = lambda: None,
    changes_only: bool = False,
) -> Iterator[Document]:
    """Yield the current state of each document, and its new state at each change, until all are at rest or paused.

    `changes_only`: skip the current state unless it is final, and yield a document only when its status or its page
    counts change, not for progress or workers alone. While no worker runs, `no_worker` is set; the first time, a
    `NoWorkerWarning` follows. Calls `idle` about once a second. Raises `TimeoutError` after `timeout_s` seconds, and
    `UnknownDocument`, also after a deletion.
    """
    context = owner().context
    seen: dict[str, Document] = {}
    fleet = watching.Fleet()
    waiting = {document_ids} if isinstance(document_ids, str) else set(document_ids)

    def read() -> list[Document]:
        current = [_document(view) for view in queries.documents_by_id(context, waiting)]
        unknown = waiting - {document.id for document in current}
        if unknown:
            raise UnknownDocument(min(unknown))
        waiting.difference_update(document.id for document in current if document.settled)
        return [each if each.settled else replace(each, no_worker=fleet.no_worker) for each in current]

    states = watching.watch(
        read,
        lambda _: len(waiting),
        lambda event: event.get("document") in waiting,
        undone=("document has not settled", "documents have not settled"),
        timeout_s=timeout_s,
        idle=idle,
        fleet=fleet,
    )
    for documents in states:
        for document in documents:
            before = seen.get(document.id)
            seen[document.id] = document
            if changes_only and before is None and not document.settled:
                continue
            if before is None or (_change(before) != _change(document) if changes_only else before != document):
                yield document


def _change(document: Document) -> tuple[DocumentStatus, int, int, int]:
    return document.status, document.pages, document.completed_count, document.failed_count


@operation(Scope.WRITE, spends=True)
def submit(
    caller: Caller,
    path: str | PathLike[str],
    options: Options | None = None,
    *,
    pages: str | None = None,
    provider: str | None = None,
    model: str | None = None,
    allow_partial: bool | None = None,
    use_cache: bool | None = None,
    pictures: bool | None = None,
    fresh: bool | None = None,
    password: str | None = None,
    escalate: str | None = None,
    budget: str | None = None,
    page_range: str | None = None,
    original: Path | None = None,
) -> Document:
    """Submit a copy of a file; return the document that will hold its text, without waiting for the conversion.

    Takes options as an `Options`, as keywords, or both: a keyword that is not None wins. The same content and options
    return the existing document, resumed if it had failed, unless `fresh`. `page_range` is the older name of `pages`.
    `original`: the path to record as the file's own, if `path` is a temporary copy. Raises `UserError`.
    """
    all_options = {
        "page_range": page_range if pages is None else pages,
        "provider": provider,
        "model": model,
        "allow_partial": allow_partial,
        "use_cache": use_cache,
        "pictures": pictures,
        "fresh": fresh,
        "password": password,
        "escalate": escalate,
        "budget": budget,
    }
    chosen: dict[str, Any] = {name: value for name, value in all_options.items() if value is not None}
    return _document(submission.submit(caller.context, Path(path), replace(options or Options(), **chosen), original))


@operation(Scope.WRITE, spends=True)
def submit_upload(
    caller: Caller, copy: Path, filename: str, options: Options | None = None, sha256: str = ""
) -> Document:
    """Submit an uploaded file, a private copy in the upload folder, after a child process has inspected it. `sha256`:
    the hash of its content, if known.

    Raises `UserError`; `Refused` for an unknown model (422), beyond the quota of pages (429), or during too many other
    inspections (429, 503).
    """
    context, options = caller.context, options or Options()
    caller.check_model(options.provider, options.model)
    with caller.pages(OverCap) as charge:
        submission.check(context, options)
        sha256 = sha256 or submission.hash_of(copy)
        with inspection(caller):
            info = submission.inspect(context, copy, filename, options, caller.goes_on)
        charge(len(parse_page_range(options.page_range, info.pages)))
        return _document(submission.submit_copy(context, copy, filename, options, info, sha256))


@dataclass(frozen=True)
class ArchivedFile:
    """A file of an archive. `name`: its path inside; `document`: None if it was refused for `reason`."""

    name: str
    document: DocumentView | None
    reason: str = ""


@operation(Scope.WRITE, spends=True)
def submit_archive(
    caller: Caller, copy: Path, filename: str, options: Options | None = None, most: int = MOST_ARCHIVED
) -> list[ArchivedFile] | None:
    """Submit each file of an uploaded ZIP archive as a document, in the archive's order; None if the upload is no
    archive. A refused file does not stop the others.

    Raises `UserError` for an archive that is damaged, unpacks to too much, or has no file to convert or more than
    `most`; `Refused` in the cases of `submit_upload`.
    """
    if not may_be_archive(copy):
        return None
    settings = caller.context.settings
    with ExitStack() as held:
        with inspection(caller):
            entries = held.enter_context(
                unpacked(copy, safe_filename(filename), settings.documents, settings.upload_dir, caller.goes_on, most)
            )
        if entries is None:
            return None
        until = time.monotonic() + _ARCHIVE_S
        submitted = [_submit_archived(caller, entry, options, until) for entry in entries]
    if not any(file.document for file in submitted):
        reasons = "; ".join(f"{file.name}: {file.reason.rstrip('.')}" for file in submitted[:3])
        raise UserError(f"{filename} has no file to convert. {reasons}", code="no_inputs")
    return submitted


def _submit_archived(caller: Caller, entry: Entry, options: Options | None, until: float) -> ArchivedFile:
    if entry.path is None:
        return ArchivedFile(entry.name, None, entry.reason)
    caller.check_presence()
    if time.monotonic() > until:
        return ArchivedFile(entry.name, None, f"reading the archive took more than {_ARCHIVE_S / 60:g} minutes")
    try:
        return ArchivedFile(entry.name, submit_upload.by(caller, entry.path, entry.path.name, options))
    except UserError as error:
        return ArchivedFile(entry.name, None, told(error))


@contextmanager
def inspection(caller: Caller) -> Iterator[None]:
    """Hold one of the few places for child processes during the block, which inspects a file. A refused file costs its
    sender a page a second.

    Raises `Refused`: 429 if the caller has its share already, or no pages left; 503 if none is free in time; and
    `Unwanted` if the caller leaves.
    """
    with caller.place(_INSPECTIONS):
        caller.take_pages(1)
        began = time.monotonic()
        try:
            yield
        except (UserError, UnitError, Unwanted):
            with suppress(Refused):
                caller.take_pages(int(time.monotonic() - began))
            raise
        caller.take_pages(-1)  # the submission charges the pages of the file


@operation(Scope.READ)
def status(caller: Caller, document_id: str) -> Document:
    """Return the document's current state. Raises `UnknownDocument`."""
    return _document(queries.document(caller.context, document_id))


@operation(Scope.READ)
def several(caller: Caller, document_ids: Collection[str]) -> list[Document]:
    """Return the current state of these documents; leave out unknown ids."""
    return [_document(view) for view in queries.documents_by_id(caller.context, document_ids)]


@operation(Scope.READ)
def list_documents(
    caller: Caller,
    *,
    status: DocumentStatus | None = None,
    which: Filter | None = None,
    limit: int = 50,
    offset: int = 0,
    after: Key | None = None,
    before: Key | None = None,
) -> list[Document]:
    """Return documents, newest first. `which` replaces `status`. `after`: only older documents than this creation time
    and id; `before`: the `limit` documents that directly precede it in the list."""
    which = which or Filter(statuses=frozenset() if status is None else frozenset({status}))
    views = catalog.documents(caller.context, which, limit=limit, offset=offset, after=after, before=before)
    return [_document(view) for view in views]


@operation(Scope.READ)
def next_ids(caller: Caller, which: Filter, after: Key | None, most: int) -> tuple[list[str], Key | None]:
    """Return the ids of at most `most` matching documents older than `after` (creation time and id; None: than none),
    newest first, and the `after` of the next call; None at the end."""
    views = catalog.documents(caller.context, which, limit=most + 1, after=after)
    last = views[most - 1] if len(views) > most else None
    return [view.id for view in views[:most]], (last.created_at, last.id) if last else None


count_documents, count_by_status = reads(catalog.count_documents), reads(catalog.count_by_status)
reasons, search = reads(reasoning.reasons), reads(searching.search)


@operation(Scope.READ)
def explained(caller: Caller, documents: Collection[Document]) -> list[Document]:
    """Return these documents, each with `reason` set: why it waits, failed or is paused."""
    known = reasoning.reasons(caller.context, documents)
    return [replace(document, reason=known.get(document.id)) for document in documents]


paid_attempts, doubtful_pages = reads(queries.paid_attempts), reads(queries.doubtful_pages)
pages, page, attempts, costs = reads(queries.pages), reads(queries.page), reads(queries.attempts), reads(queries.costs)
resolve, load_beside, retries = reads(queries.resolve), reads(queries.load_beside), reads(reasoning.retries)
cells, page_numbers, layouts = reads(strip.cells), reads(strip.numbers), reads(queries.layouts)
layout, docling, page_texts = reads(queries.layout_json), reads(queries.docling_document), reads(queries.page_texts)
docling_facts = reads(queries.docling_facts)
result_by_page, tables_as_csv = reads(outputs.by_page), reads(outputs.tables_as_csv)
embedded_picture = reads(outputs.embedded_picture)
archive, manifest = reads(archives.archive), reads(archives.manifest)
pictures_folder, page_shape = reads(archives.pictures_folder), reads(page_pictures.shape)
figures, last_hour, pages_by_minute = reads(queries.figures), reads(backlog.last_hour), reads(backlog.pages_by_minute)
find_page_picture, searchable_report = reads(page_pictures.find), reads(searchable.report)


@operation(Scope.READ)
def escalated_to(caller: Caller, document_id: str) -> dict[str, tuple[int, float]]:
    """Return the number of the document's pages that went to another provider, and their cost, by that provider."""
    with caller.context.db.read() as session:
        return queries.escalated_to(session, document_id)


@operation(Scope.READ)
def commonest_error(caller: Caller, document_id: str) -> str:
    """Return the error that most of the document's failed pages have; empty without failed pages."""
    with caller.context.db.read() as session:
        return queries.commonest_error(session, document_id)


@operation(Scope.READ)
def page_picture(
    caller: Caller,
    document_id: str,
    number: int,
    dpi: float = 100,
    wanted: Callable[[], bool] = lambda: True,
    *,
    width: int = 0,
    encoding: Encoding = "png",
) -> bytes:
    """Return the picture of a page of the file, at `dpi`, or `width` pixels wide, from the cache or a child process.

    Raises `UserError` without the page or its file, or if it cannot be rendered, and `Unwanted` once `wanted` returns
    False.
    """
    return page_pictures.picture(caller.context, document_id, number, Rendering(dpi, width, encoding), wanted)


@operation(Scope.READ)
def searchable_pdf(
    caller: Caller,
    document_id: str,
    wanted: Callable[[], bool] = lambda: True,
    progress: Callable[[int, int], object] = lambda _done, _all: None,
) -> Path:
    """Return the path of the document's searchable PDF: the submitted pages, with the words of the result as invisible
    text at their places.

    The first call makes it, which takes seconds for each page that a model read, since its words need places; later
    calls find it in the cache. Raises `UserError`, `Refused` during too many other calls, and `Unwanted` once `wanted`
    returns False.
    """
    with caller.place(_PDFS):
        return searchable.searchable_pdf(caller.context, document_id, lambda: wanted() and caller.goes_on(), progress)


@operation(Scope.READ)
def result(caller: Caller, document_id: str, form: Format = Format.MD, *, markers: bool = True) -> bytes:
    """Return the result in a format. HTML embeds the pictures that were saved, up to 20 MB; the PDF may take as long as
    `searchable_pdf`.

    `markers`: keep the comment with its number before each page of Markdown, and the rule between pages. Raises
    `UserError` without a result, and `Refused` during too many other calls.
    """
    if form is Format.PDF:
        return searchable_pdf.by(caller, document_id).read_bytes()
    with result_file.by(caller, document_id, form, markers=markers) as file:
        return file.read()


@operation(Scope.READ)
def result_file(caller: Caller, document_id: str, form: Format = Format.MD, *, markers: bool = True) -> IO[bytes]:
    """Return the result in a format other than PDF as an open file at its beginning; a long one is on disk. The caller
    closes it. Raises as `result`, and `Unwanted` if the caller leaves."""
    with export(caller, [document_id]):
        return spooled(caller, outputs.content(caller.context, document_id, form, markers=markers))


@operation(Scope.READ)
def layout_file(caller: Caller, document_id: str) -> IO[bytes]:
    """Return the JSON of `layout` as an open file at its beginning. Raises as `result_file`, but needs no result."""
    with export(caller, [document_id]):
        return spooled(caller, outputs.layout(caller.context, document_id))


@operation(Scope.READ)
def docling_parts(caller: Caller, document_id: str, picture: PictureData = lambda _: None) -> Parts:
    """Return the parts of the document in the format of the Docling project; use them within `export`. Raises
    `UnknownDocument`."""
    queries.document(caller.context, document_id)
    return Parts(queries.layout_pages(caller.context, document_id), picture)


@contextmanager
def export(caller: Caller, document_ids: Collection[str]) -> Iterator[None]:
    """Hold a place for the export of these documents during the block: two if they are large. Raises `Refused` (429,
    503) if none is free in time, and `Unwanted` if the caller leaves."""
    large = queries.characters(caller.context, document_ids) > _LARGE_CHARACTERS
    with caller.place(_EXPORTS, 1 + large):
        yield


def spooled(caller: Caller, pieces: Iterable[str]) -> IO[bytes]:
    """Write the pieces to a file, and return it open at its beginning. Raises `Unwanted` if the caller leaves."""
    # SIM115: the caller closes it.
    file: IO[bytes] = SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115
    try:
        asked_at = time.monotonic()
        for piece in pieces:
            file.write(piece.encode())
            if time.monotonic() - asked_at > _ASK_S:
                asked_at = time.monotonic()
                caller.check_presence()
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


@operation(Scope.WRITE)
def cancel(caller: Caller, document_id: str) -> Document:
    """Cancel the document in any state, even a completed one, and discard the results of pages under way."""
    return _document(service.cancel(caller.context, document_id))


@operation(Scope.WRITE)
def pause(caller: Caller, document_id: str, by: str = "") -> Document:
    """Finish the pages under way and start no others; a split or merge starts over. `by`: the name shown as the
    requester. Raises `IllegalTransition` at rest."""
    return _document(service.pause(caller.context, document_id, by or caller.key_name))


@operation(Scope.WRITE, spends=True)
def resume(caller: Caller, document_id: str) -> Document:
    """Continue a paused document at its next stage. Raises `UserError` unless it is paused."""
    return _document(service.resume(caller.context, document_id))


@operation(Scope.WRITE, spends=True)
def retry(caller: Caller, document_id: str, *, provider: str = "", model: str = "", fresh: bool = False) -> Document:
    """Convert a document at rest again, from splitting on. `fresh`: ask the provider even for pages in the cache. The
    old result stays until the new one exists."""
    choice = _choice(caller, document_id, provider, model)
    with caller.pages() as charge:
        return _document(service.retry(caller.context, document_id, choice, fresh=fresh, charge=charge))


@operation(Scope.WRITE, spends=True)
def retry_failed(caller: Caller, document_id: str, *, provider: str = "", model: str = "") -> Document:
    """Convert the failed pages again; without any, merge a failed document again, or start it over. Harmless if nothing
    failed."""
    choice = _choice(caller, document_id, provider, model)
    with caller.pages() as charge:
        return _document(service.retry_failed(caller.context, document_id, choice, charge=charge))


@operation(Scope.WRITE, spends=True)
def retry_page(caller: Caller, document_id: str, page: int, *, provider: str = "", model: str = "") -> Document:
    """Convert one completed or failed page again, without the cache; its old text stays until the new text is
    complete."""
    choice = _choice(caller, document_id, provider, model)
    with caller.pages() as charge:
        return _document(service.retry_page(caller.context, document_id, page, choice, charge=charge))


@operation(Scope.WRITE, spends=True)
def escalate(caller: Caller, document_id: str, *, provider: str = "", budget: str = "") -> Document:
    """Send the doubtful and failed pages of a document to another provider, and keep the better text of each.

    `provider`: empty for the one that the document or the settings name. `budget`: for this call, money such as `2.00`
    or pages such as `20p`; empty: the settings' choice. Harmless without such pages. Raises `UserError`.
    """
    with caller.pages() as charge:
        return _document(service.escalate(caller.context, document_id, provider, budget, charge=charge))


def _choice(caller: Caller, document_id: str, provider: str, model: str) -> Choice:
    if model:
        caller.check_model(provider or queries.document(caller.context, document_id).provider, model)
    return Choice(provider, model)


@operation(Scope.WRITE)
def remerge(caller: Caller, document_id: str, *, allow_partial: bool = False) -> Document:
    """Merge the pages of a document at rest again. Raises `UserError` for missing pages, unless `allow_partial` marks
    their gaps."""
    return _document(service.remerge(caller.context, document_id, allow_partial=allow_partial))


@operation(Scope.WRITE)
def promote(caller: Caller, document_id: str, page: int, attempt_id: int) -> Document:
    """Use the text of an older attempt as the page's text, and merge again if no page is missing. The document must be
    at rest."""
    return _document(service.promote(caller.context, document_id, page, attempt_id))


@operation(Scope.WRITE)
def delete(caller: Caller, document_id: str) -> None:
    """Delete the document with its pages, attempts and files."""
    service.remove(caller.context, document_id)


class Verb(StrEnum):
    """A command for many documents at once."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    RETRY_FAILED = "retry-failed"
    """Retries the failed pages; else the merge, or all of a document that failed before it had pages."""
    REMERGE = "remerge"
    DELETE = "delete"


VERBS: dict[Verb, Operation[..., Any]] = {
    Verb.CANCEL: cancel,
    Verb.PAUSE: pause,
    Verb.RESUME: resume,
    Verb.RETRY: retry,
    Verb.RETRY_FAILED: retry_failed,
    Verb.REMERGE: remerge,
    Verb.DELETE: delete,
}


@dataclass(frozen=True)
class Skipped:
    """A document that a command left unchanged, and why."""

    id: str
    reason: str


@operation(Scope.WRITE)
def act(
    caller: Caller, verb: Verb, document_ids: Iterable[str], *, allow_partial: bool = False
) -> tuple[int, list[Skipped]]:
    """Apply a command to each of these documents, each in its own transaction; return how many it changed, and the
    skipped ones with the errors that they raised.

    Raises `OverCap` for a command that costs money, if the caller has spent its cap.
    """
    options = {"allow_partial": allow_partial} if verb is Verb.REMERGE else {}
    if VERBS[verb].spends:
        caller.check_spending()
    done, skipped = 0, list[Skipped]()
    for document_id in document_ids:
        try:
            VERBS[verb].by(caller, document_id, **options)
            done += 1
        except PenstockError as error:
            skipped.append(Skipped(document_id, told(error)))
    return done, skipped


def _document(view: DocumentView) -> Document:
    return view_of(Document, view)
