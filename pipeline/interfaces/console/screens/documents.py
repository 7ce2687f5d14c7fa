"""The documents: added, listed, filtered, and searched for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import AfterValidator, StringConstraints
from starlette.responses import Response

from pipeline.engine.errors import PenstockError
from pipeline.flows.documents.catalog import Filter
from pipeline.flows.documents.states import DocumentStatus
from pipeline.flows.documents.views import Hit
from pipeline.interfaces.console import live
from pipeline.interfaces.console.answers import done
from pipeline.interfaces.console.document_filter import GROUPS, PATH, ROWS, SINCE, Cursor, Looked
from pipeline.interfaces.console.document_words import Standing, standing
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
"""Of a form that is sent without JavaScript; with it, each file is a request of its own."""


class Listed(Looked):
    """One page of the list. `text`: only what is found in texts."""

    after: Cursor = ""
    before: Cursor = ""
    text: Literal["", "1"] = ""


Asked = Annotated[Listed, Query()]


@dataclass(frozen=True)
class Row:
    """A document with why it is so."""

    document: Document
    standing: Standing

    @property
    def model(self) -> str:
        """Who converts it."""
        name, model = self.document.provider, self.document.model_name
        return name if not model or model == name else f"{name} · {model}"


def rows_of(context: Context, documents: list[Document]) -> list[Row]:
    """These, as they are shown."""
    reasons, now = flow.reasons(documents), context.db.now()
    return [Row(one, standing(one, reasons.get(one.id), now)) for one in documents]


@router.get("")
def show(request: Request, context: InContext, asked: Asked) -> HTMLResponse:
    """A page of the list, and what is found in texts."""
    which = asked.filter(context.db.now())
    by_status = flow.count_by_status(which)
    counts = _counts(by_status)
    found, newer, older = ([], "", "") if asked.text or not counts[asked.state] else _page(asked, which)
    first = not (asked.after or asked.before)
    top = pages.encode(found[0].created_at, found[0].id) if found and first else ""
    return screen(
        request,
        "documents/index.html",
        asked=asked,
        rows=rows_of(context, found),
        texts=_texts(asked, which),
        newer=newer,
        older=older,
        counts=counts,
        groups=GROUPS,
        times=SINCE,
        first=first,
        bulk=BULK,
        possible=possible(which, by_status),
        options=_options(context),
        watched=combined(asked.query, {"rows": ",".join(one.id for one in found), "top": top}),
    )


def _page(asked: Listed, which: Filter) -> tuple[list[Document], str, str]:
    """(documents, where the newer ones are, where the older ones are)."""
    after, before = (pages.decode(key, At, str) for key in (asked.after, asked.before))
    if before and len(found := flow.list_documents(which=which, limit=ROWS + 1, before=before)) > ROWS:
        found, newer, older = found[1:], True, True
    else:  # near the beginning it is the first page, be it full or not
        found = flow.list_documents(which=which, limit=ROWS + 1, after=None if before else after)
        newer, older, found = bool(after and not before), len(found) > ROWS, found[:ROWS]
    if not found:
        return [], "", ""
    return (
        found,
        pages.encode(found[0].created_at, found[0].id) if newer else "",
        pages.encode(found[-1].created_at, found[-1].id) if older else "",
    )


def _counts(by_status: Mapping[DocumentStatus, int]) -> dict[str, int]:
    """How many there are in each group of states."""
    return {
        name: sum(count for status, count in by_status.items() if not states or status in states)
        for name, (_, states) in GROUPS.items()
    }


@dataclass(frozen=True)
class Texts:
    """What is found in texts. `pages`: each with its passage, cut where the words are: (text, whether it is one)."""

    pages: list[tuple[Hit, list[tuple[str, bool]]]]
    are_all: bool
    any_word: bool
    """No page has all the words: these have some of them."""
    unindexed: int
    """Documents whose text cannot be found yet."""


def _texts(asked: Listed, which: Filter) -> Texts | None:
    """The pages with the words that are asked for; None if it is not about words."""
    if not asked.q.strip() or asked.after or asked.before:
        return None
    most = ALL_HITS if asked.text else FIRST_HITS
    found = flow.search(asked.q, Filter(which.statuses, "", which.created_from), limit=most + 1)
    cut = [(hit, _cut(hit)) for hit in found.hits[:most]]
    return Texts(cut, len(found.hits) <= most, found.any_word, found.unindexed)


def _cut(hit: Hit) -> list[tuple[str, bool]]:
    parts, at = [], 0
    for begin, end in hit.spots:
        parts += [(hit.passage[at:begin], False), (hit.passage[begin:end], True)]
        at = end
    return [(text, marked) for text, marked in [*parts, (hit.passage[at:], False)] if text]


def _options(context: Context) -> dict[str, Any]:
    """What one may choose for a file."""
    settings = context.settings
    models = {one for profile in settings.providers.values() for one in (profile.model, *profile.prices)}
    return {
        "providers": [LOCAL, *sorted(settings.providers)],
        "provider": settings.provider,
        "models": sorted(models - {"", "*"}),
        "most_mb": settings.api.max_upload_mb,
        "most_files": MOST_FILES,
    }


def _ids(text: str) -> str:
    if any(len(one) > 32 or not set(one) <= set("0123456789abcdef") for one in text.split(",")):
        raise ValueError("must be ids")
    return text


class Watched(Looked):
    """The rows that are shown, and the newest of them if it is the first page."""

    rows: Annotated[str, StringConstraints(max_length=ROWS * 33), AfterValidator(_ids)] = ""
    top: Cursor = ""


@live.view("documents", matches=lambda _: Events(flow="documents"), every_s=5)
def fragments(context: Context, asked: Watched) -> Mapping[str, str]:
    """The rows that are shown, how many there are of each kind, and that there are new ones."""
    which = asked.filter(context.db.now())
    found = {one.id: one for one in flow.several(asked.rows.split(","))}
    rows = rows_of(context, [found[key] for key in asked.rows.split(",") if key in found])
    top = pages.decode(asked.top, At, str)
    fresh = flow.list_documents(which=which, limit=ROWS, before=top) if top else []
    shown = {f"d-{row.document.id}": piece("documents/_row.html", row=row) for row in rows}
    shown["counts"] = piece(
        "documents/_counts.html", asked=asked, counts=_counts(flow.count_by_status(which)), groups=GROUPS
    )
    shown["fresh"] = piece("documents/_fresh.html", asked=asked, count=len(fresh), most=ROWS)
    return shown


@router.post("", dependencies=[*writer, *spender])
async def submit(request: Request, form: Annotated[Form, Depends(uploaded(MOST_FILES))]) -> Response:
    """Submit the files of a form."""
    form.fields = {name: values for name, values in form.fields.items() if values[-1]}
    options, sent, failed = options_of(form), [], []
    files = [file for file in form.files if file.filename or file.size]
    if not files:
        raise Refused("choose a file first: a PDF or a picture", code="invalid")
    for file in files:
        try:
            submit_upload = flow.submit_upload.by
            sent.append(
                await run_sync(submit_upload, request.state.caller, file.path, file.filename, options, file.sha256)
            )
        except PenstockError as error:
            if len(files) == 1:
                raise
            failed.append(f"{file.filename}: {error}.")
    begun = f"{plural(len(sent), 'file')} will be converted." if sent else ""
    return done(request, " ".join([begun, *failed]).strip(), to=PATH)
