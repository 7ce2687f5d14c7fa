"""Commands on bases and items. Each is one transaction, whose messages are launched after the commit.

Rules: docs/sources/knowledge.md#cancellation.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any
from uuid import uuid4

from sqlalchemy import and_, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from pipeline.engine import accounts
from pipeline.engine.accounts import Part
from pipeline.engine.claims import FREE, in_states
from pipeline.engine.errors import UserError
from pipeline.engine.tables import insert_if_absent, portions, storable
from pipeline.engine.transaction import Tx
from pipeline.engine.views import view_of
from pipeline.flows.knowledge import live_settings, queries
from pipeline.flows.knowledge.models import BASES, BATCHES, ITEMS, MAX_NAME
from pipeline.flows.knowledge.plan import removal_of
from pipeline.flows.knowledge.queries import UnknownItem
from pipeline.flows.knowledge.settings import own
from pipeline.flows.knowledge.states import FLOW, ITEM, LINE, OPEN, BatchStatus, ItemEvent, ItemStatus, ItemType
from pipeline.flows.knowledge.views import BaseView, ItemView
from pipeline.flows.knowledge.work import item as items
from pipeline.providers import call_cost, registry
from pipeline.settings import LOCAL
from pipeline.storage.context import Context

_EDITABLE = {"name", "description", "provider", "model", "chunk_tokens", "chunk_overlap"}
CANCELLED, INTERRUPTED = "Cancelled", "Interrupted"
_PAGE_CHARS = 10_000
"""The assumed length of a web page that is not read yet."""


class CancelStatus(StrEnum):
    """The result of a cancellation."""

    CANCELLED = "cancelled"
    IGNORED = "ignored"
    """The item had ended already."""


def create_base(
    context: Context,
    name: str,
    *,
    description: str = "",
    provider: str | None = None,
    model: str | None = None,
    chunk_tokens: int | None = None,
    chunk_overlap: int | None = None,
) -> BaseView:
    """Create an empty base. Settings supply absent arguments; with `provider` but no `model`, the provider's own model.

    Raises `UserError`, also for a name that exists.
    """
    section = own(context.settings)
    now = context.db.now()
    chosen = (section.embeddings_provider or LOCAL) if provider is None else provider
    default_model = section.embeddings_model if provider is None else ""
    row = {
        "id": uuid4().hex[:16],
        "name": _name(name),
        "description": storable(description),
        "provider": chosen,
        "model": default_model if model is None else model,
        "chunk_tokens": section.chunk_tokens if chunk_tokens is None else chunk_tokens,
        "chunk_overlap": section.chunk_overlap if chunk_overlap is None else chunk_overlap,
        "next_position": 1,
        "turn": 0,
        "deleting": False,
        "created_at": now,
        "updated_at": now,
    }
    _check(context, row)
    try:
        # Absent by its id: if a commit's answer was lost, the repeated transaction finds its own row.
        context.db.run(lambda tx: insert_if_absent(tx, BASES, row))
    except IntegrityError:
        raise UserError(f"there is a knowledge base called {row['name']} already", code="exists") from None
    return queries.base(context, str(row["id"]))


def edit_base(context: Context, base_id: str, **changes: Any) -> BaseView:
    """Change a base's name or description, or how items read from now on are chunked and embedded; items under way keep
    the old settings. None keeps a value; another `provider` without `model` means that provider's own model.

    Items that another model embedded stay searchable; `stale` lists them. Raises `UserError`.
    """
    wanted = {name: value for name, value in changes.items() if value is not None}
    if unknown := wanted.keys() - _EDITABLE:
        raise UserError(f"a base has no {', '.join(sorted(unknown))} that can be changed", code="bad_value")
    if "name" in wanted:
        wanted["name"] = _name(wanted["name"])
    if "description" in wanted:
        wanted["description"] = storable(wanted["description"])

    def act(tx: Tx) -> BaseView:
        row = queries.base_row(tx, base_id, lock=True)
        if "provider" in wanted and "model" not in wanted and wanted["provider"] != row.provider:
            wanted["model"] = ""
        new = {**row._asdict(), **wanted}
        _check(context, new)
        tx.execute(update(BASES).where(BASES.c.id == row.id).values(**wanted, updated_at=tx.now))
        return view_of(BaseView, tx.execute(select(BASES).where(BASES.c.id == row.id)).one())

    try:
        return context.db.run(act)
    except IntegrityError:
        raise UserError(f"there is a knowledge base called {wanted.get('name')} already", code="exists") from None


def _name(name: str) -> str:
    short = " ".join(name.split())
    if not short or len(short) > MAX_NAME or not short.isprintable():
        raise UserError(f"a base's name has 1 to {MAX_NAME} printable characters", code="bad_name")
    return short


def _check(context: Context, row: dict[str, Any]) -> None:
    allowed = [LOCAL, *own(context.settings).providers]
    if row["provider"] not in allowed:
        message = (
            f"{row['provider']} is not a provider of vectors: choose from {', '.join(allowed)}, or name it in "
            "PENSTOCK_KNOWLEDGE__EMBEDDINGS_PROVIDER or …__FURTHER_PROVIDERS"
        )
        raise UserError(message, code="unknown_provider")
    registry.check(context.settings, row["provider"], row["model"])
    if not 32 <= row["chunk_tokens"] <= 8192 or not 0 <= row["chunk_overlap"] < row["chunk_tokens"]:
        raise UserError("chunks have 32 to 8192 tokens, and overlap by fewer than they have", code="bad_value")


def delete_base(context: Context, base_id: str) -> None:
    """Mark a base and all its items as being deleted; a worker removes their data later. Raises `UnknownBase`.

    Its name is free at once.
    """

    def act(tx: Tx) -> None:
        row, now = queries.base_row(tx, base_id, lock=True), tx.now
        # A name with a leading space frees the old name at once, and is never a user's.
        marked = update(BASES).where(BASES.c.id == row.id)
        tx.execute(marked.values(deleting=True, name=f" {row.id}", updated_at=now))
        _mark(tx, ITEMS.c.base_id == row.id)
        tx.launch(FLOW, LINE, removal_of(row.id))

    context.db.run(act)


def delete_items(context: Context, *item_ids: str) -> int:
    """Mark items as being deleted, for a worker to remove, and skip unknown ids; return how many bases lose items."""

    def act(tx: Tx) -> int:
        bases: set[str] = set()
        for portion in portions(item_ids):
            bases |= set(_mark(tx, ITEMS.c.id.in_(portion)))
        tx.launch(FLOW, LINE, *map(removal_of, sorted(bases)))
        return len(bases)

    return context.db.run(act)


def _mark(tx: Tx, which: Any) -> list[str]:
    """Mark items as being deleted; return the ids of their bases, one for each item.

    Workers lose their claims, and stop before the next call.
    """
    in_work = tx.execute(select(ITEMS.c.id).where(which, in_states(ITEMS, OPEN))).scalars()
    accounts.cut_off(tx, FLOW, in_work)
    marked = update(ITEMS).where(which).values(deleting=True, admitted_at=None, updated_at=tx.now, **FREE)
    return list(tx.execute(marked.returning(ITEMS.c.base_id)).scalars())


def cancel(context: Context, item_id: str) -> CancelStatus:
    """Stop an item: it becomes FAILED with the error `Cancelled`. Return `ignored` if it had ended.

    Its published chunks stay searchable. Raises `UnknownItem`.
    """

    def act(tx: Tx) -> CancelStatus:
        return _cancel(tx, _locked(tx, item_id), CANCELLED)

    return context.db.run(act)


def _locked(session: Session, item_id: str) -> Any:
    row = items.lock(session, item_id)
    if row is None:
        raise UnknownItem(item_id)
    return row


def _base_of(session: Session, item_id: str) -> str:
    query = select(ITEMS.c.base_id).where(ITEMS.c.id == item_id, queries.PRESENT)
    base_id: str | None = session.execute(query).scalar()
    if base_id is None:
        raise UnknownItem(item_id)
    return base_id


def _cancel(tx: Tx, row: Any, reason: str) -> CancelStatus:
    if row.status not in OPEN:
        return CancelStatus.IGNORED
    values = {"error": reason, "admitted_at": None, "next_run_at": None, "finished_at": tx.now, "updated_at": tx.now}
    ITEM.move(tx, ITEMS, ItemEvent.CANCEL, ITEMS.c.id == row.id, **values, **FREE)
    claimed = select(func.count()).where(BATCHES.c.item_id == row.id, BATCHES.c.claim_id.is_not(None))
    under_way = tx.execute(claimed).scalar_one()
    accounts.cut_off(tx, FLOW, [row.id], under_way)
    tx.launch(FLOW, LINE)
    return CancelStatus.CANCELLED


def reprocess(context: Context, item_id: str, **changes: Any) -> ItemView:
    """Put an item at the end of its base's line, to be read, chunked and embedded again; stop it first if it is under
    way. Until then the old chunks stay searchable, and unchanged chunks keep their vectors. Raises `UnknownItem`.

    `changes`: further columns, such as the digest of a file's new content.
    """

    def act(tx: Tx) -> ItemView:
        # Lock the base before its items, as every transaction does that locks both.
        base = queries.base_row(tx, _base_of(tx, item_id), lock=True)
        row, now = _locked(tx, item_id), tx.now
        _cancel(tx, row, CANCELLED)
        advance(tx, base.id, 1)
        values: dict[str, Any] = {
            "position": base.next_position,
            "progress": 0,
            "error": None,
            "warning": None,
            "loss": None,
            "attempts": 0,
            "batches_left": 0,
            "next_run_at": None,
            "started_at": None,
            "finished_at": None,
            "updated_at": now,
            **changes,
        }
        ITEM.move(tx, ITEMS, ItemEvent.REPROCESS, ITEMS.c.id == item_id, **values)
        parts = {item_id: estimate(context, base, {**row._asdict(), **changes})}
        accounts.admit(tx, FLOW, parts)
        tx.launch(FLOW, LINE)
        return queries.item_view(tx.execute(select(ITEMS).where(ITEMS.c.id == item_id)).one())

    return context.db.run(act)


def estimate(context: Context, base: Any, row: Mapping[str, Any]) -> list[Part]:
    """Return what embedding an item may cost, as estimated before reading: by the length of its text or
    file, and for addresses by an assumed length of pages.
    """
    pages = {ItemType.URL: 1, ItemType.SITEMAP: live_settings.in_force(context).sitemap_pages}.get(row["type"], 0)
    characters = pages * _PAGE_CHARS or row["size_bytes"] or 2 * row["workload"]
    size = live_settings.in_force(context).batch_size * base.chunk_tokens * call_cost.CHARS_A_TOKEN
    batches = -(-characters // size) or 1
    return [Part(batches, call_cost.of_text(context.settings, base.provider, base.model, characters) / batches)]


def unfinished(session: Session, item_ids: Collection[str]) -> set[str]:
    """Return the ids of those of these items that may still cause calls."""
    works = and_(ITEMS.c.id.in_(item_ids), ITEMS.c.deleting.is_(False), in_states(ITEMS, OPEN))
    return set(session.execute(select(ITEMS.c.id).where(works)).scalars())


def advance(session: Session, base_id: str, count: int) -> None:
    """Take `count` places at the end of the line of a base that the caller has locked."""
    moved = update(BASES).where(BASES.c.id == base_id)
    session.execute(moved.values(next_position=BASES.c.next_position + count))


def stale(context: Context, base_id: str) -> list[str]:
    """Return the ids of completed items that another model embedded than the base names now, in order of the line."""
    with context.db.read() as session:
        row = queries.base_row(session, base_id)
        maker = registry.embeddings(context.settings, row.provider, row.model)
        space = f"{maker.name}:{maker.model}"[:200]
        query = select(ITEMS.c.id).where(
            ITEMS.c.base_id == row.id, ITEMS.c.status == ItemStatus.COMPLETED, ITEMS.c.published_space != space
        )
        return list(session.execute(query.where(queries.PRESENT).order_by(ITEMS.c.position)).scalars())


def failed(context: Context, base_id: str) -> list[str]:
    """Return the ids of a base's failed items, cancelled ones included, in the order of its line."""
    with context.db.read() as session:
        row = queries.base_row(session, base_id)
        query = select(ITEMS.c.id).where(ITEMS.c.base_id == row.id, ITEMS.c.status == ItemStatus.FAILED)
        return list(session.execute(query.where(queries.PRESENT).order_by(ITEMS.c.position)).scalars())


def dismiss(context: Context, base_id: str, item_ids: Sequence[str] | None = None) -> list[str]:
    """Make a base's orphans FAILED, or those among `item_ids`; leave other items alone. Return the ids of the failed
    items. Rule: docs/sources/knowledge.md#orphans."""
    context.redis.ping()  # Raises without Redis, where no worker seems to live and every item seems an orphan.
    orphans = queries.queue(context, base_id).orphan_item_ids
    wanted = orphans if item_ids is None else [item_id for item_id in item_ids if item_id in set(orphans)]

    def act(tx: Tx) -> list[str]:
        rows = [row for item_id in wanted if (row := items.lock(tx, item_id)) is not None]
        ended = [(row.id, _cancel(tx, row, INTERRUPTED)) for row in rows]
        return [item_id for item_id, status in ended if status is CancelStatus.CANCELLED]

    return context.db.run(act)


def held_up(context: Context, base_id: str) -> list[str]:
    """Return the ids of processes that hold items or batches of a base; they may be dead. `base_id`: not its name."""
    open_items = select(ITEMS.c.id).where(ITEMS.c.base_id == base_id, in_states(ITEMS, OPEN))
    with context.db.read() as session:
        holders = set(session.execute(select(ITEMS.c.worker_id).where(ITEMS.c.id.in_(open_items))).scalars())
        holders |= set(
            session.execute(
                select(BATCHES.c.worker_id).where(
                    BATCHES.c.item_id.in_(open_items), BATCHES.c.status == BatchStatus.RUNNING
                )
            ).scalars()
        )
    return sorted(name for name in holders if name)
