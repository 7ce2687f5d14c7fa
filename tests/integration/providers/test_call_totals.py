"""Figures of calls only grow: each call counts exactly once, before and after it is summed and deleted."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, event, func, insert, select

from pipeline.engine.traces import AiCall
from pipeline.providers import call_totals, calls
from pipeline.providers.call_totals import CURSOR, Total, advance, totals
from pipeline.storage.context import Context
from tests.support.calls import call_row

pytestmark = pytest.mark.both_databases

OLD = timedelta(days=100)


def record(context: Context, count: int, *, age: timedelta = timedelta(0), **values: Any) -> None:
    rows = [call_row("p", context.db.now() - age, **values)] * count
    context.db.run(lambda session: session.execute(insert(AiCall), rows))


def count(context: Context) -> int:
    return sum(row.calls for row in totals(context))


def counted_to(context: Context) -> int:
    with context.db.read() as session:
        return session.execute(select(func.max(CURSOR.c.counted_to))).scalar() or 0


def test_calls_are_summed_by_kind_and_latency_before_and_after_the_cursor_reaches_them(context: Context) -> None:
    record(context, 2, latency_ms=100, input_tokens=3, output_tokens=4, cost=0.1)
    record(context, 1, latency_ms=101, status="transient")
    record(context, 1, latency_ms=10**7, flow="music", capability="text")
    expected = [
        Total("documents", "p", "vision", "ok", 100, 2, 200, 6, 8, 2 * 10**8),
        Total("documents", "p", "vision", "transient", 250, 1, 101, 0, 0, 0),
        Total("music", "p", "text", "ok", call_totals.BEYOND, 1, 10**7, 0, 0, 0),
    ]
    assert totals(context) == expected
    assert advance(context) == 4
    assert totals(context) == expected
    assert advance(context) == 0
    record(context, 1, latency_ms=5, cost=0.1)
    assert totals(context)[0] == Total("documents", "p", "vision", "ok", 100, 3, 205, 6, 8, 3 * 10**8)


@pytest.mark.parametrize("reached", [True, False])
def test_calls_that_retention_removes_still_count(context: Context, reached: bool) -> None:
    record(context, 5, age=OLD)
    record(context, 3)
    if reached:
        advance(context)
    assert calls.retention(context).remove(context) == 5
    assert count(context) == 8
    advance(context)
    assert count(context) == 8


def test_reused_ids_count_after_the_newest_calls_are_deleted(context: Context) -> None:
    record(context, 4, age=OLD)
    advance(context)
    calls.retention(context).remove(context)
    record(context, 2)
    assert count(context) == 6
    advance(context)
    record(context, 1)
    assert count(context) == 7


def test_the_cursor_advances_in_portions(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_totals, "PORTION", 3)
    record(context, 10)
    assert advance(context) == 10
    assert counted_to(context) == 10
    assert count(context) == 10


def test_a_call_that_commits_after_younger_ones_is_counted(context: Context) -> None:
    if context.db.is_sqlite:
        pytest.skip("SQLite has one writer at a time")
    with context.db.transaction() as slow:
        slow.execute(insert(AiCall), [call_row("late", context.db.now())])
        record(context, 3)
        assert advance(context) == 0, "an older transaction is open"
        assert count(context) == 3
    assert count(context) == 4
    assert advance(context) == 4
    assert count(context) == 4


def test_a_reader_counts_every_call_if_the_cursor_moves_between_its_statements(context: Context) -> None:
    """The cursor moves between the read of the cursor and the read of the sums."""
    record(context, 5)
    overtake: list[Callable[[], object]] = [lambda: advance(context)]

    def between(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "UNION ALL" in statement and overtake:
            overtake.pop()()

    event.listen(context.db.engine, "before_cursor_execute", between)
    try:
        assert count(context) == 5
    finally:
        event.remove(context.db.engine, "before_cursor_execute", between)
    assert not overtake
    assert counted_to(context) == 5


@pytest.mark.parametrize("cost", [-1.0, 1e300, float("inf")])
def test_an_unbelievable_cost_counts_as_zero(context: Context, cost: float) -> None:
    record(context, 1, cost=cost, latency_ms=-5, input_tokens=-7)
    advance(context)
    [row] = totals(context)
    assert (row.calls, row.cost_nano, row.latency_ms, row.input_tokens) == (1, 0, 0, 0)


def test_rows_deleted_by_hand_make_no_other_row_count_twice(context: Context) -> None:
    record(context, 4)
    advance(context)
    context.db.run(lambda session: session.execute(delete(AiCall).where(AiCall.id < 3)))
    assert count(context) == 4
