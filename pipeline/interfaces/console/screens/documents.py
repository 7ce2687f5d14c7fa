"""The documents: add, list, filter and search."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import AfterValidator, StringConstraints
from starlette.responses import Response

from pipeline.engine.errors import PenstockError, told
from pipeline.flows.documents.catalog import Filter
from pipeline.flows.documents.service import other_provider
from pipeline.flows.documents.states import DocumentStatus
from pipeline.flows.documents.views import Hit
from pipeline.interfaces.console import live
from pipeline.interfaces.console.answers import done
from pipeline.interfaces.console.document_filter import GROUPS, PATH, ROWS, SINCE, Cursor, DocumentsQuery
from pipeline.interfaces.console.document_words import ShownState, state_of
from pipeline.interfaces.console.page import piece, screen
from pipeline.interfaces.console.screens.document_bulk import BULK, possible
from pipeline.interfaces.console.words import combined, plural
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import InContext, reader, spender, writer
from pipeline.interfaces.http.moments import At
from pipeline.interfaces.http.submission import options_of
from pipeline.interfaces.http.uploads import Form, uploaded
from pipeline.operations import documents as flow
from pipeline.operations.documents import Document
from pipeline.operations.events import Filter as Events
from pipeline.operations.refusal import Refused
from pipeline.settings import LOCAL
from pipeline.storage.context import Context

router = APIRouter(prefix=PATH, include_in_schema=False, dependencies=reader)
FIRST_HITS, ALL_HITS = 5, 100
MOST_FILES = 50
"""The most files of a form without JavaScript; with it, each file has a request of its own."""


class Listed(DocumentsQuery):
    """A page of the list. `text`: only hits in texts."""

    after: Cursor = ""
    before: Cursor = ""
    text: Literal["", "1"] = ""


ListQuery = Annotated[Listed, Query()]


@dataclass(frozen=True)
class Row:
    """A document and the words for its state."""

    document: Document
    state: ShownState

    @property
    def model(self) -> str:
        """The document's provider and model, as one text."""
        name, model = self.document.provider, self.document.model_name
        return name if not model or model == name else f"{name} · {model}"


def rows_of(context: Context, documents: list[Document]) -> list[Row]:
    """Return these documents, each with its state in words."""
    reasons, now = flow.reasons(documents), context.db.now()
    return [Row(document, state_of(document, reasons.get(document.id), now)) for document in documents]


@router.get("")
def show(request: Request, context: InContext, filters: ListQuery) -> HTMLResponse:
    """Show a page of the list, with hits in texts."""
    which = filters.filter(context.db.now())
    by_status = flow.count_by_status(which)
    counts = _counts(by_status)
    rows, newer, older = ([], "", "") if filters.text or not counts[filters.state] else _page(filters, which)
    first = not (filters.after or filters.before)
    top = pages.encode(rows[0].created_at, rows[0].id) if rows and first else ""
    return screen(
        request,
        "documents/index.html",
        filters=filters,
        rows=rows_of(context, rows),
        texts=_texts(filters, which),
        newer=newer,
        older=older,
        counts=counts,
        groups=GROUPS,
        times=SINCE,
        first=first,
        bulk=BULK,
        possible=possible(which, by_status),
        options=_options(context),
        watched=combined(filters.query, {"rows": ",".join(row.id for row in rows), "top": top}),
    )


def _page(filters: Listed, which: Filter) -> tuple[list[Document], str, str]:
    """Return (documents, cursor of newer ones, cursor of older ones); an empty cursor: there are none."""
    after, before = (pages.decode(key, At, str) for key in (filters.after, filters.before))
    if before and len(rows := flow.list_documents(which=which, limit=ROWS + 1, before=before)) > ROWS:
        rows, newer, older = rows[1:], True, True
    else:  # near the beginning: the first page, full or not
        rows = flow.list_documents(which=which, limit=ROWS + 1, after=None if before else after)
        newer, older, rows = bool(after and not before), len(rows) > ROWS, rows[:ROWS]
    if not rows:
        return [], "", ""
    return (
        rows,
        pages.encode(rows[0].created_at, rows[0].id) if newer else "",
        pages.encode(rows[-1].created_at, rows[-1].id) if older else "",
    )


def _counts(by_status: Mapping[DocumentStatus, int]) -> dict[str, int]:
    """Count the documents in each group of states."""
    return {
        name: sum(count for status, count in by_status.items() if not states or status in states)
        for name, (_, states) in GROUPS.items()
    }


@dataclass(frozen=True)
class Texts:
    """Hits in texts. `pages`: each hit with its passage in parts: (text, whether it is a searched word)."""

    pages: list[tuple[Hit, list[tuple[str, bool]]]]
    are_all: bool
    any_word: bool
    """No page has all the words; these pages have some."""
    unindexed: int
    """Documents whose text is not indexed yet."""


def _texts(filters: Listed, which: Filter) -> Texts | None:
    """Return the best pages with the searched words; None without words, or beyond the first page of the list."""
    if not filters.q.strip() or filters.after or filters.before:
        return None
    most = ALL_HITS if filters.text else FIRST_HITS
    result = flow.search(filters.q, Filter(which.statuses, "", which.created_from), limit=most + 1)
    cut = [(hit, _cut(hit)) for hit in result.hits[:most]]
    return Texts(cut, len(result.hits) <= most, result.any_word, result.unindexed)


def _cut(hit: Hit) -> list[tuple[str, bool]]:
    parts, at = [], 0
    for begin, end in hit.spots:
        parts += [(hit.passage[at:begin], False), (hit.passage[begin:end], True)]
        at = end
    return [(text, marked) for text, marked in [*parts, (hit.passage[at:], False)] if text]


def _options(context: Context) -> dict[str, Any]:
    """Return the values that the form of a submission offers."""
    settings = context.settings
    models = {model for profile in settings.providers.values() for model in (profile.model, *profile.prices)}
    return {
        "providers": [LOCAL, *sorted(settings.providers)],
        "provider": settings.provider,
        "escalate": other_provider(settings, settings.provider, "", "")["escalate"],
        "models": sorted(models - {"", "*"}),
        "most_mb": settings.api.max_upload_mb,
        "most_files": MOST_FILES,
    }


def _ids(text: str) -> str:
    if any(len(text_id) > 32 or not set(text_id) <= set("0123456789abcdef") for text_id in text.split(",")):
        raise ValueError("must be ids")
    return text


class Watched(DocumentsQuery):
    """The shown rows, and on the first page the newest of them."""

    rows: Annotated[str, StringConstraints(max_length=ROWS * 33), AfterValidator(_ids)] = ""
    top: Cursor = ""


@live.view("documents", matches=lambda _: Events(flow="documents"), every_s=5)
def fragments(context: Context, query: Watched) -> Mapping[str, str]:
    """Return HTML by element id: the shown rows, the counts by state, and the number of new documents, at most
    `ROWS`."""
    which = query.filter(context.db.now())
    shown_documents = {document.id: document for document in flow.several(query.rows.split(","))}
    rows = rows_of(context, [shown_documents[key] for key in query.rows.split(",") if key in shown_documents])
    top = pages.decode(query.top, At, str)
    fresh = flow.list_documents(which=which, limit=ROWS, before=top) if top else []
    shown = {f"d-{row.document.id}": piece("documents/_row.html", row=row) for row in rows}
    shown["counts"] = piece(
        "documents/_counts.html", filters=query, counts=_counts(flow.count_by_status(which)), groups=GROUPS
    )
    shown["fresh"] = piece("documents/_fresh.html", filters=query, count=len(fresh), most=ROWS)
    return shown


@router.post("", dependencies=[*writer, *spender])
async def submit(request: Request, form: Annotated[Form, Depends(uploaded(MOST_FILES))]) -> Response:
    """Submit the files of a form. A refused file does not stop the others."""
    form.fields = {name: values for name, values in form.fields.items() if values[-1]}
    options, sent, failed = options_of(form), [], []
    files = [file for file in form.files if file.filename or file.size]
    if not files:
        raise Refused("choose a file first: a PDF or a picture", code="invalid")
    for file in files:
        try:
            caller, name = request.state.caller, file.filename
            archived = await run_sync(flow.submit_archive.by, caller, file.path, name, options)
            if archived is None:
                document = await run_sync(flow.submit_upload.by, caller, file.path, name, options, file.sha256)
                archived = [flow.ArchivedFile(name, document)]
            sent += [each for each in archived if each.document]
            failed += [f"{name}/{each.name}: {each.reason.rstrip('.')}." for each in archived if each.reason]
        except PenstockError as error:
            if len(files) == 1:
                raise
            failed.append(f"{file.filename}: {told(error)}.")
    message = f"{plural(len(sent), 'file')} will be converted." if sent else ""
    return done(request, " ".join([message, *failed]).strip(), to=PATH)
