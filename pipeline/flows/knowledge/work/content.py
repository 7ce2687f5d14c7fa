"""PENDING → PREPROCESSING → EMBEDDING: reads and chunks an item's content, and stores the chunks in batches."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import and_, delete, insert, select, update
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from pipeline.engine import accounts, losses, work
from pipeline.engine.accounts import Part
from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, PenstockError, UnitError
from pipeline.engine.settled import Settled
from pipeline.engine.tables import portions, storable
from pipeline.engine.transaction import Tx
from pipeline.engine.work import Changes, Outcome, Work
from pipeline.flows.knowledge import files, live_settings
from pipeline.flows.knowledge.models import BASES, BATCHES, CHUNKS, ITEMS, MAX_NAME
from pipeline.flows.knowledge.rules.passage import digest_of, embedded_text, grouped
from pipeline.flows.knowledge.rules.progress import read_progress
from pipeline.flows.knowledge.rules.workload import workload
from pipeline.flows.knowledge.settings import KnowledgeSettings, own
from pipeline.flows.knowledge.states import (
    FLOW,
    ITEM,
    MOSTLY_MISSING,
    BatchStatus,
    ItemEvent,
    ItemStatus,
    ItemType,
    Loss,
)
from pipeline.flows.knowledge.work import item as items
from pipeline.flows.knowledge.work.known import forget, known_vectors
from pipeline.providers import call_cost, registry
from pipeline.reading.files.user_file import passes
from pipeline.reading.sandbox.limits import FetchLimits, Limits, SitemapLimits, Unwanted, refused
from pipeline.reading.text import text_files
from pipeline.reading.text.chunks import Chunk, split
from pipeline.reading.text.sections import Reading
from pipeline.settings import ReadingSettings
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
PORTION = 1000
"""Chunks stored in one transaction."""
MAX_WARNING = 2000
CHECK_S = 0.5
REPORT_S = 0.3
"""Seconds between two reports of progress: docs/sources/knowledge.md#status-updates."""

READ = Work(
    "read",
    ITEMS,
    ITEM,
    claim=ItemEvent.READ,
    done=ItemEvent.CHUNK,
    fail=ItemEvent.FAIL,
    wait=ItemEvent.REQUEUE_READ,
    give_back=ItemEvent.REQUEUE_READ,
    scope=ITEMS.c.id,
    lock=items.lock,
    order=(ITEMS.c.position,),
    policy=items.read_policy,
    lease_s=items.read_lease_s,
    lost="the worker was lost while it read this",
    # An item whose source fails for a moment leaves its place to others, however long a server asks it to wait.
    after=lambda tx, row, changes: items.make_room(tx, row, changes, ended=bool(changes.failed or changes.waiting)),
    where=(ITEMS.c.admitted_at.is_not(None),),
)
"""Reading an item, which is retried after a lost worker and errors that may pass: docs/sources/knowledge.md#retries."""


class ClaimLost(PenstockError):
    """The item was cancelled or deleted, or another worker claimed it: discard the work."""


class Checkpoint:
    """The checkpoint of a reading: checks its claim every `CHECK_S`, and reports progress at most every `REPORT_S`."""

    def __init__(self, context: Context, row: Any) -> None:
        self._context, self._weight = context, own(context.settings).read_weight
        self._held = and_(ITEMS.c.id == row.id, ITEMS.c.claim_id == row.claim_id)
        self._wanted = True
        self._checked_at = self._reported_at = time.monotonic()
        self._reported = 0

    def wanted(self) -> bool:
        """Whether the claim still holds, checked every `CHECK_S`; True if the database does not answer.

        A cancellation, a deletion or another worker's claim ends it.
        """
        now = time.monotonic()
        if self._wanted and now - self._checked_at >= CHECK_S:
            self._checked_at = now
            query = select(ITEMS.c.id).where(self._held, ITEMS.c.deleting.is_(False))
            try:
                with self._context.db.read() as session:
                    self._wanted = session.execute(query).first() is not None
            except SQLAlchemyError:
                return True  # unknown, but storing the text checks the claim again
        return self._wanted

    def read(self, fraction: float) -> None:
        """Write to the row how much of the item is read, 0 to 1. The row's progress never decreases."""
        now, percent = time.monotonic(), read_progress(self._weight, fraction)
        if percent <= self._reported or now - self._reported_at < REPORT_S:
            return
        self._reported, self._reported_at = percent, now
        further = update(ITEMS).where(self._held, ITEMS.c.progress < percent).values(progress=percent)
        try:
            self._context.db.run(lambda tx: tx.execute(further), patience_s=1)
        except SQLAlchemyError:
            return  # the next report will do


@dataclass(frozen=True)
class Claimed:
    """A claimed item, and its base when it was claimed: later changes of the base do not affect this reading."""

    row: Any
    base: Any
    checkpoint: Checkpoint


def read(context: Context, item_id: str, owner: Owner) -> Settled:
    """Read and chunk the item if that is due, and store the chunks. Failures go to the row."""
    claimed = context.db.run(lambda tx: _claim(tx, context, item_id, owner))
    if claimed is None:
        return Settled()
    try:
        _store(context, claimed, _content(context, claimed))
    except (Unwanted, ClaimLost):
        log.info("item.discarded", item=item_id)
        return Settled()
    except Exception as error:  # noqa: BLE001  # any failure must reach the row
        return _fail(context, claimed, error)
    log.info("item.chunked", item=item_id, base=claimed.row.base_id)
    return Settled(1, status=ItemStatus.EMBEDDING)


def _claim(tx: Tx, context: Context, item_id: str, owner: Owner) -> Claimed | None:
    item = items.lock(tx, item_id)
    if item is None:
        return None
    # Each reading builds its own generation, so that leftovers of a lost reading are recognisable.
    row = work.claim_next(tx, READ, item, owner, building=item.building + 1, started_at=tx.now)
    base = tx.execute(select(BASES).where(BASES.c.id == item.base_id)).one_or_none()
    return Claimed(row, base, Checkpoint(context, row)) if row and base else None


def _content(context: Context, claimed: Claimed) -> Reading:
    row, checkpoint, section = claimed.row, claimed.checkpoint, own(context.settings)
    limits = limits_of(section, context.settings.reading)
    if row.type in {ItemType.URL, ItemType.SITEMAP}:
        from pipeline.reading.web import websites  # noqa: PLC0415  # a client of HTTP

        fetch = websites.read_url if row.type == ItemType.URL else websites.read_sitemap
        networks = section.allow_private_addresses or False
        reading = fetch(row.url, limits, checkpoint.wanted, checkpoint.read, allow_private=networks)
        if row.type == ItemType.SITEMAP and row.loss != Loss.ACCEPTED:
            _check_loss(context, row, reading)
        return reading
    path = files.stored_path(context.settings, row.id, row.content_sha256)
    try:
        path.stat()
    except FileNotFoundError as error:
        message = "the stored copy of this file is missing: delete the item, and add the file again"
        raise refused(message, "missing_file") from error
    return text_files.read_file(path, row.name, limits, checkpoint.wanted, checkpoint.read)


def _check_loss(context: Context, row: Any, reading: Reading) -> None:
    """Raise `UnitError` (permanent) if the searchable pages that this reading of a sitemap lacks are a doubtful
    loss."""
    pages = select(CHUNKS.c.source).where(CHUNKS.c.item_id == row.id, CHUNKS.c.generation == row.generation)
    with context.db.read() as session:
        known = set(session.execute(pages.distinct()).scalars())
    missing = known - {section.source for section in reading.sections}
    if why := losses.doubt(len(known), len(missing), "pages", "the text that was read before stays"):
        raise refused(f"{why} Read it again with `--yes` if they are really gone", MOSTLY_MISSING)


def limits_of(section: KnowledgeSettings, reading: ReadingSettings) -> Limits:
    """Return the settings' limits of reading."""
    return Limits(
        max_bytes=section.max_file_mb * 1_000_000,
        max_chars=section.max_chars,
        timeout_s=section.read_timeout_s,
        memory_mb=section.read_memory_mb,
        layout=reading.layout,
        fetch=FetchLimits(max_bytes=section.fetch_mb * 1_000_000, timeout_s=section.fetch_timeout_s),
        sitemap=SitemapLimits(max_pages=section.sitemap_pages, timeout_s=section.sitemap_timeout_s),
    )


def _store(context: Context, claimed: Claimed, reading: Reading) -> None:
    """Split the text, and store its chunks and batches. Raises `ClaimLost`, `Unwanted` while splitting, `UnitError` for
    an empty text or bad chunk sizes, `UserError` for an unusable provider."""
    row, base = claimed.row, claimed.base
    chunks = split(reading, base.chunk_tokens, base.chunk_overlap, claimed.checkpoint.wanted)
    if not chunks:
        raise refused("no text was found in it", "empty")
    maker = registry.embeddings(context.settings, base.provider, base.model)
    space = f"{maker.name}:{maker.model}"[:200]
    digests = [digest_of(embedded_text(chunk.heading, chunk.text)) for chunk in chunks]
    with context.db.read() as session:
        known = known_vectors(session, row, space, set(digests))
    groups = grouped(digests, known, live_settings.in_force(context).batch_size)
    rows = _chunk_rows(context, row, chunks, digests, groups.batch_of)
    for portion in portions(rows, PORTION):
        _under_claim(context, claimed, lambda tx, portion=portion: tx.execute(insert(CHUNKS), portion))  # type: ignore[misc]
    batches = _batch_rows(context, row, base.provider, groups.sizes, groups.known)
    for at in range(groups.known):
        of_batch = [digest for digest, number in zip(digests, groups.batch_of, strict=True) if number == at]
        batches[at]["vectors"] = b"".join(known[digest] for digest in of_batch)
    missing = len(groups.sizes) - groups.known
    values = {
        "title": storable(reading.title)[:MAX_NAME] or row.name,
        "space": space,
        "chunk_count": len(chunks),
        "batches": len(batches),
        "batches_left": missing,
        "attempts": 0,
        "progress": read_progress(own(context.settings).read_weight, 1.0),
        "warning": storable("; ".join(reading.warnings))[:MAX_WARNING] or None,
        "workload": workload(row.size_bytes, len(reading.text)),
        "loss": None,
    }

    characters = sum(len(chunk.text) for chunk, digest in zip(chunks, digests, strict=True) if digest not in known)
    each = call_cost.of_text(context.settings, base.provider, base.model, characters) / max(1, missing)

    def settle(tx: Tx) -> None:
        accounts.revise(tx, FLOW, row.id, [Part(missing, each)])
        _forget_drafts(tx, row)
        for portion in portions(batches, 50):
            tx.execute(insert(BATCHES), portion)
        if not work.settle(tx, READ, row, Outcome(row, values=values)):
            raise ClaimLost

    _under_claim(context, claimed, settle)


def _under_claim(context: Context, claimed: Claimed, act: Callable[[Tx], object]) -> None:
    """Run `act` in one transaction under the item's lock. Raises `ClaimLost`."""

    def run(tx: Tx) -> None:
        row = items.lock(tx, claimed.row.id)
        if row is None or row.claim_id != claimed.row.claim_id:
            raise ClaimLost
        act(tx)

    context.db.run(run)


def _forget_drafts(session: Session, row: Any) -> None:
    """Delete the chunks and batches of earlier, unpublished readings."""
    others = CHUNKS.c.generation.not_in([row.generation, row.building])
    # Delete vectors too, since the publication of a large item may have stopped halfway.
    forget(session, row.base_id, and_(CHUNKS.c.item_id == row.id, others))
    session.execute(delete(BATCHES).where(BATCHES.c.item_id == row.id))


def _chunk_rows(
    context: Context, row: Any, chunks: Sequence[Chunk], digests: Sequence[str], batch_of: Sequence[int]
) -> list[dict[str, Any]]:
    now = context.db.now()
    return [
        {
            "item_id": row.id,
            "base_id": row.base_id,
            "generation": row.building,
            "number": number,
            "batch": batch,
            "text": storable(chunk.text),
            "heading": storable(json.dumps(list(chunk.heading), ensure_ascii=False)),
            "page": chunk.page,
            "source": chunk.source or None,
            "start": chunk.start,
            "end": chunk.end,
            "digest": digest,
            "created_at": now,
        }
        for number, (chunk, digest, batch) in enumerate(zip(chunks, digests, batch_of, strict=True))
    ]


def _batch_rows(context: Context, row: Any, provider: str, sizes: Sequence[int], known: int) -> list[dict[str, Any]]:
    now = context.db.now()
    return [
        {
            "item_id": row.id,
            "generation": row.building,
            "number": number,
            "size": size,
            "provider": provider,
            "status": BatchStatus.DONE if number < known else BatchStatus.PENDING,
            "vectors": None,
            "attempts": 0,
            "updated_at": now,
        }
        for number, size in enumerate(sizes)
    ]


def _fail(context: Context, claimed: Claimed, raised: Exception) -> Settled:
    error = _as_unit_error(claimed.row.name, raised)
    log.warning("item.not_read", item=claimed.row.id, code=error.code, error=str(error), exc_info=_defect(raised))

    def act(tx: Tx) -> Changes:
        row = items.lock(tx, claimed.row.id)
        values = {"loss": Loss.DOUBTFUL} if error.code == MOSTLY_MISSING else {}
        return work.settle(tx, READ, row, Outcome(claimed.row, error, values=values)) if row else Changes()

    changes = context.db.run(act)
    return Settled(retry_in_s=changes.retry_in_s, status=ItemStatus.FAILED if changes.failed else None)


def _as_unit_error(name: str, raised: Exception) -> UnitError:
    """Return the error of a reading: transient if the source or the database may be in order later."""
    if passes(raised):
        return UnitError(f"{name} cannot be read at the moment: {raised}", code="io_error")
    kind = ErrorKind.TRANSIENT if isinstance(raised, (OperationalError, PoolTimeout)) else ErrorKind.PERMANENT
    return items.as_unit_error(raised, lambda text: UnitError(text, kind=kind))


def _defect(raised: Exception) -> Exception | None:
    """Return an unexpected error, whose trace the log shows; None for an expected one."""
    return None if isinstance(raised, PenstockError) or passes(raised) else raised
