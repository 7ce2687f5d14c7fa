import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update
from structlog.testing import capture_logs

from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UnitError, UserError
from pipeline.flows.screenshots import deletion, queries, service
from pipeline.flows.screenshots.flow import FLOW
from pipeline.flows.screenshots.graph import nodes
from pipeline.flows.screenshots.graph.models import EMBEDDINGS, ENTITIES, LINKS, MENTIONS, NODES, THREADS
from pipeline.flows.screenshots.graph.nodes import Content
from pipeline.flows.screenshots.models import BATCHES
from pipeline.flows.screenshots.rules.batches import HistoryPack
from pipeline.flows.screenshots.rules.schemas import EntityMention
from pipeline.flows.screenshots.states import Origin, WorkStatus
from pipeline.flows.screenshots.work import embedding, expansion, merge
from pipeline.flows.screenshots.work.expansion import BatchUnit
from pipeline.storage import vectors
from pipeline.storage.context import Context
from tests.integration.screenshots.conftest import BEGIN, ME, Draft, Hand, as_expansion, both, draft, row_of

OTHER = Owner("there:2:b", "request-2")


def rows(context: Context) -> list[Any]:
    with context.db.read() as session:
        return list(session.execute(select(NODES).order_by(NODES.c.id)))


def standing(context: Context) -> list[Any]:
    return [row for row in rows(context) if row.merged_into_id is None]


def two_batches(hand: Hand) -> tuple[int, int]:
    """Make a merged node and a waiting node of the same thread and kind."""
    batch, shots = hand.batch()
    (first,) = hand.analyse(batch, [draft("first", shots[:2])])
    hand.merge_all()
    thread = queries.show(hand.context, first).node.thread_id
    batch, shots = hand.batch()
    (second,) = hand.analyse(batch, [draft("second", shots, thread=thread, at=BEGIN + timedelta(minutes=5))])
    return first, second


@pytest.mark.both_databases
def test_nodes_are_written_once_by_their_origin_key(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch()
    drafts = [draft("a", shots[:2], thread="t"), draft("b", shots[2:], thread="t"), draft("c", kind="plan")]
    node_ids = hand.analyse(batch, drafts)
    with context.db.transaction() as session:
        assert nodes.write(session, batch, as_expansion(batch, shots, drafts), "m") == []
    assert [row.id for row in rows(context)] == node_ids


def test_nodes_are_written_with_threads_frames_and_edges(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch()
    drafts = [
        draft("a", shots[:2], thread="t"),
        draft("b", shots[2:3], thread="t"),
        draft("c", shots[3:]),
        draft("d", shots[3:4], kind="knowledge", derived_from=2),
    ]
    hand.analyse(batch, drafts)
    a, b, c, d = rows(context)
    assert (a.thread_id, b.thread_id, d.thread_id) == ("t", "t", c.thread_id)
    assert c.thread_id != "t"
    assert [shot.id for shot in queries.show(context, a.id).screenshots] == shots[:2]
    assert [(edge.from_id, edge.to_id, edge.type) for edge in queries.show(context, d.id).edges] == [
        (d.id, c.id, "derived_from")
    ]


def test_a_merge_moves_links_keeps_origins_and_requests_a_new_vector(context: Context, hand: Hand) -> None:
    first, second = two_batches(hand)
    with context.db.transaction() as session:
        vectors.upsert(session, nodes.KIND, "m", [(first, [1.0]), (second, [1.0])])
        session.execute(update(EMBEDDINGS).values(status=WorkStatus.SUCCEEDED))
    assert hand.merge_all() == 1
    detail = queries.show(context, second)
    assert (detail.asked_id, detail.node.id) == (second, first)
    assert detail.node.title == "first + second"
    assert detail.node.merged_from_ids == [second]
    assert detail.vector is WorkStatus.PENDING
    assert len(detail.screenshots) == 7
    assert [(row.act, row.from_node_id) for row in detail.provenance] == [("made", None), ("merged", second)]
    with context.db.read() as session:
        assert vectors.get(session, nodes.KIND, second) is None
    assert [row.id for row in standing(context)] == [first]


def test_a_vector_of_an_older_text_is_discarded(context: Context, hand: Hand) -> None:
    first, second = two_batches(hand)
    wanted = embedding.claim(context, ME)
    assert wanted is not None
    assert [row.id for row in wanted.rows] == [first, second]
    hand.merge_all()
    assert embedding.settle(context, wanted, [[1.0, 0.0]] * 2) == 0
    fresh = embedding.claim(context, ME)
    assert fresh is not None
    assert "first + second" in fresh.texts[0]
    assert embedding.settle(context, fresh, [[1.0, 0.0]]) == 1
    assert embedding.claim(context, ME) is None


def test_a_merge_does_not_overwrite_a_changed_target(context: Context, hand: Hand) -> None:
    first, second = two_batches(hand)
    unit = merge.claim(context, ME)
    assert unit is not None
    assert unit.target_id == first
    with context.db.transaction() as session:
        session.execute(update(NODES).where(NODES.c.id == first).values(version=7, title="changed"))
    assert merge.settle(context, unit, Content("lost update")).status is WorkStatus.PENDING
    assert queries.show(context, first).node.title == "changed"
    assert row_of(context, NODES, second).attempts == 0
    assert hand.merge_all() == 1
    assert queries.show(context, first).node.title == "changed + second"


def test_merges_are_claimed_from_both_ends_and_in_order_of_time_within_a_thread(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch()
    at = {"a1": 1, "a2": 2, "b1": 3, "c1": 4, "c2": 5}
    node_ids = hand.analyse(
        batch, [draft(title, shots, thread=title[0], at=BEGIN + timedelta(minutes=at[title])) for title in at]
    )
    titles = dict(zip(node_ids, at, strict=True))
    ends = (False, True, False, True)
    units = [merge.claim(context, Owner(f"w{n}", f"r{n}"), newest=newest) for n, newest in enumerate(ends)]
    assert [titles[unit.id] for unit in units if unit is not None] == ["a1", "c1", "b1"]


def test_a_merge_with_a_lost_claim_changes_nothing(context: Context, hand: Hand) -> None:
    first, _ = two_batches(hand)
    unit = merge.claim(context, ME)
    assert unit is not None
    assert FLOW.free_lost(context, {ME.worker_id}) == 1
    assert merge.settle(context, unit, Content("late")).status is None
    assert queries.show(context, first).node.title == "first"


@pytest.mark.both_databases
def test_simultaneous_merges_into_a_node_lose_no_update_and_make_no_duplicate(context: Context, hand: Hand) -> None:
    thread = None
    for number in range(3):
        batch, shots = hand.batch()
        drafts = [draft(f"n{number}{i}", shots[i : i + 1], thread=thread or "t") for i in range(4)]
        node_ids = hand.analyse(batch, drafts)
        thread = queries.show(context, node_ids[0]).node.thread_id
    barrier = threading.Barrier(3)

    def work(number: int) -> int:
        barrier.wait(60)
        done = 0
        while merge.waiting(context):
            unit = merge.claim(context, Owner(f"w{number}", f"r{number}"))
            if unit is None:
                continue
            merged = both(unit.target, unit.content) if unit.target else None
            done += merge.settle(context, unit, merged).done
        return done

    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(work, range(3))) == 12
    (node,) = standing(context)
    assert len(json.loads(node.merged_from_ids)) == 11
    assert all(f"n{number}{i}" in node.title for number in range(3) for i in range(4))
    with context.db.read() as session:
        assert session.execute(select(func.count(func.distinct(LINKS.c.node_id)))).scalar() == 1
        assert session.execute(select(func.count()).select_from(LINKS)).scalar() == 12


def test_a_cycle_in_the_data_ends(context: Context, hand: Hand) -> None:
    first, second = two_batches(hand)
    with context.db.transaction() as session:
        session.execute(update(NODES).where(NODES.c.id == first).values(merged_into_id=second))
        session.execute(update(NODES).where(NODES.c.id == second).values(merged_into_id=first))
    assert queries.show(context, second).node.id == first
    with pytest.raises(UserError):
        queries.show(context, 424242)


def test_a_dead_merge_can_be_replayed(context: Context, hand: Hand) -> None:
    _, second = two_batches(hand)
    unit = merge.claim(context, ME)
    assert unit is not None
    assert (
        merge.fail(context, unit, UnitError("refused", kind=ErrorKind.PERMANENT)).status is WorkStatus.FAILED_PERMANENT
    )
    assert [(letter.kind, letter.id, letter.reason) for letter in queries.dead_letters(context)] == [
        ("merge", second, "refused")
    ]
    assert service.replay(context, "merge") == [second]
    assert hand.merge_all() == 1


def test_spellings_of_a_name_are_one_entity(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch()
    spellings = [("Ann  Lee", "person", 5), ("ＡＮＮ lee", "Person", 9)]
    names = tuple(EntityMention(name=name, entity_type=kind, confidence=sure) for name, kind, sure in spellings)
    hand.analyse(batch, [Draft("event", Content("a", entities=names), BEGIN, shots)])
    with context.db.read() as session:
        assert [row.name_key for row in session.execute(select(ENTITIES))] == ["ann lee"]
        assert session.execute(select(MENTIONS.c.confidence)).scalars().all() == [9]


def test_a_clock_that_goes_backwards_stretches_a_thread(context: Context, hand: Hand) -> None:
    first, _ = two_batches(hand)
    thread = queries.show(context, first).node.thread_id
    batch, shots = hand.batch()
    hand.analyse(batch, [draft("earlier", shots, thread=thread, at=BEGIN - timedelta(hours=1))])
    with context.db.read() as session:
        row = session.execute(select(THREADS).where(THREADS.c.id == thread)).one()
    assert (row.first_at, row.last_at) == (BEGIN - timedelta(hours=1), BEGIN + timedelta(minutes=5))


def test_later_batches_have_threads_and_entities_in_their_history(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch(ts=BEGIN)
    names = (EntityMention(name="Ann", entity_type="person"),)
    hand.analyse(batch, [Draft("event", Content("Writing", entities=names), BEGIN, shots)])
    batch, _ = hand.batch(ts=BEGIN + timedelta(minutes=1))
    with context.db.read() as session:
        stored = session.execute(select(BATCHES.c.history_pack).where(BATCHES.c.id == batch)).scalar_one()
    pack = HistoryPack.model_validate_json(stored)
    assert [thread.title for thread in pack.threads] == ["Writing"]
    assert [segment.title for segment in pack.segments] == ["Writing"]
    assert pack.entities == ["Ann"]
    assert set(pack.thread_ids) == {row.thread_id for row in rows(context)}


@pytest.mark.both_databases
def test_batches_with_the_same_entities_do_not_deadlock(context: Context, hand: Hand) -> None:
    names = [f"name {number}" for number in range(40)]
    owners = (Owner("here:1:a", "one"), Owner("here:1:b", "two"))
    units = []
    for owner, source in zip(owners, ("screen:1", "screen:2"), strict=True):
        batch, _ = hand.batch(source=source)
        hand.analyse_shards(batch)
        units.append(expansion.claim(context, batch, owner))

    def finish(unit: BatchUnit, ordered: list[str]) -> list[int] | None:
        drafts = [Draft("event", Content(name, entities=(EntityMention(name=name),)), BEGIN) for name in ordered]
        drawn = as_expansion(unit.id, [shot.id for shot in unit.shots], drafts)
        return expansion.settle(context, unit, drawn, Origin.MODEL)

    with capture_logs() as logs, ThreadPoolExecutor() as pool:
        results = list(pool.map(finish, units, (names, names[::-1])))
    assert [len(ids or ()) for ids in results] == [40, 40]
    assert not [line for line in logs if line["event"] == "database.retry"]


@pytest.mark.both_databases
def test_deleting_and_merging_do_not_deadlock(context: Context, hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    for day, title in enumerate(("a", "b")):
        batch, _ = hand.batch(ts=BEGIN + timedelta(days=day))
        hand.analyse(batch, [draft(title, thread="thread_a", at=BEGIN + timedelta(days=day))])
    first = merge.claim(context, ME)
    assert first is not None
    assert merge.settle(context, first).status is WorkStatus.SUCCEEDED
    unit = merge.claim(context, ME)
    assert unit is not None
    assert unit.target is not None
    is_merging, change = threading.Event(), merge._absorb

    def slowly(*arguments: Any) -> None:
        is_merging.set()
        time.sleep(0.5)
        change(*arguments)

    monkeypatch.setattr(merge, "_absorb", slowly)
    with capture_logs() as logs, ThreadPoolExecutor() as pool:
        merged = pool.submit(merge.settle, context, unit, Content("ab"))
        assert is_merging.wait(60)
        forgotten = deletion.forget(context, BEGIN + timedelta(hours=12), BEGIN + timedelta(days=2))
    assert (merged.result().status, forgotten.nodes, forgotten.restored) == (WorkStatus.SUCCEEDED, 1, 1)
    assert not [line for line in logs if line["event"] == "database.retry"]
