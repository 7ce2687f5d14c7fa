"""Frequent queries read few rows, even in a base with many items."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import event, insert, text

from pipeline.flows.knowledge import plan, queries
from pipeline.flows.knowledge.flow import FLOW
from pipeline.flows.knowledge.models import BASES, ITEMS
from pipeline.flows.knowledge.states import LINE, ItemStatus
from pipeline.flows.knowledge.work import admission
from pipeline.storage.context import Context
from tests.support.knowledge_driver import Driver

pytestmark = pytest.mark.both_databases

ITEMS_OF_BASE, IN_LINE = 3000, 300
FEW = ("_claimed", "_next_run_at", "_claimable", "_line", "_admitted", "_deleting", "(id=?)", "(item_id=?", "id>?")
"""Indexes of few rows: held, waiting or named rows."""


@contextmanager
def _asked(context: Context) -> Iterator[list[tuple[str, Any]]]:
    statements: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "knowledge_items" in statement and not statement.startswith(("INSERT", "EXPLAIN")):
            statements.append((statement, parameters))

    event.listen(context.db.engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(context.db.engine, "before_cursor_execute", note)


def _fill(context: Context, base_id: str) -> None:
    now = context.db.now()
    rows = [
        {
            "id": uuid4().hex[:16],
            "base_id": base_id,
            "position": at,
            "type": "note",
            "name": "n",
            "status": ItemStatus.COMPLETED if at < ITEMS_OF_BASE - IN_LINE else ItemStatus.PENDING,
            "source_key": str(at),
            "deleting": False,
            "created_at": now,
            "updated_at": now,
            "attempts": 0,
        }
        for at in range(ITEMS_OF_BASE)
    ]
    with context.db.transaction() as session:
        session.execute(insert(ITEMS), rows)
        session.execute(BASES.update().values(next_position=ITEMS_OF_BASE + 1))
    with context.db.engine.begin() as connection:
        connection.execute(text("ANALYZE"))


def _is_of_few(statement: str) -> bool:
    """Whether the plan ends at the first row, or reads items under way, which `global_concurrency` limits."""
    under_way = "IN ('pending')" not in statement and ("'embedding'" in statement or "knowledge_batches" in statement)
    is_any = "LIMIT" in statement and "ORDER BY" not in statement
    return statement.startswith("SELECT (EXISTS") or is_any or under_way


def test_frequent_queries_read_few_items(context: Context, driver: Driver, base: str) -> None:
    _fill(context, base)
    if not context.db.is_sqlite:
        pytest.skip("PostgreSQL decides by how much there is")
    with _asked(context) as statements:
        first = admission.admit(context)
        plan.due_steps(context, [LINE, *first])
        plan.due(context)
        plan.next_wait_s(context)
        list(plan.runnable(context, ()))
        FLOW.is_at_rest(context)
        FLOW.holders(context)
        FLOW.free_lost(context, {"gone"})
        queries.standings(context, first)
        driver.read(first[0])
        driver.embed(first[0])
        driver.write(first[0])
    slow = set()
    with context.db.engine.connect() as connection:
        for statement, parameters in statements:
            for step in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters):
                line = str(step[3])
                few = any(name in line for name in FEW) or _is_of_few(statement)
                if "knowledge_items" in line and not few:
                    slow.add(f"{line}\n    {' '.join(statement.split())}")
    assert statements
    assert not slow, "\n".join(sorted(slow))
