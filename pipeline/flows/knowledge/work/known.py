"""Chunks of earlier readings: unchanged ones keep their paid vectors, and the others are deleted."""

from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from pipeline.engine.tables import portions
from pipeline.flows.knowledge.models import BATCHES, CHUNKS, FULL_TEXT
from pipeline.flows.knowledge.states import BatchStatus
from pipeline.storage import vectors


def kind_of(base_id: str) -> str:
    """Return the kind under which a base's vectors are stored."""
    return f"kb:{base_id}"


def known_vectors(session: Session, row: Any, space: str, digests: set[str]) -> dict[str, bytes]:
    """Return vectors (little-endian float32) by digest, for those of these digests that have one in `space`: published
    ones, and those of a reading that later failed or was cancelled. Empty if their lengths differ.

    `row`: the item's row before this reading.
    """
    by_digest: dict[str, bytes] = {}
    chunks = select(CHUNKS.c.id, CHUNKS.c.digest).where(CHUNKS.c.item_id == row.id)
    if row.generation and row.published_space == space:
        published = chunks.where(CHUNKS.c.generation == row.generation)
        ids: dict[int, str] = dict(session.execute(published).all())
        wanted = [chunk_id for chunk_id, digest in ids.items() if digest in digests]
        for chunk_id, data in vectors.stored(session, kind_of(row.base_id), space, wanted):
            by_digest[ids[chunk_id]] = data
    if row.space == space:
        drafts = select(BATCHES).where(BATCHES.c.item_id == row.id, BATCHES.c.status == BatchStatus.DONE)
        for batch in session.execute(drafts):
            of_batch = (CHUNKS.c.generation == batch.generation, CHUNKS.c.batch == batch.number)
            members = (
                session.execute(
                    select(CHUNKS.c.digest).where(CHUNKS.c.item_id == row.id, *of_batch).order_by(CHUNKS.c.number)
                )
                .scalars()
                .all()
            )
            if batch.vectors and len(members) == batch.size:
                each = vectors.unpack(batch.vectors, batch.size)
                by_digest |= {digest: each[at].tobytes() for at, digest in enumerate(members) if digest in digests}
    lengths = {len(data) for data in by_digest.values()}
    return by_digest if len(lengths) == 1 else {}


def forget(session: Session, base_id: str, which: Any) -> None:
    """Delete chunks with their vectors and their full text."""
    ids = list(session.execute(select(CHUNKS.c.id).where(which)).scalars())
    vectors.remove(session, kind_of(base_id), ids)
    FULL_TEXT.remove(session, ids)
    for portion in portions(ids):
        session.execute(delete(CHUNKS).where(CHUNKS.c.id.in_(portion)))
