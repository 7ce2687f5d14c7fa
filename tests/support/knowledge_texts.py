"""Items with published chunks, as reading and embedding leave them."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import insert, select

from pipeline.engine.transaction import Tx
from pipeline.flows.knowledge.models import CHUNKS, FULL_TEXT
from pipeline.flows.knowledge.states import ItemStatus
from pipeline.flows.knowledge.work.known import kind_of
from pipeline.providers.lexical import LexicalEmbeddings
from pipeline.storage import vectors
from pipeline.storage.context import Context
from pipeline.storage.fulltext import Text
from tests.support.knowledge import add_item

LEXICAL = f"{LexicalEmbeddings.name}:{LexicalEmbeddings.model}"
Vectors = Callable[[Sequence[str]], Sequence[Sequence[float]]]


def lexical(texts: Sequence[str]) -> list[list[float]]:
    return LexicalEmbeddings().embed(texts).vectors


def publish(
    context: Context,
    base_id: str,
    texts: Sequence[str],
    *,
    heading: Sequence[str] = (),
    space: str = LEXICAL,
    embed: Vectors = lexical,
    **columns: Any,
) -> str:
    """Insert a completed item with these searchable chunks, and return its id."""
    item = {"generation": 1, "building": 1, "space": space, "published_space": space, "chunk_count": len(texts)}
    item_id = add_item(context, base_id, ItemStatus.COMPLETED, **(item | columns))
    title = str(columns.get("title", ""))
    context.db.run(
        lambda session: add_chunks(session, context, base_id, item_id, 1, texts, heading, space, embed, title)
    )
    return item_id


def add_chunks(
    session: Tx,
    context: Context,
    base_id: str,
    item_id: str,
    generation: int,
    texts: Sequence[str],
    heading: Sequence[str] = (),
    space: str = LEXICAL,
    embed: Vectors = lexical,
    title: str = "",
) -> None:
    """Insert chunks of a generation with their vectors and full text."""
    now, start = context.db.now(), 0
    for number, text in enumerate(texts):
        session.execute(
            insert(CHUNKS).values(
                item_id=item_id,
                base_id=base_id,
                generation=generation,
                number=number,
                batch=0,
                text=text,
                heading=json.dumps(heading),
                page=number + 1,
                start=start,
                end=start + len(text),
                digest=str(number),
                created_at=now,
            )
        )
        start += len(text) + 2
    chunk_ids = select(CHUNKS.c.id).where(CHUNKS.c.item_id == item_id, CHUNKS.c.generation == generation)
    ids = session.execute(chunk_ids.order_by(CHUNKS.c.number)).scalars().all()
    head = " ".join([title, *heading])
    FULL_TEXT.put(session, [Text(chunk_id, head, base_id, text) for chunk_id, text in zip(ids, texts, strict=True)])
    vectors.upsert(session, kind_of(base_id), space, list(zip(ids, embed(texts), strict=True)))
