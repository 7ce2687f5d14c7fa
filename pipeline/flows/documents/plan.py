"""Derives due work from the rows: a document's next stage, its lanes, and their queues.

Submissions, retries, resumes, wake-ups and the sweeper all launch by this plan.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, and_, func, or_, select, tuple_

from pipeline.engine import work
from pipeline.engine.claims import anything, in_states
from pipeline.engine.gate_registry import queue_name
from pipeline.flows.documents.models import DOCUMENTS, PAGES
from pipeline.flows.documents.states import OPEN, DocumentStatus
from pipeline.flows.documents.work.document import MERGE, SPLIT
from pipeline.flows.documents.work.page import CONVERT
from pipeline.providers import fallbacks
from pipeline.settings import LOCAL, Settings
from pipeline.storage.context import Context

CPU = "cpu"
"""The queue for work that needs a core, which prefork workers consume."""
PORTION = 500


ANYTHING = anything((DOCUMENTS, PAGES), (DOCUMENTS, in_states(DOCUMENTS, OPEN)))
"""Whether any document is not at rest."""


class Stage(StrEnum):
    """The stage that a document waits for."""

    SPLIT = "split"
    CONVERT = "convert"
    MERGE = "merge"


_STAGES = {
    DocumentStatus.PENDING: Stage.SPLIT,
    DocumentStatus.PROCESSING: Stage.CONVERT,
    DocumentStatus.READY_TO_MERGE: Stage.MERGE,
}


@dataclass(frozen=True)
class Due:
    """The stage that a document's rows ask for now. `lanes`: their number by queue, lanes at work included."""

    document_id: str
    stage: Stage
    lanes: Mapping[str, int] = field(default_factory=dict)


def queue_of(provider: str) -> str:
    """Return `cpu` for the local converter, else the provider's own queue, which has a gate."""
    return CPU if provider == LOCAL else queue_name("vision", provider)


def provider_of(queue: str) -> str:
    """Return the provider that lanes of this queue call."""
    return LOCAL if queue == CPU else queue.partition(".")[2]


def providers(settings: Settings) -> list[str]:
    """Return the providers whose pages get lanes; pages of a removed provider get none."""
    return [LOCAL, *sorted(settings.providers)]


def served_by(context: Context, queue: str) -> list[str]:
    """Return the providers whose pages this queue's lanes convert now: its own, then those it stands in for."""
    own = provider_of(queue)
    return [own, *(name for name in providers(context.settings) if name != own and converter_of(context, name) == own)]


def converter_of(context: Context, provider: str) -> str:
    """Return the provider that converts pages of `provider` now: its fallback while `provider`'s breaker is open and
    the fallback's is not, else `provider` itself."""
    return provider if provider == LOCAL else fallbacks.stand_in(context, provider, "vision", local=True)


def quantum_s(settings: Settings, queue: str) -> float:
    """Return for how many seconds a lane works before it yields to other documents; on queues with a gate 0, which
    means one page."""
    return settings.documents.quantum_s if queue == CPU else 0.0


def lane_limit(settings: Settings, queue: str) -> int:
    """Return how many lanes of a document may work at once on this queue: the provider's concurrency, or the number of
    local converters."""
    profile = settings.providers.get(provider_of(queue))
    return profile.concurrency if profile else settings.documents.converter_count


def stages(context: Context, document_ids: Sequence[str]) -> list[Due]:
    """Return the stages that these documents ask for now: splitting, conversion with its lanes, or merging; leave out
    documents without due work.

    Takes one or two statements, which cost the same for few and for many pages.
    """
    settings, now = context.settings, context.db.now()
    queues = {provider: queue_of(converter_of(context, provider)) for provider in providers(settings)}
    limits = {queue: lane_limit(settings, queue) for queue in queues.values()}
    counts = [_due_pages(provider, limits[queue], now) for provider, queue in queues.items()]
    waits = or_(DOCUMENTS.c.status == DocumentStatus.PROCESSING, SPLIT.due(now), MERGE.due(now))
    query = select(DOCUMENTS.c.id, DOCUMENTS.c.status, *counts).where(DOCUMENTS.c.id.in_(document_ids), waits)
    with context.db.read() as session:
        rows = session.execute(query).all()
    by_id = {row.id: _STAGES[DocumentStatus(row.status)] for row in rows}
    wanted: dict[str, Counter[str]] = {}
    for row in rows:
        if by_id[row.id] is Stage.CONVERT:
            pages = zip(queues.values(), row[2:], strict=True)
            wanted[row.id] = sum((Counter({queue: count}) for queue, count in pages), Counter())
    narrow = [key for key, lanes in wanted.items() if any(lanes[queue] < limits[queue] for queue in lanes)]
    for document_id, provider, lanes in _lanes_at_work(context, narrow):
        if queues.get(provider) in wanted[document_id]:
            wanted[document_id][queues[provider]] += lanes
    return [
        Due(key, stage, {queue: min(count, limits[queue]) for queue, count in wanted.get(key, {}).items()})
        for key, stage in by_id.items()
        if stage is not Stage.CONVERT or wanted[key]
    ]


def _due_pages(provider: str, most: int, now: datetime) -> ScalarSelect[int]:
    """Return a subquery that counts a document's due pages, up to `most`."""
    is_due = (PAGES.c.document_id == DOCUMENTS.c.id, PAGES.c.provider == provider, CONVERT.due(now))
    due_ids = select(PAGES.c.id).where(*is_due).limit(most).correlate(DOCUMENTS).subquery()
    return select(func.count()).select_from(due_ids).scalar_subquery()


def _lanes_at_work(context: Context, document_ids: Sequence[str]) -> Sequence[Any]:
    """Return (document id, provider, number of lanes that hold its pages now). `stages` adds them to the lanes for due
    pages."""
    if not document_ids:
        return []
    query = (
        select(PAGES.c.document_id, PAGES.c.provider, func.count(PAGES.c.claim_id.distinct()))
        .where(PAGES.c.document_id.in_(document_ids), CONVERT.working)
        .group_by(PAGES.c.document_id, PAGES.c.provider)
    )
    with context.db.read() as session:
        return session.execute(query).all()


def runnable(context: Context, closed_queues: Collection[str]) -> Iterator[str]:
    """Yield the id of every document with due work, oldest first; skip those whose pages all wait for closed queues."""
    named = providers(context.settings)
    served = [provider for provider in named if queue_of(converter_of(context, provider)) not in closed_queues]
    after: tuple[datetime, str] | None = None
    while True:
        now = context.db.now()
        pages = select(PAGES.c.id).where(
            PAGES.c.document_id == DOCUMENTS.c.id, CONVERT.due(now), PAGES.c.provider.in_(served)
        )
        waits = or_(
            and_(DOCUMENTS.c.status == DocumentStatus.PROCESSING, pages.exists()), SPLIT.due(now), MERGE.due(now)
        )
        query = select(DOCUMENTS.c.created_at, DOCUMENTS.c.id).where(in_states(DOCUMENTS, OPEN), waits)
        if after is not None:
            query = query.where(tuple_(DOCUMENTS.c.created_at, DOCUMENTS.c.id) > tuple_(*after))
        with context.db.read() as session:
            rows = session.execute(query.order_by(DOCUMENTS.c.created_at, DOCUMENTS.c.id).limit(PORTION)).all()
        yield from (row.id for row in rows)
        if len(rows) < PORTION:
            return
        after = (rows[-1].created_at, rows[-1].id)


def due(context: Context) -> list[str]:
    """Return the ids of PROCESSING documents with pages whose wait before a retry is over, the longest over first;
    reads up to `PORTION` pages."""
    # No DISTINCT: with it SQLite uses the index of documents, and reads all claimable pages.
    query = (
        select(PAGES.c.document_id)
        .where(CONVERT.waits(PAGES.c.next_run_at <= context.db.now()), _is_processing())
        .order_by(PAGES.c.next_run_at)
        .limit(PORTION)
    )
    with context.db.read() as session:
        return list(dict.fromkeys(session.execute(query).scalars()))


def next_wait_s(context: Context) -> float | None:
    """Return the seconds until the next page is due for its retry; None if no page waits. Ignores pages that are due
    already."""
    with context.db.read() as session:
        return work.next_due(session, CONVERT, _is_processing())


def _is_processing() -> ColumnElement[bool]:
    """Return the condition that the page's document is PROCESSING."""
    processing = DOCUMENTS.c.status == DocumentStatus.PROCESSING
    return select(DOCUMENTS.c.id).where(DOCUMENTS.c.id == PAGES.c.document_id, processing).exists()
