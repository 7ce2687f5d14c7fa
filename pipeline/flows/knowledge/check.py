"""Checks the tables for leftovers: chunks, vectors and indexed texts without their item."""

from dataclasses import dataclass

from sqlalchemy import text

from pipeline.storage.context import Context

_PUBLISHED = "knowledge_chunks c JOIN knowledge_items i ON i.id = c.item_id AND i.generation = c.generation"
_QUERIES = {
    "chunks_without_item": "knowledge_chunks c WHERE NOT EXISTS (SELECT 1 FROM knowledge_items WHERE id = c.item_id)",
    "vectors_without_chunk": (
        "vectors v WHERE v.kind LIKE 'kb:%' AND NOT EXISTS "
        "(SELECT 1 FROM knowledge_chunks c WHERE c.id = v.item_id AND v.kind = 'kb:' || c.base_id)"
    ),
    "codes_without_vector": (
        "vector_codes v WHERE v.kind LIKE 'kb:%' AND NOT EXISTS "
        "(SELECT 1 FROM vectors w WHERE w.kind = v.kind AND w.item_id = v.item_id)"
    ),
    "vectors_without_code": (
        "vectors v WHERE v.kind LIKE 'kb:%' AND NOT EXISTS "
        "(SELECT 1 FROM vector_codes w WHERE w.kind = v.kind AND w.item_id = v.item_id)"
    ),
    "texts_without_chunk": "knowledge_fts f WHERE NOT EXISTS (SELECT 1 FROM knowledge_chunks WHERE id = f.rowid)",
    "published_without_vector": (
        f"{_PUBLISHED} WHERE NOT EXISTS (SELECT 1 FROM vectors WHERE kind = 'kb:' || c.base_id AND item_id = c.id "  # noqa: S608  # ours
        "AND model = i.published_space)"
    ),
    "published_without_text": (
        f"{_PUBLISHED} WHERE NOT EXISTS (SELECT 1 FROM knowledge_fts f WHERE f.rowid = c.id)"  # noqa: S608  # ours
    ),
    "completed_with_other_count": (
        "knowledge_items i WHERE i.status = 'completed' AND NOT i.deleting AND i.chunk_count <> "
        "(SELECT COUNT(*) FROM knowledge_chunks c WHERE c.item_id = i.id AND c.generation = i.generation)"
    ),
    "drafts_of_completed": (
        "knowledge_chunks c JOIN knowledge_items i ON i.id = c.item_id "
        "WHERE i.status = 'completed' AND i.generation <> c.generation"
    ),
    "batches_of_completed": (
        "knowledge_batches b JOIN knowledge_items i ON i.id = b.item_id WHERE i.status = 'completed'"
    ),
    "admitted_at_rest": "knowledge_items WHERE admitted_at IS NOT NULL AND status IN ('completed', 'failed')",
}


@dataclass(frozen=True)
class Report:
    """Counts of inconsistent rows by kind; the tables are sound if all are zero."""

    chunks_without_item: int
    vectors_without_chunk: int
    codes_without_vector: int
    vectors_without_code: int
    texts_without_chunk: int
    published_without_vector: int
    published_without_text: int
    completed_with_other_count: int
    drafts_of_completed: int
    batches_of_completed: int
    admitted_at_rest: int

    @property
    def sound(self) -> bool:
        return not any(vars(self).values())


def check(context: Context) -> Report:
    """Return the counts of inconsistent rows over all bases, by kind; repairs none. Reads whole tables."""
    with context.db.read() as session:
        return Report(
            **{
                name: int(session.execute(text(f"SELECT COUNT(*) FROM {query}")).scalar_one())  # noqa: S608  # ours
                for name, query in _QUERIES.items()
            }
        )
