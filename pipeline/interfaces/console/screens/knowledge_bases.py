"""Knowledge bases: create, list, change and delete; a base's items, and actions on many of them."""

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
"""Items on a page."""
FOLDERS = 200
"""The most folders of a base on its page."""
MOST_ROUNDS = 10
"""The portions of items that one press acts on."""
MaybeWord = Annotated[Word | None, BLANK]
Area = Annotated[Prose, AREA]


class BasesQuery(live.ViewQuery):
    """No fields: all bases."""


class Which(BaseModel):
    """The filter of a base's items."""

    status: Annotated[ItemStatus | None, BLANK] = None
    type: Annotated[ItemType | None, BLANK] = None
    group: MaybeWord = None
    q: Line = ""

    def query(self) -> dict[str, Any]:
        return {"status": self.status, "type": self.type, "group": self.group, "q": self.q}

    def chosen(self) -> dict[str, Any]:
        """Return the filter as arguments of operations."""
        return {
            "status": [self.status] if self.status else (),
            "types": [self.type] if self.type else (),
            "group_id": self.group or "",
            "words": self.q,
        }


class BaseQuery(live.ViewQuery):
    """A page of a base's items."""

    base: HexId
    status: Annotated[ItemStatus | None, BLANK] = None
    type: Annotated[ItemType | None, BLANK] = None
    group: MaybeWord = None
    q: Line = ""
    cursor: CursorText | None = None


class QueueQuery(live.ViewQuery):
    """A base's queue."""

    base: HexId


@live.view("knowledge", matches=lambda _: Filter("knowledge"), every_s=15)
def bases(context: Context, query: BasesQuery) -> dict[str, str]:  # noqa: ARG001
    """Return HTML by element id: all bases with the progress of their items; those being deleted are only counted."""
    all_bases = knowledge.bases()
    rows = [(base, knowledge.tally(base.id)) for base in all_bases if not base.deleting]
    going = [base.id for base in all_bases if base.deleting]
    html = piece(
        "knowledge/_bases.html",
        rows=rows,
        going=len(going),
        chunks=knowledge.chunk_counts(),
        queue=knowledge.get_status(),
    )
    return {"kb-bases": html}


@live.view("knowledge-base", matches=lambda _: Filter("knowledge"), every_s=15)
def one_base(context: Context, query: BaseQuery) -> dict[str, str]:  # noqa: ARG001
    """Return HTML by element id: a base's folders, one page of the list of its items, with their activity, and the
    counts by state. Without a filter, the list has the items without a folder."""
    try:
        base = knowledge.base(query.base)
    except UnknownBase:
        deleted = piece("knowledge/_gone.html", id="kb-states")
        none = {"kb-groups": piece("knowledge/_groups.html", groups=()), "kb-items": piece("knowledge/_no_items.html")}
        return {"kb-orphans": _orphans(0), "kb-states": deleted, **none}
    which = Which(status=query.status, type=query.type, group=query.group, q=query.q)
    groups = knowledge.groups(base.id, limit=FOLDERS + 1)
    alone = bool(groups) and not any(which.query().values())
    after = pages.decode(query.cursor, int, str)
    rows = knowledge.items(base.id, after=after, limit=ITEMS + 1, alone=alone, **which.chosen())
    page = pages.page(rows, ITEMS, lambda item: item, lambda item: (item.position, item.id))
    standings = knowledge.standings([item.id for item in page.items if not item.at_rest and not item.deleting])
    tally = knowledge.tally(base.id)
    orphans = len(knowledge.queue(base.id).orphan_item_ids) if tally.open else 0
    return {
        "kb-orphans": _orphans(orphans),
        "kb-states": piece("knowledge/_states.html", base=base, tally=tally, filters=which.query()),
        "kb-groups": piece(
            "knowledge/_groups.html",
            base=base,
            groups=groups[:FOLDERS],
            more=len(groups) > FOLDERS,
            filters=which.query(),
        ),
        "kb-items": piece(
            "knowledge/_items.html",
            base=base,
            items=page.items,
            next_cursor=page.next_cursor,
            filters=which.query(),
            standings=standings,
            shown=shown,
            total=tally.total,
            alone=alone,
            first=not query.cursor,
        ),
    }


def _orphans(count: int) -> str:
    """Return the HTML of the banner that names the number of orphans, without its buttons, which need the scope write;
    hidden for 0."""
    return piece("knowledge/_orphans.html", orphans=count)


@live.view("knowledge-queue", matches=lambda _: Filter("knowledge"), every_s=15)
def one_queue(context: Context, query: QueueQuery) -> dict[str, str]:  # noqa: ARG001
    """Return HTML by element id: the items that wait, the items in work, and the orphans, at most `ITEMS` in all."""
    try:
        queue = knowledge.queue(query.base)
    except UnknownBase:
        return {"kb-orphans": _orphans(0), "kb-queue": piece("knowledge/_gone.html", id="kb-queue")}
    orphans, active = set(queue.orphan_item_ids), set(queue.active_item_ids)
    items = knowledge.items(query.base, status=sorted(OPEN), limit=ITEMS)
    items.sort(key=lambda item: (item.id not in orphans, item.id not in active))
    standings = knowledge.standings([item.id for item in items])
    return {
        "kb-orphans": _orphans(len(queue.orphan_item_ids)),
        "kb-queue": piece("knowledge/_queue.html", queue=queue, items=items, standings=standings, shown=shown),
    }


@router.get("")
def list_bases(request: Request, context: InContext) -> HTMLResponse:
    """Show all bases."""
    return screen(
        request, "knowledge/index.html", fragments=bases(context, BasesQuery()), any_base=bool(knowledge.bases())
    )


class BaseForm(BaseModel):
    """The form of a base."""

    name: Name
    description: Area = ""
    provider: MaybeWord = None
    model: MaybeWord = None
    chunk_tokens: Annotated[Annotated[int, Field(ge=32, le=8192)] | None, BLANK] = None
    chunk_overlap: Annotated[Annotated[int, Field(ge=0, le=8191)] | None, BLANK] = None


def _form(context: Context) -> dict[str, Any]:
    """Return the values that the form of a base offers: providers, models and defaults."""
    limits = own(context.settings)
    models = {name: profile.model for name, profile in context.settings.providers.items()}
    return {"providers": [LOCAL, *limits.providers], "defaults": limits, "models": models, "local": LOCAL}


@router.get("/new", dependencies=writer)
def new(request: Request, context: InContext) -> HTMLResponse:
    """Show the form of a new base."""
    return screen(request, "knowledge/new.html", **_form(context))


@router.post("/bases", dependencies=writer)
def create(request: Request, caller: ByCaller, form: Annotated[BaseForm, Form()]) -> Response:
    """Create an empty base."""
    base = knowledge.create_base.by(caller, **form.model_dump())
    return done(request, f"{base.name} is created: add something to it.", to=f"/console/knowledge/bases/{base.id}/add")


@router.get("/bases/{base_id}")
def show(
    request: Request,
    context: InContext,
    base_id: HexId,
    status: Annotated[ItemStatus | None, BLANK] = None,
    type: Annotated[ItemType | None, BLANK] = None,  # noqa: A002  # the address has this name
    group: MaybeWord = None,
    q: Line = "",
    cursor: pages.Cursor = None,
) -> HTMLResponse:
    """Show the items of a base."""
    base, which = knowledge.base(base_id), Which(status=status, type=type, group=group, q=q)
    _, matched = knowledge.matching(base.id, limit=1, **which.chosen())
    query = BaseQuery(base=base.id, cursor=cursor, **which.model_dump())
    return screen(
        request,
        "knowledge/base.html",
        base=base,
        filters=which.query(),
        cursor=cursor or "",
        matched=matched,
        fragments=one_base(context, query),
        types=list(ItemType),
        tab="items",
    )


@router.post("/bases/{base_id}/items/{verb}", dependencies=writer)
def act(request: Request, caller: ByCaller, base_id: HexId, verb: Verb, which: Annotated[Which, Form()]) -> Response:
    """Act on the items that match, up to `MOST_ROUNDS` portions of them; the message says if more match."""
    touched, skipped, after, more = 0, 0, "", True
    for _ in range(MOST_ROUNDS):
        items, _ = knowledge.matching(base_id, after=after, limit=MOST_AT_ONCE + 1, **which.chosen())
        ids, more = items[:MOST_AT_ONCE], len(items) > MOST_AT_ONCE
        done_now, left_alone = knowledge.act.by(caller, verb, base_id, ids)
        touched, skipped = touched + done_now, skipped + len(left_alone)
        if not more:
            break
        after = ids[-1]
    words = {Verb.REPROCESS: "read again", Verb.CANCEL: "stopped", Verb.DELETE: "deleted"}[verb]
    message = f"{plural(touched, 'item')} {'is' if touched == 1 else 'are'} being {words}."
    message += f" {plural(skipped, 'other')} unchanged: their state does not allow it." if skipped else ""
    message += " More items match: press again." if more else ""
    return done(request, message)


@router.get("/bases/{base_id}/settings")
def settings(request: Request, context: InContext, base_id: HexId) -> HTMLResponse:
    """Show the settings of a base, how other programs search it, and its deletion."""
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
    """Change a base. Only items that are read from now on follow."""
    knowledge.edit_base.by(caller, base_id, **form.model_dump())
    return done(request, "Saved. It applies to items that are read from now on.")


@router.post("/bases/{base_id}/stale", dependencies=writer)
def reprocess_stale(request: Request, caller: ByCaller, base_id: HexId) -> Response:
    """Queue the items whose vectors come from another model than the base's, to be embedded again."""
    items = knowledge.reprocess_stale.by(caller, base_id)
    return done(
        request,
        f"{plural(len(items), 'item')} will be embedded again." if items else "This model has embedded all items.",
    )


@router.post("/bases/{base_id}/delete", dependencies=writer)
def delete(request: Request, caller: ByCaller, base_id: HexId) -> Response:
    """Start to delete a base with its items."""
    base = knowledge.base(base_id)
    knowledge.delete_base.by(caller, base.id)
    return done(request, f"{base.name} is being deleted.", to="/console/knowledge")


@router.get("/bases/{base_id}/queue")
def queue(request: Request, context: InContext, base_id: HexId) -> HTMLResponse:
    """Show the items that wait, the items in work, and the orphans: open items without worker or message."""
    base = knowledge.base(base_id)
    fragments = one_queue(context, QueueQuery(base=base.id))
    return screen(request, "knowledge/queue.html", base=base, fragments=fragments, tab="queue")


@router.post("/bases/{base_id}/queue/recover", dependencies=writer)
def recover(request: Request, caller: ByCaller, base_id: HexId) -> Response:
    """Queue orphans again."""
    items = knowledge.recover.by(caller, base_id)
    return done(request, f"{plural(len(items), 'item')} queued again." if items else "No orphans to recover.")


@router.post("/bases/{base_id}/queue/dismiss", dependencies=writer)
def dismiss(request: Request, caller: ByCaller, base_id: HexId) -> Response:
    """Give up the orphans: they fail."""
    items = knowledge.dismiss.by(caller, base_id)
    return done(request, f"{plural(len(items), 'item')} given up." if items else "No orphans to give up.")
