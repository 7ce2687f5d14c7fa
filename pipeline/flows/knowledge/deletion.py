"""Removes deleted items with their rows, vectors, index and files, and files without a row. Safe to repeat at any
point."""

import time
from contextlib import suppress

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from pipeline.engine import announced, kept_answers, traces
from pipeline.engine.tables import portions
from pipeline.engine.traces import AiCall
from pipeline.flows.knowledge import files
from pipeline.flows.knowledge.models import BASES, BATCHES, CHUNKS, ITEMS
from pipeline.flows.knowledge.states import FLOW
from pipeline.flows.knowledge.work.known import forget
from pipeline.storage import installation
from pipeline.storage.context import Context

QUANTUM_S = 2.0
_PORTION = 1000


def remove(context: Context, base_id: str) -> bool:
    """Remove the base's deleted items, then the base itself if it is deleted. Return True if `QUANTUM_S` ended before
    the work: call again."""
    until = time.monotonic() + QUANTUM_S
    delete_base = delete(BASES).where(BASES.c.id == base_id, BASES.c.deleting.is_(True))
    query = select(ITEMS.c.id).where(ITEMS.c.base_id == base_id, ITEMS.c.deleting.is_(True)).limit(100)
    while True:
        with context.db.read() as session:
            ids = session.execute(query).scalars().all()
        for item_id in ids:
            while context.db.run(lambda tx, item_id=item_id: _chunks(tx, base_id, item_id)):  # type: ignore[misc]
                pass
            context.db.run(lambda tx, item_id=item_id: _item(tx, item_id))  # type: ignore[misc]
            files.remove(context.settings, item_id)
            kept_answers.erase(context.settings.answer_dir, FLOW, item_id)
            if time.monotonic() > until:
                return True
        if not ids:
            context.db.run(lambda tx: tx.execute(delete_base))
            return False


def _chunks(session: Session, base_id: str, item_id: str) -> int:
    """Remove up to `_PORTION` of the item's chunks, and return how many."""
    portion = select(CHUNKS.c.id).where(CHUNKS.c.item_id == item_id).limit(_PORTION)
    ids = session.execute(portion).scalars().all()
    if ids:
        forget(session, base_id, CHUNKS.c.id.in_(ids))
    return len(ids)


def _item(session: Session, item_id: str) -> None:
    session.execute(delete(BATCHES).where(BATCHES.c.item_id == item_id))
    session.execute(delete(ITEMS).where(ITEMS.c.id == item_id))
    announced.note(session, ITEMS, [item_id])
    traces.erase(session, AiCall.flow == FLOW, AiCall.scope_id == item_id)


def remove_orphans(context: Context) -> int:
    """Remove old stored files that no row owns, and return how many. A process that is killed between storing a
    file and writing its row leaves one. Removes none if the data folder belongs to another database."""
    root, removed = files.root(context.settings), 0
    if not root.is_dir() or not installation.belong_together(context):
        return 0
    before = time.time() - context.settings.documents.stale_temp_s
    for portion in portions(root.iterdir()):
        with context.db.read() as session:
            query = select(ITEMS.c.id).where(ITEMS.c.id.in_([entry.name for entry in portion]))
            known = set(session.execute(query).scalars())
        for entry in portion:
            with suppress(FileNotFoundError):
                if entry.name not in known and entry.lstat().st_mtime < before:
                    files.discard(entry)
                    removed += 1
    return removed
