"""Deleting a time range clears its batches at every step."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

from pipeline.engine import traces
from pipeline.engine.errors import ErrorKind, UnitError, UserError
from pipeline.engine.traces import AiCall
from pipeline.flows.screenshots import deletion, plan, queries
from pipeline.flows.screenshots.frames import files, retention
from pipeline.flows.screenshots.graph import nodes, search
from pipeline.flows.screenshots.graph.models import CALLS, NODES
from pipeline.flows.screenshots.models import BATCHES, SHARDS, SHOTS
from pipeline.flows.screenshots.rules.expansion import Expansion
from pipeline.flows.screenshots.rules.provenance import Operation
from pipeline.flows.screenshots.scopes import FLOW, batch_ids
from pipeline.flows.screenshots.states import Ask, Origin, WorkStatus
from pipeline.flows.screenshots.work import analysis, expansion, merge, shard
from pipeline.flows.screenshots.work.message import UsedCall
from pipeline.storage.context import Context
from tests.integration.screenshots.conftest import (
    BEGIN,
    ME,
    Draft,
    Evidence,
    Hand,
    as_expansion,
    as_index,
    draft,
    row_of,
)
from tests.integration.screenshots.test_search import everything
from tests.support.screens import batch_ready

SECRET = "secret"


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_SCREENSHOTS__SHARD_SIZE": "2"}


def trace(operation: str, content: str, batch: object, unit: str = "1") -> dict[str, Any]:
    return {
        "flow": FLOW,
        "scope_id": str(batch),
        "unit": unit,
        "capability": "text",
        "operation": operation,
        "provider": "p",
        "model": "m",
        "status": "ok",
        "preview": content,
        "created_at": BEGIN,
    }


def waits(context: Context, hand: Hand, batch: int) -> None:
    """Leave the batch unstarted."""


def sent(context: Context, hand: Hand, batch: int) -> None:
    plan.take_turns(context)


def analysing(context: Context, hand: Hand, batch: int) -> None:
    """Finish one shard, release one for its repair, and claim one."""
    analysis.claim(context, batch)
    done = shard.claim(context, batch, ME)
    assert done is not None
    read = as_index({shot.id: Evidence(f"{SECRET} words") for shot in done.shots.values()})
    call = UsedCall(Operation.ANALYSE, "p", "m", "", 1, Ask.FIRST, [shot.id for shot in done.shots.values()])
    assert shard.settle(
        context, done, read, call, [f"a {SECRET} note"], trace("a", f"{SECRET} reply", done.batch_id)
    ).done
    broken = shard.claim(context, batch, ME)
    assert broken is not None
    assert shard.release(
        context, broken, f"{SECRET} and broken", trace("b", f"{SECRET} reply", broken.batch_id)
    ).requeue
    assert shard.claim(context, batch, ME) is not None


def failed(context: Context, hand: Hand, batch: int) -> None:
    analysis.claim(context, batch)
    while part := shard.claim(context, batch, ME):
        shard.fail(context, part, UnitError(f"{SECRET} error"))
    assert analysis.settle(context, batch).status is WorkStatus.FAILED


def given_up(context: Context, hand: Hand, batch: int) -> None:
    analysis.claim(context, batch)
    while part := shard.claim(context, batch, ME):
        shard.fail(context, part, UnitError(f"{SECRET} error", kind=ErrorKind.PERMANENT))
    assert analysis.settle(context, batch).status is WorkStatus.FAILED_PERMANENT


def analysed(context: Context, hand: Hand, batch: int) -> None:
    with context.db.read() as session:
        ids = list(session.execute(select(SHOTS.c.id).where(SHOTS.c.batch_id == batch)).scalars())
    hand.analyse_shards(batch, {ids[0]: Evidence(f"{SECRET} words")})


def expanding(context: Context, hand: Hand, batch: int) -> None:
    analysed(context, hand, batch)
    unit = expansion.claim(context, batch, ME)
    assert unit is not None
    call = UsedCall(Operation.EXPAND, "p", "m", "", 1, Ask.FIRST, [])
    assert expansion.keep_reply(context, unit, f"{SECRET} reply", trace("c", f"{SECRET} reply", unit.id), call)


@pytest.mark.parametrize("step", [waits, sent, analysing, failed, given_up, analysed, expanding])
def test_deletion_breaks_up_a_batch_at_every_step_and_its_other_frames_are_analysed_anew(
    context: Context, hand: Hand, step: Callable[[Context, Hand, int], None]
) -> None:
    batch, shots = hand.batch(ts=BEGIN)
    step(context, hand, batch)
    unit, part = expansion.claim(context, batch, ME), shard.claim(context, batch, ME)
    done = deletion.forget(context, BEGIN, BEGIN + timedelta(seconds=2))
    assert done.screenshots == 2
    remaining = [queries.screenshot(context, shot) for shot in shots[2:]]
    assert [(row.status, row.batch_id, row.error) for row in remaining] == [("pending", None, None)] * 3
    assert queries.batches(context) == []
    # Workers of the batch write nothing more, and get no messages.
    if unit is not None:
        late = as_expansion(batch, shots, [draft("late", shots)])
        assert expansion.settle(context, unit, late, Origin.MODEL) is None
    reply = trace("late", f"{SECRET} reply", batch)
    if unit is not None:
        assert expansion.fail(context, unit, UnitError("late"), reply).status is None
    if part is not None:
        assert not hand.settle_shard(part)
        assert shard.fail(context, part, UnitError("late"), reply).status is None
    assert SECRET not in everything(context)
    assert analysis.settle(context, batch).status is None
    assert analysis.claim(context, batch) is None
    assert batch_ids(plan.runnable(context, ())) == []
    with context.db.read() as session:
        for table in (SHARDS, NODES, CALLS):
            assert session.execute(select(func.count()).select_from(table)).scalar() == 0
    # The frames wait for a batch like new frames, and are analysed anew.
    with context.db.transaction() as session:
        session.execute(update(SHOTS).values(created_at=datetime.now(UTC) - timedelta(hours=1)))
    (batch_id,) = batch_ready(context)
    hand.analyse(batch_id, [draft("what is left")])
    assert [queries.screenshot(context, shot).status for shot in shots[2:]] == ["succeeded"] * 3


def test_frame_without_a_file_does_not_wait_forever_after_its_batch_is_broken_up(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch(ts=BEGIN)
    missing = row_of(context, SHOTS, shots[4])
    files.discard(context.settings, [missing.file])
    assert retention.image_of(context, missing) is None
    hand.analyse_shards(batch)
    expired = SHOTS.c.id == shots[3]
    with context.db.transaction() as session:
        session.execute(update(SHOTS).where(expired).values(storage_state="deleted"))
    deletion.forget(context, BEGIN, BEGIN + timedelta(seconds=1))
    states = [queries.screenshot(context, shot).status for shot in shots[1:]]
    assert states == ["pending", "pending", "succeeded", "failed_permanent"]


def test_finished_batch_keeps_no_deleted_text(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch(ts=BEGIN)
    analysed(context, hand, batch)
    unit = expansion.claim(context, batch, ME)
    assert unit is not None
    call = UsedCall(Operation.EXPAND, "p", "m", "", 1, Ask.FIRST, shots)
    expansion.keep_reply(context, unit, f"{SECRET} reply", trace("c", f"{SECRET} reply", unit.id), call)
    drawn = as_expansion(batch, shots, [draft(f"a {SECRET} node", shots[:1]), draft("other", shots[2:])])
    noted = Expansion(drawn.nodes, drawn.edges, (f"“a {SECRET} node” was left out",))
    assert expansion.settle(context, unit, noted, Origin.MODEL)
    assert SECRET in everything(context)
    deletion.forget(context, BEGIN, BEGIN + timedelta(seconds=1))
    assert SECRET not in everything(context)
    with context.db.read() as session:
        assert list(session.execute(select(NODES.c.title)).scalars()) == ["other"]
        assert session.execute(select(BATCHES.c.status)).scalar() == "succeeded"


def test_trace_of_a_merge_keeps_no_text_of_a_deleted_node(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch(ts=BEGIN)
    hand.analyse(batch, [draft(f"a {SECRET} node", shots, thread="t")])
    hand.merge_all()
    batch, shots = hand.batch(ts=BEGIN + timedelta(hours=1))
    (plain,) = hand.analyse(batch, [draft("plain", shots, thread="t", at=BEGIN + timedelta(hours=1))])
    unit = merge.claim(context, ME)
    assert unit is not None
    content = nodes.Content(f"a {SECRET} node & plain")
    call = UsedCall(Operation.MERGE, "p", "m", "", 1, Ask.FIRST, shots)
    reply = trace("text_merge", f"{SECRET} & plain", unit.row.batch_id, merge.trace_unit(unit.id))
    assert merge.settle(context, unit, content, call, reply).status is WorkStatus.SUCCEEDED
    deletion.forget(context, BEGIN, BEGIN + timedelta(minutes=1))
    assert SECRET not in everything(context)
    assert queries.show(context, plain).node.title == "plain"
    with context.db.read() as session:
        assert session.execute(select(func.count()).select_from(AiCall)).scalar() == 1, "the paid call stays on record"


def test_merge_under_way_does_not_restore_deleted_text(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch(ts=BEGIN)
    hand.analyse(batch, [draft(SECRET, shots, thread="t")])
    hand.merge_all()
    batch, shots = hand.batch(ts=BEGIN + timedelta(hours=1))
    (plain,) = hand.analyse(batch, [Draft("event", nodes.Content("plain"), BEGIN + timedelta(hours=1), shots, "t")])
    unit = merge.claim(context, ME)
    assert unit is not None
    deletion.forget(context, BEGIN, BEGIN + timedelta(minutes=1))
    reply = trace("text_merge", SECRET, unit.row.batch_id, merge.trace_unit(unit.id))
    late = merge.settle(context, unit, nodes.Content(f"{SECRET} + plain"), trace=reply)
    assert late.status is WorkStatus.PENDING
    assert SECRET not in everything(context)
    assert hand.merge_all() == 1
    assert queries.show(context, plain).node.title == "plain"
    with pytest.raises(UserError):
        queries.show(context, plain + 1000)


def test_traces_of_other_batches_are_left_alone(context: Context, hand: Hand) -> None:
    first, shots = hand.batch(ts=BEGIN)
    hand.analyse(first, [draft("a", shots)])
    second, shots = hand.batch(ts=BEGIN + timedelta(hours=1))
    hand.analyse(second, [draft("b", shots)])
    with context.db.transaction() as session:
        for batch in (first, second):
            traces.record(session, trace("text_expand", f"reply {batch}", batch))
    deletion.forget(context, BEGIN, BEGIN + timedelta(minutes=1))
    with context.db.read() as session:
        previews = list(session.execute(select(AiCall.preview).order_by(AiCall.id)).scalars())
    assert previews == ["", f"reply {second}"]


def test_no_deleted_word_stays_in_the_database_file(context: Context, hand: Hand, data_dir: Path) -> None:
    if not context.db.is_sqlite:
        pytest.skip("PostgreSQL removes it when it vacuums")
    for day, word in enumerate(("xylophonequux", "elsewhere")):
        batch, shots = hand.batch(ts=BEGIN + timedelta(days=day))
        evidence = {shots[0]: Evidence(f"kangaroo{word}")}
        hand.analyse(batch, [draft(word, summary=f"zebra{word}", at=BEGIN + timedelta(days=day))], evidence)
    deletion.forget(context, BEGIN - timedelta(hours=1), BEGIN + timedelta(hours=1))
    content = b"".join(file.read_bytes() for file in data_dir.glob("penstock.db*"))
    for stored in (b"xylophonequux", b"kangarooxylo", b"zebraxylo"):
        assert stored not in content
    assert b"elsewhere" in content
    assert len(search.search(context, "elsewhere").hits) == 1
