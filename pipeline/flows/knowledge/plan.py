"""Derives due work from the rows: which items to admit, and the next step of each item under way.

Few items are under way at once, so this is cheap even for a long line.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import and_, func, select

from pipeline.engine import work
from pipeline.engine.claims import anything, in_states
from pipeline.flows.knowledge import live_settings
from pipeline.flows.knowledge.live_settings import CONTROL, IO, embeddings_queue
from pipeline.flows.knowledge.models import BASES, BATCHES, ITEMS
from pipeline.flows.knowledge.settings import own
from pipeline.flows.knowledge.states import LINE, OPEN, ItemStatus
from pipeline.flows.knowledge.work import admission
from pipeline.flows.knowledge.work.batch import EMBED
from pipeline.flows.knowledge.work.content import READ
from pipeline.flows.knowledge.work.publication import WRITE
from pipeline.providers import registry
from pipeline.settings import LOCAL
from pipeline.storage.context import Context

_REMOVAL = "removal-"
_DELETING = ITEMS.c.deleting.is_(True)
ANYTHING = anything(
    (ITEMS, BATCHES), (ITEMS, in_states(ITEMS, OPEN)), (ITEMS, _DELETING), (BASES, BASES.c.deleting.is_(True))
)
"""Whether any item is not at rest, or any deletion is incomplete."""


class Step(StrEnum):
    """The step that an item, or a base with deleted items, waits for."""

    READ = "read"
    EMBED = "embed"
    WRITE = "write"
    REMOVE = "remove"


@dataclass(frozen=True)
class DueStep:
    """A due step. `places`: messages at once, including those at work. `provider`: the provider to call."""

    id: str
    step: Step
    queue: str
    places: int = 1
    provider: str = ""


def removal_of(base_id: str) -> str:
    """Return the scope of a base's deletions."""
    return _REMOVAL + base_id


def due_steps(context: Context, scopes: Sequence[str]) -> list[DueStep]:
    """Return the due steps of these scopes: items, bases' deletions, and `LINE`, the line of all bases.

    For `LINE`, first admit items from the line, and include every item that may write its vectors now.
    """
    ids = [scope for scope in scopes if scope != LINE and not scope.startswith(_REMOVAL)]
    removals = [scope.removeprefix(_REMOVAL) for scope in scopes if scope.startswith(_REMOVAL)]
    steps = [DueStep(base_id, Step.REMOVE, CONTROL) for base_id in removals]
    if LINE in scopes:
        ids += admission.admit(context)
    if ids:
        steps += _of_items(context, list(dict.fromkeys(ids)))
    return steps + [DueStep(key, Step.WRITE, CONTROL) for key in _to_write(context, ids, all_=LINE in scopes)]


def _to_write(context: Context, ids: Sequence[str], *, all_: bool) -> list[str]:
    """Return the ids of those of these items, or with `all_` of all items, that may write their vectors now."""
    due = WRITE.due(context.db.now())
    with context.db.read() as session:
        if not all_ and session.execute(select(ITEMS.c.id).where(ITEMS.c.id.in_(ids), due).limit(1)).first() is None:
            return []
        limits = live_settings.in_force_in(session)
        room = admission.waiting_to_write(session, limits, due)
    return [item_id for item_id in room if all_ or item_id in ids]


def _of_items(context: Context, ids: Sequence[str]) -> list[DueStep]:
    """Return the due steps of reading and embedding for these items."""
    now = context.db.now()
    present = (ITEMS.c.id.in_(ids), ITEMS.c.deleting.is_(False))
    due = (
        select(BATCHES.c.item_id, BATCHES.c.provider, func.count())
        .where(BATCHES.c.item_id.in_(ids), EMBED.due(now))
        .group_by(BATCHES.c.item_id, BATCHES.c.provider)
    )
    held = select(BATCHES.c.item_id, func.count()).where(BATCHES.c.item_id.in_(ids), EMBED.working)
    with context.db.read() as session:
        waiting = select(ITEMS.c.id).where(*present, READ.due(now)).order_by(*admission.ADMISSION_ORDER)
        to_read = session.execute(waiting).scalars().all()
        embedding = set(
            session.execute(select(ITEMS.c.id).where(*present, ITEMS.c.status == ItemStatus.EMBEDDING)).scalars()
        )
        batches = session.execute(due).all()
        working: dict[str, int] = dict(session.execute(held.group_by(BATCHES.c.item_id)).all())
    known = set(registry.names(context.settings))
    steps = [DueStep(item_id, Step.READ, IO) for item_id in to_read]
    for item_id, provider, count in batches:
        if item_id in embedding and provider in known:
            lanes = min(count + working.get(item_id, 0), _width(context, provider))
            steps.append(DueStep(item_id, Step.EMBED, embeddings_queue(provider), lanes, provider))
    return steps


def _width(context: Context, provider: str) -> int:
    """Return how many batches of one item are embedded at once; local batches use one process each."""
    if provider == LOCAL:
        return context.settings.documents.converter_count
    return own(context.settings).embed_concurrency


def _under_way(context: Context) -> list[str]:
    query = select(ITEMS.c.id).where(admission.UNDER_WAY).order_by(*admission.ADMISSION_ORDER)
    with context.db.read() as session:
        return list(session.execute(query).scalars())


def _removals(context: Context) -> list[str]:
    with context.db.read() as session:
        items = session.execute(select(ITEMS.c.base_id).where(_DELETING).distinct()).scalars().all()
        bases = session.execute(select(BASES.c.id).where(BASES.c.deleting.is_(True))).scalars().all()
    return [removal_of(base_id) for base_id in sorted({*items, *bases})]


def runnable(context: Context, closed_queues: Collection[str]) -> Iterator[str]:
    """Yield every scope that may have due work; skip items whose batches wait for closed queues."""
    closed = {provider for provider in registry.names(context.settings) if embeddings_queue(provider) in closed_queues}
    waits: set[Any] = set()
    if closed:
        only = select(BATCHES.c.item_id).where(EMBED.due(context.db.now()), BATCHES.c.provider.in_(closed))
        with context.db.read() as session:
            waits = set(session.execute(only.distinct()).scalars())
    yield from _removals(context)
    yield from (item_id for item_id in _under_way(context) if item_id not in waits)
    yield LINE


def due(context: Context) -> list[str]:
    """Return the ids of the items whose wait for a retry is over, or that of one of their batches; also `LINE`, if an
    item may be read again."""
    now = context.db.now()
    over = [select(ITEMS.c.id).where(kind.waits(and_(ITEMS.c.next_run_at <= now))) for kind in (READ, WRITE)]
    # A batch of a cancelled item keeps its due time for ever, so only EMBEDDING items count.
    batches = select(BATCHES.c.item_id).where(EMBED.waits(BATCHES.c.next_run_at <= now))
    over.append(batches.join(ITEMS, ITEMS.c.id == BATCHES.c.item_id).where(ITEMS.c.status == ItemStatus.EMBEDDING))
    in_line = select(ITEMS.c.id).where(admission.IN_LINE, ITEMS.c.next_run_at <= now).limit(1)
    with context.db.read() as session:
        ids = list(dict.fromkeys(item_id for query in over for item_id in session.execute(query).scalars()))
        return ids + [LINE for _ in session.execute(in_line)]


def next_wait_s(context: Context) -> float | None:
    """Return the seconds until the next item or batch is due for its retry; None if none waits. Ignores rows that are
    due already."""
    with context.db.read() as session:
        waits = [work.next_due(session, kind) for kind in (READ, EMBED, WRITE)]
        in_line = select(func.min(ITEMS.c.next_run_at)).where(admission.IN_LINE, ITEMS.c.next_run_at > session.now)
        if first := session.execute(in_line).scalar():
            waits.append((first - session.now).total_seconds())
    return min((wait for wait in waits if wait is not None), default=None)
