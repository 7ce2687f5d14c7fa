"""Promises that hold for every kind of work of every flow, on both databases."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select, text, update

from pipeline.engine import work as kernel
from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.transaction import Tx
from pipeline.engine.work import Changes, Outcome, Work
from pipeline.flows import flows
from pipeline.storage.context import Context
from tests.support.works import FACTORIES, Units, works

pytestmark = pytest.mark.both_databases

UNITS = 6
ALL = works()
ONE, OTHER = Owner("w:1:a", "m1"), Owner("w:2:b", "m2")


@pytest.fixture(params=sorted(ALL))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def work(name: str) -> Work:
    return ALL[name]


@pytest.fixture
def units(context: Context, name: str) -> Units:
    return FACTORIES[name](context, UNITS)


def test_every_kind_of_work_is_tested_here() -> None:
    assert set(FACTORIES) == set(ALL)


def _claim(context: Context, work: Work, units: Units, owner: Owner = ONE, limit: int = 1) -> list[Any]:
    def act(tx: Tx) -> list[Any]:
        return kernel.claim(tx, work, work.lock(tx, units.scope), owner, limit=limit)

    return context.db.run(act)


def _settle(context: Context, work: Work, units: Units, *outcomes: Outcome) -> Changes:
    def act(tx: Tx) -> Changes:
        return kernel.settle(tx, work, work.lock(tx, units.scope), *outcomes)

    return context.db.run(act)


def _done(units: Units, row: Any) -> Outcome:
    return Outcome(row, values=units.done)


def _row(context: Context, work: Work, unit_id: Any) -> Any:
    with context.db.read() as session:
        return session.execute(select(work.table).where(work.table.c.id == unit_id)).one()


def _at_once(acts: list[Callable[[], Any]]) -> list[Any]:
    barrier = Barrier(len(acts))

    def act_together(act: Callable[[], Any]) -> Any:
        barrier.wait(60)
        return act()

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(act_together, acts))


def _spent(context: Context, work: Work, ids: list[Any]) -> None:
    most = work.policy(context.settings).max_attempts
    context.db.run(
        lambda session: session.execute(update(work.table).where(work.table.c.id.in_(ids)).values(attempts=most))
    )


def test_each_unit_is_claimed_once_by_simultaneous_workers(context: Context, work: Work, units: Units) -> None:
    def some() -> list[Any]:
        ids = []
        while rows := _claim(context, work, units, limit=2):
            ids += [row.id for row in rows]
        return ids

    claimed = [unit for ids in _at_once([some] * 4) for unit in ids]
    assert len(claimed) == len(set(claimed)) == units.count


def test_a_result_under_a_revoked_claim_changes_nothing(context: Context, work: Work, units: Units) -> None:
    row, *_ = _claim(context, work, units)
    assert kernel.free_lost(context.db, work, {ONE.worker_id}).keys() == {units.scope}
    due_now = {"next_run_at": None}
    context.db.run(
        lambda session: session.execute(update(work.table).where(work.table.c.id == row.id).values(**due_now))
    )
    claimed, *_ = _claim(context, work, units, OTHER, limit=1)
    before = _row(context, work, claimed.id)
    stale = Outcome(SimpleNamespace(id=claimed.id, attempts=claimed.attempts, claim_id=row.claim_id), values=units.done)
    assert not _settle(context, work, units, stale)
    assert _row(context, work, claimed.id) == before
    assert _settle(context, work, units, _done(units, claimed)).done == (claimed.id,)


def test_a_unit_that_fails_counts_its_attempt_once_and_waits(context: Context, work: Work, units: Units) -> None:
    row, *_ = _claim(context, work, units)
    assert row.attempts == 1
    failed = Outcome(row, UnitError("it broke"))
    changes = _settle(context, work, units, failed)
    after = _row(context, work, row.id)
    assert after.claim_id is None
    assert after.worker_id is None
    assert after.attempts == 1
    if changes.waiting:
        assert "it broke" in after.error
        assert not _settle(context, work, units, failed), "the claim is over"
    else:
        assert changes.failed == (row.id,), "a unit of this kind has one attempt"


def test_a_refusal_by_a_gate_uses_no_attempt(context: Context, work: Work, units: Units) -> None:
    row, *_ = _claim(context, work, units)
    refused = Outcome(row, UnitError("closed", kind=ErrorKind.RATE_LIMITED))
    assert _settle(context, work, units, refused).waiting == (row.id,)
    assert _row(context, work, row.id).attempts == 0
    assert _claim(context, work, units, limit=1), "the unit can be claimed at once"


def test_a_permanent_error_fails_the_unit_at_once(context: Context, work: Work, units: Units) -> None:
    row, *_ = _claim(context, work, units)
    bad = Outcome(row, UnitError("nonsense", kind=ErrorKind.PERMANENT))
    assert _settle(context, work, units, bad).failed == (row.id,)
    assert "nonsense" in _row(context, work, row.id).error
    assert row.id not in {claimed.id for claimed in _claim(context, work, units, limit=UNITS)}


def test_units_that_end_simultaneously_are_each_counted_once(context: Context, work: Work, units: Units) -> None:
    counted: list[Any] = []

    def after(tx: Tx, scope: Any, changes: Changes) -> None:
        work.after(tx, scope, changes)
        counted.extend(changes.done)

    spied = replace(work, after=after)
    claimed = []
    while rows := _claim(context, work, units):
        claimed += rows
    acts = [lambda row=row: _settle(context, spied, units, _done(units, row)) for row in claimed]
    _at_once([*acts, *acts[:2]])
    assert sorted(counted) == sorted(row.id for row in claimed)


def test_a_unit_that_was_tried_before_is_claimed_alone(context: Context, work: Work, units: Units) -> None:
    if units.count == 1:
        pytest.skip("a unit of this kind is its own scope")
    ids = [row.id for row in _claim(context, work, units, limit=2)]
    kernel.free_lost(context.db, work, {ONE.worker_id})
    context.db.run(lambda session: session.execute(update(work.table).values(next_run_at=None)))
    fresh = [row.id for row in _claim(context, work, units, OTHER, limit=UNITS)]
    assert not set(fresh) & set(ids)
    tried = [[row.id for row in _claim(context, work, units, OTHER, limit=UNITS)] for _ in ids]
    assert sorted(tried) == sorted([unit] for unit in ids)


def test_claims_of_a_living_process_are_kept(context: Context, work: Work, units: Units) -> None:
    row, *_ = _claim(context, work, units)
    assert kernel.free_lost(context.db, work, {"w:9:z"}) == {}
    sibling = Owner("w:2:a", ONE.request_id)  # the broker redelivered the message, to a sibling of the living process
    assert not _give_back_earlier(context, work, units, sibling)
    assert _row(context, work, row.id).claim_id is not None
    knows = replace(sibling, has_ended=lambda process: process == ONE.worker_id)
    changes = _give_back_earlier(context, work, units, knows)
    assert changes.freed == (row.id,)


def _give_back_earlier(context: Context, work: Work, units: Units, owner: Owner) -> Changes:
    def act(tx: Tx) -> Changes:
        return kernel.give_back_earlier(tx, work, work.lock(tx, units.scope), owner)

    return context.db.run(act)


def test_a_lease_that_is_over_is_given_back_once(context: Context, work: Work, units: Units) -> None:
    row, *_ = _claim(context, work, units)
    past = context.db.now() - timedelta(seconds=1)
    context.db.run(lambda session: session.execute(update(work.table).values(lease_until=past)))
    freed = _at_once([lambda: kernel.free_lost(context.db, work, ())] * 3)
    assert sorted(map(list, freed)) == [[], [], [units.scope]]
    assert {sum(each[units.scope].values()) for each in freed if each} == {1}
    after = _row(context, work, row.id)
    assert (after.claim_id, after.attempts, after.error) == (None, 1, work.lost)


def test_a_scope_that_cannot_be_freed_does_not_block_others(context: Context) -> None:
    name = "documents.page"
    work, bad, good = ALL[name], FACTORIES[name](context, UNITS), FACTORIES[name](context, UNITS)
    for units in (bad, good):
        _claim(context, work, units)

    def after(tx: Tx, scope: Any, changes: Changes) -> None:
        freed = tx.execute(select(work.scope).where(work.table.c.id == changes.freed[0])).scalar_one()
        assert freed != bad.scope, "its rows are broken"
        work.after(tx, scope, changes)

    freed = kernel.free_lost(context.db, replace(work, after=after), {ONE.worker_id})
    assert freed == {good.scope: {"PROCESSING": 1}}


def test_a_unit_that_loses_its_worker_every_time_fails(context: Context, work: Work, units: Units) -> None:
    row, *_ = _claim(context, work, units)
    _spent(context, work, [row.id])
    kernel.free_lost(context.db, work, {ONE.worker_id})
    after = _row(context, work, row.id)
    assert after.claim_id is None
    assert work.lost in after.error
    assert "attempts" in after.error
    assert row.id not in {claimed.id for claimed in _claim(context, work, units, limit=UNITS)}


def test_a_unit_released_by_an_ending_worker_uses_no_attempt(context: Context, work: Work, units: Units) -> None:
    row, *_ = _claim(context, work, units)
    kernel.release(context.db, work, {ONE.worker_id})
    assert _row(context, work, row.id).attempts == 0
    rows = _claim(context, work, units, OTHER)
    assert [row.attempts for row in rows] == [1]


def test_holders_are_the_workers_with_claims(context: Context, work: Work, units: Units) -> None:
    row, *_ = _claim(context, work, units)
    with context.db.read() as session:
        assert kernel.holders(session, work) == {ONE.worker_id}
    _settle(context, work, units, _done(units, row))
    with context.db.read() as session:
        assert kernel.holders(session, work) == set()


def test_a_flow_with_due_waiting_or_held_units_is_not_at_rest(context: Context, name: str, work: Work) -> None:
    (flow,) = (flow for flow in flows() if name.startswith(f"{flow.name}."))
    assert flow.is_at_rest(context)
    units = FACTORIES[name](context, 1)
    assert not flow.is_at_rest(context), "a unit can be claimed"
    later = context.db.now() + timedelta(days=1)
    context.db.run(lambda session: session.execute(update(work.table).values(next_run_at=later)))
    assert not flow.is_at_rest(context), "a unit waits for its time"
    context.db.run(lambda session: session.execute(update(work.table).values(next_run_at=None)))
    assert len(_claim(context, work, units)) == 1
    assert not flow.is_at_rest(context), "a unit is held"


def test_a_renewed_claim_lasts_longer_unless_it_was_revoked(context: Context, work: Work, units: Units) -> None:
    row, *_ = _claim(context, work, units)
    assert context.db.run(lambda tx: kernel.renew(tx, work, row))
    assert _row(context, work, row.id).lease_until > row.lease_until
    kernel.free_lost(context.db, work, {ONE.worker_id})
    assert not context.db.run(lambda tx: kernel.renew(tx, work, row))


def test_no_statement_of_a_claim_reads_the_whole_table(context: Context, work: Work, units: Units) -> None:
    now = context.db.now()
    table = work.table
    claims = select(table.c.id).where(work.in_scope(units.scope), work.due(now)).order_by(*work.order).limit(1)
    statements = {
        "claim": claims,
        "held": select(work.scope).where(work.working, table.c.worker_id.in_(["w:1:a"])),
        "over": select(work.scope).where(work.working, table.c.lease_until < now),
        "holders": select(table.c.worker_id).distinct().where(work.working),
        "earlier": select(table.c.worker_id).where(work.working, table.c.request_id == "m1"),
        "waits": select(table.c.next_run_at).where(work.waits(table.c.next_run_at > now)),
    }
    for query, statement in statements.items():
        plan = _plan(context, statement)
        assert not [line for line in plan if _is_scan(line, table.name)], f"{query}: {plan}"


def test_waiting_units_are_read_from_the_index_of_due_times(context: Context, work: Work, units: Units) -> None:
    if not context.db.is_sqlite:
        pytest.skip("PostgreSQL knows from its statistics that few rows wait")
    table = work.table
    (plan,) = _plan(context, select(table.c.next_run_at).where(work.waits(table.c.next_run_at > context.db.now())))
    assert f"ix_{table.name}_next_run_at" in plan


def _plan(context: Context, statement: Any) -> list[str]:
    compiled = statement.compile(context.db.engine, compile_kwargs={"literal_binds": True})
    with context.db.transaction() as session:
        if context.db.is_sqlite:
            plan = session.execute(text(f"EXPLAIN QUERY PLAN {compiled}"))
            return [row.detail for row in plan]
        # The tables are small here: make PostgreSQL plan as for large ones.
        session.execute(text("SET LOCAL enable_seqscan = off"))
        return [row[0] for row in session.execute(text(f"EXPLAIN {compiled}"))]


def _is_scan(line: str, table: str) -> bool:
    return f"Seq Scan on {table}" in line or (line.startswith(f"SCAN {table}") and "INDEX" not in line)
