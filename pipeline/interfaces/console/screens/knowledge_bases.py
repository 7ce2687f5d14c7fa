"""Knowledge bases: made, listed, changed and deleted; a base's items, and what is done with many of them."""

from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field
from starlette.responses import Response

from pipeline.flows.knowledge.settings import own
from pipeline.flows.knowledge.states import OPEN
from pipeline.interfaces.console import live
from pipeline.interfaces.console.answers import done
from pipeline.interfaces.console.fields import AREA, BLANK, CursorText
from pipeline.interfaces.console.page import piece, screen
from pipeline.interfaces.console.screens.knowledge_states import shown
from pipeline.interfaces.console.words import plural
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import InContext, may_spend, reader, writer
from pipeline.interfaces.http.fields import HexId, Line, Name, Prose, Word
from pipeline.interfaces.rest import knowledge_bases as api
from pipeline.interfaces.rest.knowledge_items import ItemFilter, ItemSelection, Verb, act_on_items
from pipeline.settings import LOCAL
from pipeline.storage.context import Context
from tasks import knowledge as flow
from tasks.events import Filter
from tasks.knowledge import ItemStatus, ItemType, UnknownBase

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
    found = flow.bases()
    rows = [(base, flow.tally(base.id)) for base in found if not base.deleting]
    going = [base.id for base in found if base.deleting]
    html = piece(
        "knowledge/_bases.html", rows=rows, going=len(going), chunks=flow.chunk_counts(), queue=flow.get_status()
    )
    return {"kb-bases": html}


@live.view("knowledge-base", matches=lambda _: Filter("knowledge"), every_s=15)
def one_base(context: Context, asked: BaseAsked) -> dict[str, str]:  # noqa: ARG001
    """A page of a base's items, each with what it is doing, and how many are in which state."""
    try:
        base = flow.base(asked.base)
    except UnknownBase:
        gone = piece("knowledge/_gone.html", id="kb-states")
        return {"kb-orphans": _orphans(0), "kb-states": gone, "kb-items": piece("knowledge/_no_items.html")}
    which = Which(status=asked.status, type=asked.type, q=asked.q)
    found = flow.items(base.id, after=pages.decode(asked.cursor, int, str), limit=ITEMS + 1, **which.chosen())
    some = pages.page(found, ITEMS, lambda item: item, lambda item: (item.position, item.id))
    standings = flow.standings([item.id for item in some.items if not item.at_rest and not item.deleting])
    tally = flow.tally(base.id)
    orphans = len(flow.queue(base.id).orphan_item_ids) if tally.open else 0
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
    """The banner of source 003, "孤儿任务恢复", without the buttons that only some callers may press."""
    return piece("knowledge/_orphans.html", orphans=count)


@live.view("knowledge-queue", matches=lambda _: Filter("knowledge"), every_s=15)
def one_queue(context: Context, asked: QueueAsked) -> dict[str, str]:  # noqa: ARG001
    """Show the items that wait, the items in work, and the orphans: open items without worker or message."""
    try:
        found = flow.queue(asked.base)
    except UnknownBase:
        return {"kb-orphans": _orphans(0), "kb-queue": piece("knowledge/_gone.html", id="kb-queue")}
    orphans, active = set(found.orphan_item_ids), set(found.active_item_ids)
    items = flow.items(asked.base, status=sorted(OPEN), limit=ITEMS)
    items.sort(key=lambda item: (item.id not in orphans, item.id not in active))
    standings = flow.standings([item.id for item in items])
    return {
        "kb-orphans": _orphans(len(found.orphan_item_ids)),
        "kb-queue": piece("knowledge/_queue.html", found=found, items=items, standings=standings, shown=shown),
    }


@router.get("")
def list_bases(request: Request, context: InContext) -> HTMLResponse:
    """All bases."""
    return screen(request, "knowledge/index.html", fragments=bases(context, BasesAsked()), any_base=bool(flow.bases()))


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
def create(request: Request, form: Annotated[BaseForm, Form()]) -> Response:
    """A new, empty base."""
    made = api.create_base(request, Response(), api.NewBase(**form.model_dump()))
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
    base, which = flow.base(base_id), Which(status=status, type=type, q=q)
    _, matched = flow.matching(base.id, limit=1, **which.chosen())
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
def act(request: Request, base_id: HexId, verb: Verb, which: Annotated[Which, Form()]) -> Response:
    """Do the same with all items that match."""
    chosen = ItemFilter(
        status=[which.status] if which.status else [], type=[which.type] if which.type else [], q=which.q or None
    )
    selection, touched, skipped = ItemSelection(filter=chosen, all_matching=True), 0, 0
    for _ in range(MOST_ROUNDS):
        acted = act_on_items(request, base_id, verb, selection)
        touched, skipped = touched + acted.done, skipped + len(acted.skipped)
        selection = selection.model_copy(update={"cursor": acted.next_cursor})
        if acted.next_cursor is None:
            break
    words = {Verb.REPROCESS: "read again", Verb.CANCEL: "stopped", Verb.DELETE: "deleted"}[verb]
    said = f"{plural(touched, 'item')} {'is' if touched == 1 else 'are'} being {words}."
    said += f" {plural(skipped, 'other')} left alone, for which that makes no sense." if skipped else ""
    said += " There are more: press again." if selection.cursor else ""
    return done(request, said)


@router.get("/bases/{base_id}/settings")
def settings(request: Request, context: InContext, base_id: HexId) -> HTMLResponse:
    """What a base is called, how it is chunked and embedded, how others ask it, and the end of it."""
    base = flow.base(base_id)
    address = f"{request.url.scheme}://{request.headers.get('host', '')}{context.settings.api.prefix}"
    return screen(
        request,
        "knowledge/settings.html",
        base=base,
        tally=flow.tally(base.id),
        address=address,
        chunks=flow.chunk_counts().get(base.id, 0),
        tab="settings",
        **_form(context),
    )


@router.post("/bases/{base_id}/settings", dependencies=writer)
def edit(request: Request, base_id: HexId, form: Annotated[BaseForm, Form()]) -> Response:
    """Change a base."""
    api.edit_base(request, base_id, api.BaseChanges(**form.model_dump()))
    return done(request, "Saved. It holds for what is read from now on.")


@router.post("/bases/{base_id}/stale", dependencies=writer)
def reprocess_stale(request: Request, base_id: HexId) -> Response:
    """Embed again what another model embedded than the base names now."""
    may_spend(request)
    found = flow.reprocess_stale(flow.base(base_id).id)
    return done(request, f"{plural(len(found), 'item')} will be embedded again." if found else "All are by this model.")


@router.post("/bases/{base_id}/delete", dependencies=writer)
def delete(request: Request, base_id: HexId) -> Response:
    """Delete a base with all of its items."""
    base = flow.base(base_id)
    flow.delete_base(base.id)
    return done(request, f"{base.name} is being deleted.", to="/console/knowledge")


@router.get("/bases/{base_id}/queue")
def queue(request: Request, context: InContext, base_id: HexId) -> HTMLResponse:
    """Show the items that wait, the items in work, and the orphans: open items without worker or message."""
    base = flow.base(base_id)
    fragments = one_queue(context, QueueAsked(base=base.id))
    return screen(request, "knowledge/queue.html", base=base, fragments=fragments, tab="queue")


@router.post("/bases/{base_id}/queue/recover", dependencies=writer)
def recover(request: Request, base_id: HexId) -> Response:
    """Send orphans on their way again."""
    found = flow.recover(base_id)
    return done(
        request, f"{plural(len(found), 'item')} sent on their way." if found else "There was nothing to recover."
    )


@router.post("/bases/{base_id}/queue/dismiss", dependencies=writer)
def dismiss(request: Request, base_id: HexId) -> Response:
    """Give up orphans."""
    found = flow.dismiss(base_id, flow.queue(base_id).orphan_item_ids)
    return done(request, f"{plural(len(found), 'item')} given up." if found else "There was nothing to give up.")
