"""Frames become rows and join exactly one batch each, under concurrency too."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from PIL import Image
from sqlalchemy import insert, select, update

from pipeline.engine.errors import UserError
from pipeline.flows.screenshots import service
from pipeline.flows.screenshots.flow import FLOW
from pipeline.flows.screenshots.frames import buffer, files
from pipeline.flows.screenshots.graph.models import THREADS
from pipeline.flows.screenshots.models import BATCHES, SHOTS, SOURCES
from pipeline.flows.screenshots.rules.batches import HistoryPack
from pipeline.flows.screenshots.rules.schemas import EntityMention
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.storage.context import Context
from tasks import screenshots
from tests.integration.screenshots.conftest import BEGIN, Draft, Hand, draft, rows_of
from tests.support.screens import batch_ready


def stored_files(context: Context) -> set[str]:
    folder = context.settings.screenshot_dir
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def age(context: Context, seconds: float) -> None:
    with context.db.transaction() as session:
        session.execute(update(SHOTS).values(created_at=datetime.now(UTC) - timedelta(seconds=seconds)))


def behind(context: Context, level: int) -> None:
    """Create as many waiting batches as cause this level of pressure."""
    now = datetime.now(UTC)
    rows = [
        {
            "correlation_id": "b",
            "source_key": "screen:0",
            "shot_ids": "[]",
            "ts_start": now,
            "ts_end": now,
            "idempotency_key": f"waits {number}",
            "created_at": now,
            "updated_at": now,
            "attempts": 0,
        }
        for number in range(context.settings.screenshots.pressure_batches * level)
    ]
    with context.db.transaction() as session:
        session.execute(insert(BATCHES), rows)


def test_five_frames_make_a_batch_in_the_order_of_capture_though_the_clock_went_back(
    context: Context, hand: Hand
) -> None:
    frames = [hand.add(ts=BEGIN - timedelta(minutes=i)) for i in range(5)]
    assert [frame.ready for frame in frames] == [False] * 4 + [True]
    assert len(batch_ready(context)) == 1
    batch = rows_of(context, BATCHES)[0]
    assert batch.shot_ids == str([frame.shot_id for frame in frames[::-1]])
    assert (batch.ts_start, batch.ts_end) == (BEGIN - timedelta(minutes=4), BEGIN)
    start, end = (int(at.timestamp() * 1000) for at in (batch.ts_start, batch.ts_end))
    assert batch.idempotency_key.startswith(f"vlm_batch:screen:1:{start}-{end}:")


def test_a_new_batch_has_every_column_set(context: Context, hand: Hand) -> None:
    hand.batch()
    row = rows_of(context, BATCHES)[0]
    assert (row.status, row.step, row.ask, row.made_by) == ("pending", "analyse", "first", "")
    assert (row.notes, row.urgency, row.vlm_ms, row.text_ms, row.attempts) == ("[]", None, 0, 0, 0)
    assert HistoryPack.model_validate_json(row.history_pack) == HistoryPack()


def _mentions_ann(node: Draft) -> Draft:
    return replace(node, content=replace(node.content, entities=(EntityMention(name="Ann"),)))


def test_a_batchs_history_has_late_threads_and_open_segments(context: Context, hand: Hand) -> None:
    first, shots = hand.batch(ts=BEGIN)
    hand.analyse(first, [_mentions_ann(draft("Writing a report", shots, thread="thread_a", at=BEGIN))])
    with context.db.transaction() as session:
        now = datetime.now(UTC)
        others = [
            {"id": f"t{n}", "title": f"t{n}", "first_at": day, "last_at": day, "created_at": now}
            for n, day in enumerate((BEGIN - timedelta(days=n) for n in range(1, 5)), start=1)
        ]
        session.execute(insert(THREADS), others)

    def history_at(minutes: int) -> HistoryPack:
        batch, _ = hand.batch(ts=BEGIN + timedelta(minutes=minutes))
        row = next(row for row in rows_of(context, BATCHES) if row.id == batch)
        return HistoryPack.model_validate_json(row.history_pack)

    soon, later, next_week = history_at(14), history_at(16), history_at(7 * 24 * 60)
    assert [segment.title for segment in soon.segments] == ["Writing a report"]
    assert len(soon.threads) == len(later.threads) == 3
    assert soon.threads[0].thread_id == soon.segments[0].thread_id
    assert soon.threads[0].last_active_ms == int(BEGIN.timestamp() * 1000)
    assert later.segments == []
    assert soon.entities == next_week.entities == ["Ann"], "the latest names, however old"


def test_fewer_frames_wait_for_the_timeout_then_beat_makes_one_batch(context: Context, hand: Hand) -> None:
    assert FLOW.is_at_rest(context)
    hand.add()
    hand.add()
    assert not FLOW.is_at_rest(context), "the sweeper must visit the flow"
    assert batch_ready(context) == []
    waits = buffer.next_batch_s(context)
    assert waits is not None
    assert 0 < waits <= 30
    age(context, 31)
    assert buffer.next_batch_s(context) is None, "it is launched and does not wait"
    assert len(batch_ready(context)) == 1
    assert batch_ready(context) == []
    assert buffer.next_batch_s(context) is None


def test_a_frame_from_the_future_does_not_wait_for_the_clock(context: Context, hand: Hand) -> None:
    hand.add()
    age(context, -3600)
    assert buffer.next_batch_s(context) is None, "it is launched and does not wait"
    assert len(batch_ready(context)) == 1


def test_orphans_are_batched_after_the_timeout_and_five_seconds(context: Context, hand: Hand) -> None:
    hand.add(source="screen:1")
    hand.add(source="window:2")
    service.set_active(context, "window:2", active=False)
    age(context, 29)
    assert batch_ready(context) == []
    age(context, 36)
    assert len(batch_ready(context)) == 2
    assert batch_ready(context) == []


def test_many_orphans_make_full_batches_and_one_rest(context: Context, hand: Hand) -> None:
    hand.add()
    now = datetime.now(UTC)
    orphans = [
        {
            "source_key": "screen:1",
            "ts": BEGIN + timedelta(hours=1, seconds=n),
            "file": f"{n}.png",
            "sha256": f"{n:064}",
            "phash": "0" * 64,
            "size_bytes": 1,
            "created_at": now,
            "updated_at": now,
        }
        for n in range(46)
    ]
    with context.db.transaction() as session:
        session.execute(insert(SHOTS), orphans)
    age(context, 40)
    assert len(batch_ready(context)) == 10
    sizes = [len(json.loads(row.shot_ids)) for row in rows_of(context, BATCHES)]
    assert sorted(sizes) == [2] + [5] * 9


def test_simultaneous_intakes_and_batchings_put_each_frame_into_exactly_one_batch(context: Context, hand: Hand) -> None:
    for _ in range(4):
        hand.add()
    age(context, 40)
    barrier = threading.Barrier(4)

    def add(_: int) -> list[int]:
        barrier.wait(60)
        return buffer.batch(context, "screen:1") if hand.add().ready else []

    def batch_all(way: int) -> list[int]:
        barrier.wait(60)
        return buffer.batch(context, "screen:1", all_at_once=bool(way))

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(add, 0), pool.submit(add, 1), pool.submit(batch_all, 0), pool.submit(batch_all, 1)]
        batches = [batch for job in jobs for batch in job.result(60)]
    assert len(batches) == len(set(batches)) >= 1
    with context.db.read() as session:
        rows = session.execute(select(BATCHES)).all()
        members = [number for row in rows for number in json.loads(row.shot_ids)]
        batched = session.execute(select(SHOTS.c.id).where(SHOTS.c.batch_id.is_not(None))).scalars().all()
    assert {row.id for row in rows} == set(batches)
    assert sorted(members) == sorted(batched)


def test_two_simultaneous_frames_that_fill_the_buffer_make_one_batch(context: Context, hand: Hand) -> None:
    for _ in range(4):
        hand.add()
    barrier = threading.Barrier(2)

    def add(_: int) -> list[int]:
        barrier.wait(60)
        return buffer.batch(context, "screen:1") if hand.add().ready else []

    with ThreadPoolExecutor(2) as pool:
        batches = [batch for batches in pool.map(add, range(2)) for batch in batches]
    assert len(batches) == len(rows_of(context, BATCHES)) == 1


def test_batches_are_larger_and_wait_longer_while_analysis_lags(context: Context, hand: Hand) -> None:
    behind(context, 2)
    frames = [hand.add() for _ in range(10)]
    assert [frame.ready for frame in frames] == [False] * 9 + [True]
    assert len(batch_ready(context)) == 1
    assert {frame.threshold for frame in frames} == {context.settings.screenshots.dedup_threshold_pressed}
    hand.add()
    waits = buffer.next_batch_s(context)
    assert waits is not None
    assert 30 < waits <= 60
    age(context, 40)
    assert batch_ready(context) == []
    age(context, 61)
    assert len(batch_ready(context)) == 1


def test_pressure_ends_at_half_of_the_backlog_that_started_it(context: Context, hand: Hand) -> None:
    rules = context.settings.screenshots
    behind(context, 1)
    assert hand.add().threshold == rules.dedup_threshold_pressed
    with context.db.transaction() as session:
        for count, expected in ((rules.pressure_batches // 2 + 1, 1), (rules.pressure_batches // 2, 0)):
            waiting = select(BATCHES.c.id).where(BATCHES.c.status == "pending").order_by(BATCHES.c.id)
            over = session.execute(waiting).scalars().all()[count:]
            session.execute(update(BATCHES).where(BATCHES.c.id.in_(over)).values(status="succeeded"))
            source = session.execute(select(SOURCES).where(SOURCES.c.key == "screen:1")).one()
            assert buffer.pressure_on(session, source, rules).level == expected
    assert hand.add().threshold == rules.dedup_threshold


def test_an_old_file_without_a_row_is_removed(context: Context, hand: Hand) -> None:
    hand.add()
    lost = context.settings.screenshot_dir / "lost.png"
    lost.write_text("x")
    assert files.remove_orphans(context) == 0
    for name in stored_files(context):
        os.utime(context.settings.screenshot_dir / name, (1, 1))
    assert files.remove_orphans(context) == 1
    assert len(stored_files(context)) == 1


def test_a_time_at_the_calendars_ends_is_refused(context: Context, hand: Hand) -> None:
    for at in (datetime(1, 1, 1, 0, 5, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)):
        with pytest.raises(UserError) as refused:
            hand.add(ts=at)
        assert refused.value.code == "bad_time"
    hand.add(ts=datetime(1970, 1, 1, tzinfo=UTC))
    age(context, 60)
    assert len(batch_ready(context)) == 1


def test_a_handle_waits_for_its_frame(context: Context, tmp_path: Path) -> None:
    Image.effect_noise((400, 300), 90).save(tmp_path / "desk.png")
    handle = screenshots.ingest(tmp_path / "desk.png", source="screen:0")
    with pytest.raises(TimeoutError, match="1 screenshot is not analysed after 0 s"):
        handle.wait(timeout_s=0)
    with context.db.transaction() as session:
        session.execute(update(SHOTS).values(status=WorkStatus.FAILED_PERMANENT))
    assert handle.wait(timeout_s=30) is WorkStatus.FAILED_PERMANENT
    assert screenshots.Intake(accepted=False, reason="excluded").wait() is None
