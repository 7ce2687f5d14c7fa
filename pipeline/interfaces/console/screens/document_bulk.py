"""Actions on many documents: a page that names the documents, then their progress."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import Field
from starlette.responses import Response

from pipeline.engine.control_characters import printable_line
from pipeline.flows.documents.catalog import Filter, Key
from pipeline.flows.documents.states import DocumentStatus
from pipeline.interfaces.console.answers import done, is_partial
from pipeline.interfaces.console.document_filter import GROUPS, PATH, ROWS, Cursor, DocumentsQuery
from pipeline.interfaces.console.page import HEADERS, piece, screen
from pipeline.interfaces.console.words import plural
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, InContext, writer
from pipeline.interfaces.http.fields import HexId, Line, Word
from pipeline.operations import documents
from pipeline.operations.documents import VERBS, Verb
from pipeline.operations.refusal import Refused

router = APIRouter(prefix=f"{PATH}/actions", include_in_schema=False, dependencies=writer)
AT_ONCE = 100
"""Documents in one request: small enough to show progress."""
NAMED = 5
_D = DocumentStatus
_AT_REST = frozenset({_D.COMPLETED, _D.FAILED, _D.PARTIAL_FAILED, _D.CANCELLED})
_WORKING = GROUPS["working"][1]


@dataclass(frozen=True)
class Action:
    """A bulk action: its label, the states that allow it, the documents' state after it, and its meaning."""

    label: str
    states: frozenset[DocumentStatus]
    now: str
    meaning: str
    allow_partial: bool = False
    verb: Verb | None = None
    """The verb of the operation, if it differs from the action's name."""


ACTIONS: dict[str, Action] = {
    Verb.RETRY_FAILED: Action(
        "Retry failures",
        frozenset({_D.FAILED, _D.PARTIAL_FAILED}),
        "being converted again",
        "Converts failed pages again. If no page failed, merges again, or starts the document again.",
    ),
    Verb.RETRY: Action(
        "Convert again",
        _AT_REST,
        "being converted again",
        "Converts all pages again. Pages in the cache for the same model and settings need no call.",
    ),
    Verb.PAUSE: Action("Pause", _WORKING, "paused", "Pages in progress finish; no others start until you resume."),
    Verb.RESUME: Action("Resume", frozenset({_D.PAUSED}), "resumed", "The documents continue where they stopped."),
    Verb.REMERGE: Action(
        "Merge again", frozenset({_D.COMPLETED}), "being merged again", "Writes the Markdown again from the pages."
    ),
    "merge-partial": Action(
        "Merge without failed pages",
        frozenset({_D.PARTIAL_FAILED}),
        "being merged",
        "Writes the Markdown from the converted pages, and marks each missing page.",
        allow_partial=True,
        verb=Verb.REMERGE,
    ),
    Verb.CANCEL: Action(
        "Cancel",
        _WORKING | {_D.PAUSED},
        "cancelled",
        "The documents stop permanently, without the results of pages in progress.",
    ),
    Verb.DELETE: Action(
        "Delete",
        frozenset(_D),
        "deleted",
        "Deletes documents, pages, texts and files permanently. Work in progress stops.",
    ),
}
BULK = [(name, action.label) for name, action in ACTIONS.items()]


def possible(which: Filter, by_status: Mapping[DocumentStatus, int]) -> list[tuple[str, str, int]]:
    """Return (name, label, number of documents that it changes) of each action that some matching document allows."""
    actions = []
    for name, action in ACTIONS.items():
        matching = which.among(action.states)
        if matching and (count := sum(by_status.get(status, 0) for status in matching.statuses)):
            actions.append((name, action.label, count))
    return actions


class Chosen(DocumentsQuery):
    """Selected documents by their ids, or all that match."""

    id: Annotated[tuple[HexId, ...], Field(max_length=ROWS)] = ()


class Going(Chosen):
    """The progress of a bulk action, with the number of unchanged documents."""

    cursor: Cursor = ""
    total: Annotated[int, Field(ge=0, le=10**9)] = 0
    done: Annotated[int, Field(ge=0, le=10**9)] = 0
    skipped: Annotated[int, Field(ge=0, le=10**9)] = 0
    reason: Line = ""


def _action(name: str) -> Action:
    if name not in ACTIONS:
        raise Refused("unknown action", code="not_found")
    return ACTIONS[name]


@router.get("/{name}")
def ask(
    request: Request, context: InContext, caller: ByCaller, name: Word, chosen: Annotated[Chosen, Query()]
) -> HTMLResponse:
    """Ask before the action, and show the documents that it changes."""
    action = _action(name)
    if chosen.id:
        selected = documents.several.by(caller, chosen.id)
        concerned = [document for document in selected if document.status in action.states]
        matched, total, named = len(selected), len(concerned), concerned[:NAMED]
    else:
        which = chosen.filter(context.db.now())
        matching = which.among(action.states)
        counts = documents.count_by_status.by(caller, which)
        matched = sum(count for status, count in counts.items() if not which.statuses or status in which.statuses)
        total = sum(count for status, count in counts.items() if matching and status in matching.statuses)
        named = documents.list_documents.by(caller, which=matching, limit=NAMED) if matching else []
    return screen(
        request,
        "documents/ask.html",
        name=name,
        action=action,
        chosen=chosen,
        total=total,
        others=matched - total,
        named=named,
        back=chosen.address(),
        concerned=[document.id for document in concerned] if chosen.id else [],
        paid=VERBS[Verb(action.verb or name)].spends,
    )


@router.post("/{name}")
def act(
    request: Request, context: InContext, caller: ByCaller, name: Word, going: Annotated[Going, Form()]
) -> Response:
    """Act on the selected documents, or on the next 100 that match; then show the progress, or at the end the list."""
    action = _action(name)
    ids: Sequence[str] = going.id
    last: Key | None = None
    if not ids and (which := going.filter(context.db.now()).among(action.states)):
        after = pages.decode(going.cursor, datetime, str)
        ids, last = documents.next_ids.by(caller, which, after, AT_ONCE)
    cursor = pages.encode(*last) if last else ""
    verb = Verb(action.verb or name)
    changed, skipped = documents.act.by(caller, verb, ids, allow_partial=action.allow_partial)
    going = going.model_copy(
        update={
            "cursor": cursor,
            "done": going.done + changed,
            "skipped": going.skipped + len(skipped),
            "reason": going.reason or (printable_line(skipped[0].reason)[:300] if skipped else ""),
        }
    )
    if not cursor:
        return done(request, _summary(action, going), to=going.address())
    if is_partial(request):
        return HTMLResponse(piece("documents/_going.html", name=name, action=action, going=going), headers=HEADERS)
    return screen(request, "documents/going.html", name=name, action=action, going=going)


def _summary(action: Action, going: Going) -> str:
    summary = f"{plural(going.done, 'document')} {'is' if going.done == 1 else 'are'} {action.now}."
    if going.skipped == 1:
        summary += f" One is unchanged: {going.reason}"
    elif going.skipped:
        summary += f" {going.skipped:,} are unchanged; the first: {going.reason}"
    return summary
