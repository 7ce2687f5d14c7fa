"""The checker finds each kind of inconsistency, so that its silence proves soundness."""

import pytest
from sqlalchemy import delete, insert, update

from pipeline.flows.knowledge import check as checking
from pipeline.flows.knowledge.models import BATCHES, CHUNKS, FULL_TEXT, ITEMS
from pipeline.storage import vectors
from pipeline.storage.context import Context
from pipeline.storage.fulltext import Text
from pipeline.storage.vectors.models import CODES, VECTORS
from tests.support.knowledge_driver import Driver, long_text


def problems(context: Context) -> dict[str, int]:
    return {name: count for name, count in vars(checking.check(context)).items() if count}


@pytest.fixture
def item_id(driver: Driver, base: str) -> str:
    return driver.completed(base, long_text("note", 3))


def test_sound_tables_yield_no_findings(context: Context, item_id: str) -> None:
    assert problems(context) == {}
    assert checking.check(context).sound


def test_each_orphan_is_found(context: Context, driver: Driver, item_id: str, base: str) -> None:
    first, second, third = (row.id for row in driver.rows(CHUNKS, item_id))
    kind = f"kb:{base}"
    with context.db.transaction() as session:
        vectors.upsert(session, kind, "emb:embedder", [(9001, [1.0, 2.0])])
    assert problems(context) == {"vectors_without_chunk": 1}
    with context.db.transaction() as session:
        session.execute(delete(VECTORS).where(VECTORS.c.item_id == 9001))
    assert problems(context) == {"codes_without_vector": 1}
    with context.db.transaction() as session:
        session.execute(delete(CODES).where(CODES.c.item_id == 9001))
    assert problems(context) == {}
    if context.db.is_sqlite:  # PostgreSQL has a foreign key instead
        with context.db.transaction() as session:
            FULL_TEXT.put(session, [Text(9002, head="h", apps=base, body="b")])
        assert problems(context) == {"texts_without_chunk": 1}
    with context.db.transaction() as session:
        FULL_TEXT.remove(session, [9002, first])
        vectors.remove(session, kind, [second])
    assert problems(context) == {"published_without_text": 1, "published_without_vector": 1}
    with context.db.transaction() as session:
        FULL_TEXT.put(session, [Text(first, head="h", apps=base, body="b")])
        vectors.upsert(session, kind, "another:model", [(second, [1.0] * 8)])
    assert problems(context) == {"published_without_vector": 1}, "a vector of another model does not count"
    with context.db.transaction() as session:
        vectors.upsert(session, kind, "emb:embedder", [(second, [1.0] * 8)])
        session.execute(delete(CODES).where(CODES.c.kind == kind, CODES.c.item_id == third))
    assert problems(context) == {"vectors_without_code": 1}
    with context.db.transaction() as session:
        vectors.upsert(session, kind, "emb:embedder", [(third, [1.0] * 8)])
        session.execute(update(CHUNKS).where(CHUNKS.c.id == third).values(generation=9))
    assert problems(context) == {"drafts_of_completed": 1, "completed_with_other_count": 1}


def test_leftovers_of_ended_items_are_found(context: Context, driver: Driver, item_id: str) -> None:
    now = context.db.now()
    driver.change(item_id, admitted_at=now)
    assert problems(context) == {"admitted_at_rest": 1}
    row = {
        "item_id": item_id,
        "generation": 1,
        "number": 0,
        "size": 1,
        "status": "done",
        "provider": "emb",
        "attempts": 0,
        "updated_at": now,
    }
    with context.db.transaction() as session:
        session.execute(update(ITEMS).values(admitted_at=None))
        session.execute(insert(BATCHES).values(**row))
    assert problems(context) == {"batches_of_completed": 1}
