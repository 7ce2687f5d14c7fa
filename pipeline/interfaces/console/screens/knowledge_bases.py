"""Knowledge bases: made, listed, changed and deleted; a base's items, and what is done with many of them."""

from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field
from starlette.responses import Response

from pipeline.flows.knowledge.queries import UnknownBase
from pipeline.flows.knowledge.settings import own
from pipeline.flows.knowledge.states import OPEN, ItemStatus, ItemType
from pipeline.interfaces.console import live
from pipeline.interfaces.console.answers import done
from pipeline.interfaces.console.fields import AREA, BLANK, CursorText
from pipeline.interfaces.console.page import piece, screen
from pipeline.interfaces.console.screens.knowledge_states import shown
from pipeline.interfaces.console.words import plural
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, InContext, reader, writer
from pipeline.interfaces.http.fields import HexId, Line, Name, Prose, Word
from pipeline.operations import knowledge
from pipeline.operations.events import Filter
from pipeline.operations.knowledge import MOST_AT_ONCE, Verb
from pipeline.settings import LOCAL
from pipeline.storage.context import Context

router = APIRouter(prefix="/console/knowledge", include_in_schema=False, dependencies=reader)
ITEMS = 50
"""So many on a page."""
MOST_ROUNDS = 10
"""Portions that one press acts on."""
MaybeWord = Annotated[Word | None, BLANK]
Area = Annotated[Prose, AREA]


class BasesAsked(live.Asked):
    """Nothing: all bases."""


class Which(BaseModel):
    """Which items of a base, as the filter above the list has it."""

    status: Annotated[ItemStatus | None, BLANK] = None
    type: Annotated[ItemType | None, BLANK] = None
    q: Line = ""

    def query(self) -> dict[str, Any]:
        return {"status": self.status, "type": self.type, "q": self.q}

    def chosen(self) -> dict[str, Any]:
        """As the service asks for it."""
        return {
            "status": [self.status] if self.status else (),
            "types": [self.type] if self.type else (),
            "words": self.q,
        }


class BaseAsked(live.Asked):
    """A page of a base's items."""

    base: HexId
    status: Annotated[ItemStatus | None, BLANK] = None
    type: Annotated[ItemType | None, BLANK] = None
    q: Line = ""
    cursor: CursorText | None = None


class QueueAsked(live.Asked):
    """A base's queue."""

    base: HexId


@live.view("knowledge", matches=lambda _: Filter("knowledge"), every_s=15)
def bases(context: Context, asked: BasesAsked) -> dict[str, str]:  # noqa: ARG001
    """All bases, with how far their items are."""
    found = knowledge.bases()
    rows = [(base, knowledge.tally(base.id)) for base in found if not base.deleting]
    going = [base.id for base in found if base.deleting]
    html = piece(
        "knowledge/_bases.html",
        rows=rows,
        going=len(going),
        chunks=knowledge.chunk_counts(),
        queue=knowledge.get_status(),
    )
    return {"kb-bases": html}


@live.view("knowledge-base", matches=lambda _: Filter("knowledge"), every_s=15)
def one_base(context: Context, asked: BaseAsked) -> dict[str, str]:  # noqa: ARG001
    """A page of a base's items, each with what it is doing, and how many are in which state."""
    try:
        base = knowledge.base(asked.base)
    except UnknownBase:
        gone = piece("knowledge/_gone.html", id="kb-states")
        return {"kb-orphans": _orphans(0), "kb-states": gone, "kb-items": piece("knowledge/_no_items.html")}
    which = Which(status=asked.status, type=asked.type, q=asked.q)
    found = knowledge.items(base.id, after=pages.decode(asked.cursor, int, str), limit=ITEMS + 1, **which.chosen())
    some = pages.page(found, ITEMS, lambda item: item, lambda item: (item.position, item.id))
    standings = knowledge.standings([item.id for item in some.items if not item.at_rest and not item.deleting])
    tally = knowledge.tally(base.id)
    orphans = len(knowledge.queue(base.id).orphan_item_ids) if tally.open else 0
    return {
        "kb-orphans": _orphans(orphans),
        "kb-states": piece("knowledge/_states.html", base=base, tally=tally, asked=which.query()),
        "kb-items": piece(
            "knowledge/_items.html",
            base=base,
            items=some.items,
            next_cursor=some.next_cursor,
            asked=which.query(),
            standings=standings,
            shown=shown,
            total=tally.total,
            first=not asked.cursor,
        ),
    }


def _orphans(count: int) -> str:
    """The banner of docs/sources/knowledge.md#orphans, without the buttons that only some callers may press."""
    return piece("knowledge/_orphans.html", orphans=count)


@live.view("knowledge-queue", matches=lambda _: Filter("knowledge"), every_s=15)
def one_queue(context: Context, asked: QueueAsked) -> dict[str, str]:  # noqa: ARG001
    """Show the items that wait, the items in work, and the orphans: open items without worker or message."""
    try:
        found = knowledge.queue(asked.base)
    except UnknownBase:
        return {"kb-orphans": _orphans(0), "kb-queue": piece("knowledge/_gone.html", id="kb-queue")}
    orphans, active = set(found.orphan_item_ids), set(found.active_item_ids)
    items = knowledge.items(asked.base, status=sorted(OPEN), limit=ITEMS)
    items.sort(key=lambda item: (item.id not in orphans, item.id not in active))
    standings = knowledge.standings([item.id for item in items])
    return {
        "kb-orphans": _orphans(len(found.orphan_item_ids)),
        "kb-queue": piece("knowledge/_queue.html", found=found, items=items, standings=standings, shown=shown),
    }


@router.get("")
def list_bases(request: Request, context: InContext) -> HTMLResponse:
    """All bases."""
    return screen(
        request, "knowledge/index.html", fragments=bases(context, BasesAsked()), any_base=bool(knowledge.bases())
    )


class BaseForm(BaseModel):
    """A base as its form has it."""

    name: Name
    description: Area = ""
    provider: MaybeWord = None
    model: MaybeWord = None
    chunk_tokens: Annotated[Annotated[int, Field(ge=32, le=8192)] | None, BLANK] = None
    chunk_overlap: Annotated[Annotated[int, Field(ge=0, le=8191)] | None, BLANK] = None


def _form(context: Context) -> dict[str, Any]:
    """What the form of a base offers."""
    found = own(context.settings)
    models = {name: profile.model for name, profile in context.settings.providers.items()}
    return {"providers": [LOCAL, *found.providers], "defaults": found, "models": models, "local": LOCAL}


@router.get("/new", dependencies=writer)
def new(request: Request, context: InContext) -> HTMLResponse:
    """The form of a new base."""
    return screen(request, "knowledge/new.html", **_form(context))


@router.post("/bases", dependencies=writer)
def create(request: Request, caller: ByCaller, form: Annotated[BaseForm, Form()]) -> Response:
    """A new, empty base."""
    made = knowledge.create_base.by(caller, **form.model_dump())
    return done(request, f"{made.name} is there: add something to it.", to=f"/console/knowledge/bases/{made.id}/add")


@router.get("/bases/{base_id}")
def show(
    request: Request,
    context: InContext,
    base_id: HexId,
    status: Annotated[ItemStatus | None, BLANK] = None,
    type: Annotated[ItemType | None, BLANK] = None,  # noqa: A002  # the address has this name
    q: Line = "",
    cursor: pages.Cursor = None,
) -> HTMLResponse:
    """The items of a base."""
    base, which = knowledge.base(base_id), Which(status=status, type=type, q=q)
    _, matched = knowledge.matching(base.id, limit=1, **which.chosen())
    asked = BaseAsked(base=base.id, cursor=cursor, **which.model_dump())
    return screen(
        request,
        "knowledge/base.html",
        base=base,
        asked=which.query(),
        cursor=cursor or "",
        matched=matched,
        fragments=one_base(context, asked),
        types=list(ItemType),
        tab="items",
    )


@router.post("/bases/{base_id}/items/{verb}", dependencies=writer)
def act(request: Request, caller: ByCaller, base_id: HexId, verb: Verb, which: Annotated[Which, Form()]) -> Response:
    """Do the same with all items that match."""
    touched, skipped, after, more = 0, 0, "", True
    for _ in range(MOST_ROUNDS):
        found, _ = knowledge.matching(base_id, after=after, limit=MOST_AT_ONCE + 1, **which.chosen())
        ids, more = found[:MOST_AT_ONCE], len(found) > MOST_AT_ONCE
        done_now, left_alone = knowledge.act.by(caller, verb, base_id, ids)
        touched, skipped = touched + done_now, skipped + len(left_alone)
        if not more:
            break
        after = ids[-1]
    words = {Verb.REPROCESS: "read again", Verb.CANCEL: "stopped", Verb.DELETE: "deleted"}[verb]
    said = f"{plural(touched, 'item')} {'is' if touched == 1 else 'are'} being {words}."
    said += f" {plural(skipped, 'other')} left alone, for which that makes no sense." if skipped else ""
    said += " There are more: press again." if more else ""
    return done(request, said)


@router.get("/bases/{base_id}/settings")
def settings(request: Request, context: InContext, base_id: HexId) -> HTMLResponse:
    """What a base is called, how it is chunked and embedded, how others ask it, and the end of it."""
    base = knowledge.base(base_id)
    address = f"{request.url.scheme}://{request.headers.get('host', '')}{context.settings.api.prefix}"
    return screen(
        request,
        "knowledge/settings.html",
        base=base,
        tally=knowledge.tally(base.id),
        address=address,
        chunks=knowledge.chunk_counts().get(base.id, 0),
        tab="settings",
        **_form(context),
    )


@router.post("/bases/{base_id}/settings", dependencies=writer)
def edit(request: Request, caller: ByCaller, base_id: HexId, form: Annotated[BaseForm, Form()]) -> Response:
    """Change a base."""
    knowledge.edit_base.by(caller, base_id, **form.model_dump())
    return done(request, "Saved. It holds for what is read from now on.")


@router.post("/bases/{base_id}/stale", dependencies=writer)
def reprocess_stale(request: Request, caller: ByCaller, base_id: HexId) -> Response:
    """Embed again what another model embedded than the base names now."""
    found = knowledge.reprocess_stale.by(caller, base_id)
    return done(request, f"{plural(len(found), 'item')} will be embedded again." if found else "All are by this model.")


@router.post("/bases/{base_id}/delete", dependencies=writer)
def delete(request: Request, caller: ByCaller, base_id: HexId) -> Response:
    """Delete a base with all of its items."""
    base = knowledge.base(base_id)
    knowledge.delete_base.by(caller, base.id)
    return done(request, f"{base.name} is being deleted.", to="/console/knowledge")


@router.get("/bases/{base_id}/queue")
def queue(request: Request, context: InContext, base_id: HexId) -> HTMLResponse:
    """Show the items that wait, the items in work, and the orphans: open items without worker or message."""
    base = knowledge.base(base_id)
    fragments = one_queue(context, QueueAsked(base=base.id))
    return screen(request, "knowledge/queue.html", base=base, fragments=fragments, tab="queue")


@router.post("/bases/{base_id}/queue/recover", dependencies=writer)
def recover(request: Request, caller: ByCaller, base_id: HexId) -> Response:
    """Send orphans on their way again."""
    found = knowledge.recover.by(caller, base_id)
    return done(
        request, f"{plural(len(found), 'item')} sent on their way." if found else "There was nothing to recover."
    )


@router.post("/bases/{base_id}/queue/dismiss", dependencies=writer)
def dismiss(request: Request, caller: ByCaller, base_id: HexId) -> Response:
    """Give up orphans."""
    found = knowledge.dismiss.by(caller, base_id)
    return done(request, f"{plural(len(found), 'item')} given up." if found else "There was nothing to give up.")
