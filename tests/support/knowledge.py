"""Bases, items and batches as rows."""

from typing import Any
from uuid import uuid4

from sqlalchemy import insert, update
from sqlalchemy.orm import Session

from pipeline.flows.knowledge import service
from pipeline.flows.knowledge.models import BATCHES, CHUNKS, ITEMS
from pipeline.flows.knowledge.states import BatchStatus, ItemStatus, ItemType
from pipeline.settings import LOCAL
from pipeline.storage.context import Context


def add_base(context: Context, name: str = "base", **options: Any) -> str:
    """Insert a base, and return its id."""
    return service.create_base(context, name, **options).id


def add_item(context: Context, base_id: str, status: ItemStatus = ItemStatus.PENDING, **columns: Any) -> str:
    """Insert an item without a file, and return its id."""
    now, item_id = context.db.now(), uuid4().hex[:16]
    row: dict[str, Any] = {
        "id": item_id,
        "base_id": base_id,
        "position": 1,
        "type": ItemType.NOTE,
        "status": status,
        "name": "note.md",
        "source_key": item_id,
        "title": "",
        "size_bytes": 0,
        "workload": 1,
        "progress": 0,
        "generation": 0,
        "building": 0,
        "space": "local:lexical",
        "published_space": "",
        "chunk_count": 0,
        "batches": 0,
        "batches_left": 0,
        "deleting": False,
        "attempts": 0,
        "created_at": now,
        "updated_at": now,
        **columns,
    }
    context.db.run(lambda session: session.execute(insert(ITEMS).values(**row)))
    return item_id


def add_batches(context: Context, item_id: str, count: int, provider: str = LOCAL) -> None:
    """Insert batches of one chunk each that wait for their embedding."""
    now = context.db.now()

    def act(session: Session) -> None:
        for number in range(count):
            session.execute(
                insert(BATCHES).values(
                    item_id=item_id,
                    generation=1,
                    number=number,
                    size=1,
                    status=BatchStatus.PENDING,
                    provider=provider,
                    attempts=0,
                    updated_at=now,
                )
            )
            session.execute(
                insert(CHUNKS).values(
                    item_id=item_id,
                    base_id="",
                    generation=1,
                    number=number,
                    batch=number,
                    text=f"text {number}",
                    heading="[]",
                    start=0,
                    end=1,
                    digest=str(number),
                    created_at=now,
                )
            )
        session.execute(
            update(ITEMS).where(ITEMS.c.id == item_id).values(batches=count, batches_left=count, building=1)
        )

    context.db.run(act)
