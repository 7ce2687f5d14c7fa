"""The same done with many documents: a page that says what it will touch, and then how far it is."""

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
from pipeline.interfaces.console.document_filter import GROUPS, PATH, ROWS, Cursor, Looked
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
"""So many in one request, so that it can be seen how far it is."""
NAMED = 5
_D = DocumentStatus
_AT_REST = frozenset({_D.COMPLETED, _D.FAILED, _D.PARTIAL_FAILED, _D.CANCELLED})
_WORKING = GROUPS["working"][1]


@dataclass(frozen=True)
class Action:
    """What is done: its name on a button, the states it is for, what the documents are then, and what comes of it."""

    label: str
    states: frozenset[DocumentStatus]
    now: str
    meaning: str
    allow_partial: bool = False
    verb: Verb | None = None
    """Where that is not the name of the action."""


ACTIONS: dict[str, Action] = {
    Verb.RETRY_FAILED: Action(
        "Retry what failed",
        frozenset({_D.FAILED, _D.PARTIAL_FAILED}),
        "being converted again",
        "Failed pages are converted again. Where none failed, the merge is tried again, or the document begins anew.",
    ),
    Verb.RETRY: Action(
        "Convert again",
        _AT_REST,
        "being converted again",
        "All pages begin anew. What was converted with the same model and settings is taken over without a call.",
    ),
    Verb.PAUSE: Action(
        "Pause", _WORKING, "paused", "Pages under way are finished, and no others are begun until somebody resumes."
    ),
    Verb.RESUME: Action("Resume", frozenset({_D.PAUSED}), "resumed", "They go on where they stopped."),
    Verb.REMERGE: Action(
        "Merge again", frozenset({_D.COMPLETED}), "being merged again", "The Markdown is made again from their pages."
    ),
    "merge-partial": Action(
        "Merge without failed pages",
        frozenset({_D.PARTIAL_FAILED}),
        "being merged",
        "The Markdown is made from the pages there are, and says where one is missing.",
        allow_partial=True,
        verb=Verb.REMERGE,
    ),
    Verb.CANCEL: Action(
        "Cancel",
        _WORKING | {_D.PAUSED},
        "cancelled",
        "They stop for good, and results of pages under way are discarded.",
    ),
    Verb.DELETE: Action(
        "Delete",
        frozenset(_D),
        "deleted",
        "Documents, their pages, texts and files are removed for good. Work under way stops.",
    ),
}
BULK = [(name, action.label) for name, action in ACTIONS.items()]


def possible(which: Filter, by_status: Mapping[DocumentStatus, int]) -> list[tuple[str, str, int]]:
    """What can be done with documents that match: its name, its name on a button, with how many."""
    found = []
    for name, action in ACTIONS.items():
        mine = which.among(action.states)
        if mine and (count := sum(by_status.get(status, 0) for status in mine.statuses)):
            found.append((name, action.label, count))
    return found


class Chosen(Looked):
    """Some rows by their ids, or all that match."""

    id: Annotated[tuple[HexId, ...], Field(max_length=ROWS)] = ()


class Going(Chosen):
    """What is under way: how far it is, and with how many documents nothing was done."""

    cursor: Cursor = ""
    total: Annotated[int, Field(ge=0, le=10**9)] = 0
    done: Annotated[int, Field(ge=0, le=10**9)] = 0
    skipped: Annotated[int, Field(ge=0, le=10**9)] = 0
    reason: Line = ""


def _action(name: str) -> Action:
    if name not in ACTIONS:
        raise Refused("there is no such action", code="not_found")
    return ACTIONS[name]


@router.get("/{name}")
def ask(
    request: Request, context: InContext, caller: ByCaller, name: Word, chosen: Annotated[Chosen, Query()]
) -> HTMLResponse:
    """What it will touch."""
    action = _action(name)
    if chosen.id:
        found = documents.several.by(caller, chosen.id)
        concerned = [one for one in found if one.status in action.states]
        matched, total, some = len(found), len(concerned), concerned[:NAMED]
    else:
        which = chosen.filter(context.db.now())
        mine = which.among(action.states)
        counts = documents.count_by_status.by(caller, which)
        matched = sum(count for status, count in counts.items() if not which.statuses or status in which.statuses)
        total = sum(count for status, count in counts.items() if mine and status in mine.statuses)
        some = documents.list_documents.by(caller, which=mine, limit=NAMED) if mine else []
    return screen(
        request,
        "documents/ask.html",
        name=name,
        action=action,
        chosen=chosen,
        total=total,
        others=matched - total,
        some=some,
        back=chosen.address(),
        concerned=[one.id for one in concerned] if chosen.id else [],
        paid=VERBS[Verb(action.verb or name)].spends,
    )


@router.post("/{name}")
def act(
    request: Request, context: InContext, caller: ByCaller, name: Word, going: Annotated[Going, Form()]
) -> Response:
    """Do it with the next of them; then how far it is, or the list again."""
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
        return done(request, _told(action, going), to=going.address())
    if is_partial(request):
        return HTMLResponse(piece("documents/_going.html", name=name, action=action, going=going), headers=HEADERS)
    return screen(request, "documents/going.html", name=name, action=action, going=going)


def _told(action: Action, going: Going) -> str:
    said = f"{plural(going.done, 'document')} {'is' if going.done == 1 else 'are'} {action.now}."
    if going.skipped == 1:
        said += f" One stayed as it was: {going.reason}"
    elif going.skipped:
        said += f" {going.skipped:,} stayed as they were; the first: {going.reason}"
    return said
