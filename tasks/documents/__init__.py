"""The Python API of the documents flow.

>>> from tasks.documents import submit
>>> document = submit("report.pdf").wait()
>>> print(document.status.name, document.read_text()[:80])

Every function returns plain typed objects; a document has `wait()`. All raise `UserError` with a message for people.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.engine import events
from pipeline.engine.errors import NoWorkerWarning, UserError
from pipeline.engine.logs import configure_as_library
from pipeline.engine.metrics import Minute, Throughput
from pipeline.engine.presence import NoWorker
from pipeline.engine.views import PASSING, view_of
from pipeline.flows.documents import archive as archives
from pipeline.flows.documents import backlog, catalog, files, page_pictures, queries, service, submission
from pipeline.flows.documents import reasons as reasoning
from pipeline.flows.documents import search as searching
from pipeline.flows.documents.catalog import Filter, Key
from pipeline.flows.documents.page_pictures import Encoding, Look
from pipeline.flows.documents.queries import AttemptView, CostView, DocumentView, Figures, PageView, UnknownDocument
from pipeline.flows.documents.reasons import Reason
from pipeline.flows.documents.search import Found, Hit
from pipeline.flows.documents.service import Charge, Choice
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.submission import Options
from pipeline.reading import inspection
from pipeline.reading.inputs import manifest_path
from pipeline.reading.source import parse_page_range, safe_filename
from tasks import watch as watching
from tasks.context import get_context

if TYPE_CHECKING:
    from tasks.flow import FlowTasks

__all__ = [
    "AttemptView",
    "Choice",
    "CostView",
    "Document",
    "DocumentStatus",
    "Figures",
    "Filter",
    "Found",
    "Hit",
    "NoWorker",
    "NoWorkerWarning",
    "Options",
    "PageStatus",
    "PageView",
    "Reason",
    "UnknownDocument",
    "UserError",
    "attempts",
    "cancel",
    "costs",
    "count_by_status",
    "count_documents",
    "delete",
    "figures",
    "find_page_picture",
    "last_hour",
    "list_documents",
    "page",
    "page_picture",
    "pages",
    "pages_by_minute",
    "pause",
    "promote",
    "reasons",
    "remerge",
    "resume",
    "retry",
    "retry_failed",
    "retry_page",
    "search",
    "several",
    "status",
    "submit",
    "submit_upload",
    "watch",
]

configure_as_library()


@dataclass(frozen=True)
class Document(DocumentView):
    """A document as it was when you asked for it."""

    no_worker: NoWorker | None = field(default=None, metadata={PASSING: True})
    """Why nobody works on it, as `watch` and `wait` saw it; None if somebody may."""

    @property
    def settled(self) -> bool:
        """At rest or paused, so not worth waiting for any longer."""
        return self.at_rest or self.status is DocumentStatus.PAUSED

    def wait(self, timeout_s: float | None = None) -> "Document":
        """Wait until the document is at rest or paused; returns it as it is then.

        Warns (`NoWorkerWarning`) if there is nobody to work. Raises `TimeoutError` after `timeout_s` seconds.
        """
        latest = self
        for latest in watch([self.id], timeout_s=timeout_s):  # noqa: B007  # the last one is the answer
            pass
        return latest

    def read_text(self) -> str:
        """The merged Markdown. Raises `UserError` if there is none yet."""
        if not self.merged_path:
            raise UserError(f"document {self.id} has no result: it is {self.status.name}", code="no_result")
        return Path(self.merged_path).read_text(encoding="utf-8")

    def layout(self, page: int | None = None) -> dict[str, Any]:
        """The blocks of each page, or of one, in reading order, with their boxes, as JSON."""
        return queries.layout_json(get_context(), self.id, page)

    def docling(self) -> dict[str, Any]:
        """The document in the format of the Docling project (a DoclingDocument), as JSON."""
        return queries.docling_document(get_context(), self.id)

    def archive(self) -> Iterator[bytes]:
        """A ZIP archive of Markdown, pictures, blocks and manifest, in pieces. Raises `UserError` at once."""
        return archives.archive(get_context(), self.id)

    @property
    def pictures_folder(self) -> Path | None:
        """The folder of the pictures that the merged Markdown links to; None if there are none."""
        folder = files.pictures_folder(get_context().settings, self.id)
        return folder if self.merged_path and folder.is_dir() else None

    @property
    def manifest_path(self) -> Path | None:
        """The manifest beside the merged Markdown."""
        return manifest_path(Path(self.merged_path)) if self.merged_path else None


def watch(
    document_ids: str | Iterable[str],
    *,
    timeout_s: float | None = None,
    idle: Callable[[], object] = lambda: None,
    changes_only: bool = False,
) -> Iterator[Document]:
    """Yield the current state of each document, and its new state at each change, until all have settled.

    `changes_only`: skip the current state unless it is final, and yield a document only when its status or its page
    counts change, not for progress or workers alone. While no worker runs, `no_worker` is set; the first time, a
    `NoWorkerWarning` follows. `idle` is called about once a second. Raises `TimeoutError` after `timeout_s` seconds.
    """
    seen: dict[str, Document] = {}
    fleet = watching.Fleet()
    waiting = {document_ids} if isinstance(document_ids, str) else set(document_ids)

    def look() -> list[Document]:
        all_found = [_document(view) for view in queries.documents_by_id(get_context(), waiting)]
        gone = waiting - {document.id for document in all_found}
        if gone:
            raise UnknownDocument(min(gone))
        waiting.difference_update(document.id for document in all_found if document.settled)
        return [found if found.settled else replace(found, no_worker=fleet.no_worker) for found in all_found]

    looks = watching.watch(
        look,
        lambda _: len(waiting),
        lambda event: event.get("document") in waiting,
        undone=("document has not settled", "documents have not settled"),
        timeout_s=timeout_s,
        idle=idle,
        fleet=fleet,
    )
    for found in looks:
        for document in found:
            before = seen.get(document.id)
            seen[document.id] = document
            if changes_only and before is None and not document.settled:
                continue
            if before is None or (_change(before) != _change(document) if changes_only else before != document):
                yield document


def _change(document: Document) -> tuple[DocumentStatus, int, int, int]:
    return document.status, document.pages, document.completed_count, document.failed_count


def submit(
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
    page_range: str | None = None,
) -> Document:
    """Submit a file; returns the document that will hold its text.

    Options as an `Options`, as keywords, or both: a keyword that is not None wins. The same content and options find
    the same document again, unless `fresh`. `page_range` is the older name of `pages`.
    """
    given = {
        "page_range": page_range if pages is None else pages,
        "provider": provider,
        "model": model,
        "allow_partial": allow_partial,
        "use_cache": use_cache,
        "pictures": pictures,
        "fresh": fresh,
    }
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return _launched(submission.submit(get_context(), Path(path), replace(options or Options(), **chosen)))


def submit_upload(
    copy: Path,
    filename: str,
    options: Options | None = None,
    sha256: str = "",
    admit: Callable[[int], object] = lambda _: None,
    wanted: Callable[[], bool] = lambda: True,
) -> Document:
    """Submit what a stranger sent: a private copy in the upload folder, which is looked at in a child process.

    `admit` is told how many pages it would be, and may raise. Raises what `submit` raises.
    """
    context, options = get_context(), options or Options()
    submission.check(context, options)
    info = inspection.inspect(copy, safe_filename(filename), context.settings.documents, wanted)
    admit(len(parse_page_range(options.page_range, info.pages)))
    return _launched(submission.submit_copy(context, copy, filename, options, info, sha256))


def status(document_id: str) -> Document:
    """The document as it is now."""
    return _document(queries.document(get_context(), document_id))


def several(document_ids: Collection[str]) -> list[Document]:
    """Those of these documents that exist, as they are now."""
    return [_document(view) for view in queries.documents_by_id(get_context(), document_ids)]


def list_documents(
    *,
    status: DocumentStatus | None = None,
    which: Filter | None = None,
    limit: int = 50,
    offset: int = 0,
    after: Key | None = None,
    before: Key | None = None,
) -> list[Document]:
    """Documents, newest first. `which` instead of `status`; `after`: beyond this moment of creation and id; `before`:
    those just above."""
    which = which or Filter(statuses=frozenset() if status is None else frozenset({status}))
    found = catalog.documents(get_context(), which, limit=limit, offset=offset, after=after, before=before)
    return [_document(view) for view in found]


def count_documents(which: Filter) -> int:
    """How many documents there are of these."""
    return catalog.count_documents(get_context(), which)


def count_by_status(which: Filter | None = None) -> dict[DocumentStatus, int]:
    """How many of these there are in each state, whatever states the filter names."""
    return catalog.count_by_status(get_context(), which or Filter())


def reasons(documents: Collection[DocumentView]) -> dict[str, Reason]:
    """Why they are as they are, by id: what they wait for, who paused them, what went wrong."""
    return reasoning.reasons(get_context(), documents)


def pages(
    document_id: str,
    *,
    status: PageStatus | None = None,
    doubtful: bool = False,
    after: int = 0,
    limit: int | None = None,
) -> list[PageView]:
    """The document's pages in order, those after page `after`; `doubtful`: only those whose text is."""
    return queries.pages(get_context(), document_id, status=status, doubtful=doubtful, after=after, limit=limit)


def search(words: str, which: Filter | None = None, *, document_id: str = "", limit: int = 20) -> Found:
    """Pages with these words and the passages around them, best first, of all that was merged.

    Only of documents that match `which`, or of one. Raises `UserError` for no words.
    """
    return searching.find(get_context(), words, which or Filter(), document_id=document_id, limit=limit)


def page(document_id: str, number: int) -> PageView:
    """One page. Raises `UserError` if there is none with this number."""
    return queries.page(get_context(), document_id, number)


def page_picture(
    document_id: str,
    number: int,
    dpi: float = 100,
    wanted: Callable[[], bool] = lambda: True,
    *,
    width: int = 0,
    encoding: Encoding = "png",
) -> bytes:
    """The page as it is in the file, rendered in a child process: at `dpi`, or `width` pixels wide.

    Raises `UserError`.
    """
    return page_pictures.picture(get_context(), document_id, number, Look(dpi, width, encoding), wanted)


def find_page_picture(document_id: str, number: int, look: Look) -> page_pictures.Found:
    """The page's picture if it was made before, and what it is called. Raises `UserError` for a page there is not."""
    return page_pictures.find(get_context(), document_id, number, look)


def attempts(
    document_id: str, page: int | None = None, *, after: tuple[int, int] | None = None, limit: int | None = None
) -> list[AttemptView]:
    """Every attempt of the document's pages, or of one page; `after`: beyond this page's attempt with this id."""
    return queries.attempts(get_context(), document_id, page, after=after, limit=limit)


def costs(document_id: str) -> list[CostView]:
    """What a document's attempts cost, by provider and model, the dearest first."""
    return queries.costs(get_context(), document_id)


def figures() -> Figures:
    """Documents and pages by state, and the last hour's throughput."""
    return queries.figures(get_context())


def last_hour() -> Throughput:
    """The last hour's throughput alone: cheap, however many documents there are."""
    return backlog.last_hour(get_context())


def pages_by_minute() -> list[Minute]:
    """Attempts in each of the last 60 minutes, the oldest first."""
    return backlog.pages_by_minute(get_context())


def cancel(document_id: str) -> Document:
    """Stop the document; wins over any work under way."""
    return _told(service.cancel(get_context(), document_id))


def pause(document_id: str, by: str = "") -> Document:
    """Finish the pages under way and start no others. `by`: who is told to have asked for it."""
    return _told(service.pause(get_context(), document_id, by))


def resume(document_id: str) -> Document:
    """Go on with a paused document."""
    return _launched(service.resume(get_context(), document_id))


def retry(
    document_id: str, *, provider: str = "", model: str = "", fresh: bool = False, charge: Charge = service.free
) -> Document:
    """Start over from splitting. `fresh`: ask the provider even for pages in the cache. `charge`: whose account the
    pages are on, for those who keep accounts."""
    return _launched(service.retry(get_context(), document_id, Choice(provider, model), fresh=fresh, charge=charge))


def retry_failed(document_id: str, *, provider: str = "", model: str = "", charge: Charge = service.free) -> Document:
    """Try again what failed: the failed pages, or else the merge, or all of a document that has no pages yet."""
    return _launched(service.retry_failed(get_context(), document_id, Choice(provider, model), charge=charge))


def retry_page(
    document_id: str, page: int, *, provider: str = "", model: str = "", charge: Charge = service.free
) -> Document:
    """Convert one page again; its old text stays until there is a new one."""
    return _launched(service.retry_page(get_context(), document_id, page, Choice(provider, model), charge=charge))


def remerge(document_id: str, *, allow_partial: bool = False) -> Document:
    """Merge the pages again."""
    return _launched(service.remerge(get_context(), document_id, allow_partial=allow_partial))


def promote(document_id: str, page: int, attempt_id: int) -> Document:
    """Use the text of an older attempt as the page's text."""
    return _launched(service.promote(get_context(), document_id, page, attempt_id))


def delete(document_id: str) -> None:
    """Delete the document with its pages, attempts and files."""
    service.remove(get_context(), document_id)
    if get_context().online:
        events.publish(get_context().redis, "documents", "deleted", document=document_id)


def _tasks() -> "FlowTasks":
    from tasks.documents.canvas import TASKS  # noqa: PLC0415  # with Celery, which who only reads does not need

    return TASKS


def _launched(view: DocumentView) -> Document:
    _tasks().launch(view.id)
    return _told(view)


def _told(view: DocumentView) -> Document:
    _tasks().announce(view.id)
    return _document(view)


def _document(view: DocumentView) -> Document:
    return view_of(Document, view)
