"""Other workers resume the work of lost and ending workers at every step."""

from typing import Any

import pytest
from sqlalchemy import event, select

from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UnitError, UserError
from pipeline.flows.screenshots import plan, queries, service
from pipeline.flows.screenshots.flow import FLOW
from pipeline.flows.screenshots.frames import buffer, files, retention
from pipeline.flows.screenshots.graph.models import NODES
from pipeline.flows.screenshots.models import BATCHES, SHARDS
from pipeline.flows.screenshots.plan import Action
from pipeline.flows.screenshots.scopes import batch_ids
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.flows.screenshots.work import analysis, expansion, merge, retry, shard
from pipeline.storage.context import Context
from tests.integration.screenshots.conftest import ME, Hand, draft

OTHER = Owner("there:2:b", "request-2")


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_SCREENSHOTS__SHARD_SIZE": "2"}


def first_row(context: Context, table: Any) -> Any:
    with context.db.read() as session:
        return session.execute(select(table).order_by(table.c.id).limit(1)).one()


def node_row(context: Context, node_id: int) -> Any:
    with context.db.read() as session:
        return session.execute(select(NODES).where(NODES.c.id == node_id)).one()


def waiting_merge(hand: Hand) -> int:
    """Make a node that waits for its merge into a target."""
    batch, shots = hand.batch()
    hand.analyse(batch, [draft("first", shots, thread="t")])
    hand.merge_all()
    batch, shots = hand.batch()
    return hand.analyse(batch, [draft("second", shots, thread="t")])[0]


def test_only_the_shard_of_a_lost_worker_is_resent_and_at_once(context: Context, hand: Hand) -> None:
    batch, _ = hand.batch()
    analysis.claim(context, batch)
    lost, sibling = shard.claim(context, batch, ME), shard.claim(context, batch, OTHER)
    assert lost is not None
    assert sibling is not None
    assert FLOW.holders(context) == {ME.worker_id, OTHER.worker_id}
    assert FLOW.free_lost(context, {ME.worker_id}) == 1
    assert FLOW.holders(context) == {OTHER.worker_id}
    (step,) = plan.next_steps(context, [batch])
    assert (step.action, step.places) == (Action.ANALYSE, 3), "a sibling's worker lives and keeps its place"
    hand.settle_shard(sibling)
    assert [step.places for step in plan.next_steps(context, [batch])] == [2]
    retried = shard.claim(context, batch, OTHER)
    assert retried is not None
    assert (retried.id, retried.attempts) == (lost.id, 2)


def test_expansion_of_a_lost_worker_is_resent(context: Context, hand: Hand) -> None:
    batch, _ = hand.batch()
    hand.analyse_shards(batch)
    assert expansion.claim(context, batch, ME) is not None
    assert FLOW.free_lost(context, {ME.worker_id}) == 1
    assert batch_ids(plan.runnable(context, ())) == [batch]
    assert [step.action for step in plan.next_steps(context, [batch])] == [Action.EXPAND]
    unit = expansion.claim(context, batch, OTHER)
    assert unit is not None
    assert unit.attempts == 2


def test_merge_of_a_lost_worker_is_reclaimed(context: Context, hand: Hand) -> None:
    node = waiting_merge(hand)
    assert merge.claim(context, ME) is not None
    assert merge.claim(context, OTHER) is None
    assert FLOW.free_lost(context, {ME.worker_id}) == 1
    unit = merge.claim(context, OTHER)
    assert unit is not None
    assert (unit.id, unit.attempts) == (node, 2)


def test_redelivered_merge_message_gives_back_the_claims_of_its_dead_process(context: Context, hand: Hand) -> None:
    node = waiting_merge(hand)
    assert merge.claim(context, ME) is not None
    unit = merge.claim(context, ME)
    assert unit is not None
    assert (unit.id, unit.attempts) == (node, 2)
    assert hand.merge_all() == 1


def test_merge_whose_last_attempt_is_lost_is_a_dead_letter_that_can_be_replayed(context: Context, hand: Hand) -> None:
    node = waiting_merge(hand)
    attempts = retry.policy(context.settings).max_attempts
    for attempt in range(attempts):
        assert merge.claim(context, ME) is not None, attempt
        FLOW.free_lost(context, {ME.worker_id})
    assert merge.claim(context, ME) is None
    (letter,) = queries.dead_letters(context)
    assert (letter.kind, letter.id, letter.attempts) == ("merge", node, attempts)
    assert letter.reason == "the worker died during this work (after 6 attempts)"
    assert service.replay(context, "merge", [node]) == [node]
    assert hand.merge_all() == 1


@pytest.mark.both_databases
def test_shard_whose_last_attempt_is_lost_ends_its_batch(context: Context, hand: Hand) -> None:
    batch, _ = hand.batch()
    analysis.claim(context, batch)
    for _ in range(retry.policy(context.settings).max_attempts):
        assert shard.claim(context, batch, ME) is not None
        FLOW.free_lost(context, {ME.worker_id})
    while part := shard.claim(context, batch, ME):
        hand.settle_shard(part)
    assert batch_ids(plan.runnable(context, ())) == [batch]
    assert [step.action for step in plan.next_steps(context, [batch])] == [Action.MERGE]
    assert analysis.settle(context, batch).status is WorkStatus.FAILED_PERMANENT
    assert batch_ids(plan.runnable(context, ())) == []


@pytest.mark.both_databases
def test_ending_worker_gives_back_its_claims_without_counting_attempts(context: Context, hand: Hand) -> None:
    node = waiting_merge(hand)
    expanding, _ = hand.batch()
    hand.analyse_shards(expanding)
    analysing, _ = hand.batch()
    analysis.claim(context, analysing)
    assert merge.claim(context, ME) is not None
    assert expansion.claim(context, expanding, ME) is not None
    assert shard.claim(context, analysing, ME) is not None
    held = shard.claim(context, analysing, OTHER)
    assert held is not None
    FLOW.release_all(context, [ME.worker_id])
    assert FLOW.holders(context) == {OTHER.worker_id}
    assert (node_row(context, node).status, node_row(context, node).attempts) == ("pending", 0)
    with context.db.read() as session:
        batch = session.execute(select(BATCHES).where(BATCHES.c.id == expanding)).one()
        part = session.execute(select(SHARDS).where(SHARDS.c.batch_id == analysing, SHARDS.c.number == 0)).one()
    assert (batch.status, batch.attempts, part.status, part.attempts) == ("pending", 0, "pending", 0)
    assert expanding in batch_ids(plan.runnable(context, ()))
    assert hand.settle_shard(held)


def test_no_claim_is_given_back_while_its_worker_lives(context: Context, hand: Hand) -> None:
    batch, _ = hand.batch()
    analysis.claim(context, batch)
    assert shard.claim(context, batch, ME) is not None
    assert FLOW.free_lost(context, {"somebody else"}) == 0
    assert first_row(context, SHARDS).status == "running"


def test_dead_letters_of_unknown_kinds_are_refused(context: Context) -> None:
    with pytest.raises(UserError):
        service.replay(context, "shard")


def test_the_replay_of_a_batch_does_not_restore_frames_without_files(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch()
    analysis.claim(context, batch)
    part = shard.claim(context, batch, ME)
    assert part is not None
    files.discard(context.settings, [part.shots[1].file])
    retention.image_of(context, part.shots[1])
    shard.fail(context, part, UnitError("refused", kind=ErrorKind.PERMANENT))
    while part := shard.claim(context, batch, ME):
        hand.settle_shard(part)
    analysis.settle(context, batch)
    service.replay(context, "batch")
    states = [queries.screenshot(context, shot).status for shot in shots]
    assert states == ["failed_permanent", *["pending"] * 4]


@pytest.mark.both_databases
def test_frequent_queries_read_no_whole_table(context: Context, hand: Hand) -> None:
    if not context.db.is_sqlite:
        pytest.skip("PostgreSQL decides by how much there is")
    statements: list[tuple[str, Any]] = []
    hand.add()

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        statements.append((statement, parameters))

    event.listen(context.db.engine, "before_cursor_execute", note)
    FLOW.holders(context)
    FLOW.free_lost(context, {"gone:1:a"})
    plan.next_retry_s(context)
    list(plan.runnable(context, ()))
    buffer.waiting(context)
    buffer.batch(context, "screen:1")
    event.remove(context.db.engine, "before_cursor_execute", note)
    with context.db.engine.connect() as connection:
        steps = {
            str(step[3])
            for statement, parameters in statements
            if "FROM screenshot" in statement
            for step in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        }
    of_rows = {step for step in steps if step.startswith(("SCAN", "SEARCH")) and "screenshot_sources" not in step}
    # Partial indexes, rows of one batch, and running rows.
    few = (
        "_claimed",
        "_claimable",
        "_next_run_at",
        "ix_screenshots_buffer",
        "ix_screenshots_batch_id",
        "(batch_id=?)",
        "(status=?)",
        "_status_created_at (status=?",
    )
    assert of_rows
    assert not [step for step in of_rows if not any(name in step for name in few)]
