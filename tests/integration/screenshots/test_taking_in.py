import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update

from pipeline.engine.errors import UserError
from pipeline.screenshots import queries
from pipeline.screenshots.frames import buffering, ingest, storage
from pipeline.screenshots.models import BATCHES, SHOTS
from pipeline.storage.context import Context
from tests.integration.screenshots.conftest import BEGIN, Hand, fingerprint


def files(context: Context) -> set[str]:
    folder = context.settings.screenshot_dir
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def age(context: Context, seconds: float) -> None:
    with context.db.transaction() as session:
        session.execute(update(SHOTS).values(created_at=datetime.now(UTC) - timedelta(seconds=seconds)))


def test_a_frame_has_a_copy_of_its_file_and_stays_when_the_original_goes(context: Context, hand: Hand) -> None:
    path = hand.file("one")
    taken = ingest.ingest(context, path, ingest.Frame("screen:1", BEGIN), fingerprint)
    path.unlink()
    row = queries.screenshot(context, taken.shot_id or 0)
    assert storage.path_of(context.settings, row.file).read_text() == "one"
    assert taken.accepted
    assert not taken.batches


def test_the_same_capture_twice_is_one_row_and_one_file(context: Context, hand: Hand) -> None:
    first, second = hand.add("same", ts=BEGIN), hand.add("same", ts=BEGIN)
    assert (second.accepted, second.reason, second.shot_id) == (False, "known", first.shot_id)
    assert len(files(context)) == 1
    assert queries.rejections(context) == []


def test_a_duplicate_leaves_its_distance_and_nearest_frame_and_no_file(context: Context, hand: Hand) -> None:
    first = hand.add("hash:" + "0" * 64)
    near = hand.add("hash:" + "0" * 62 + "ff")
    far = hand.add("hash:" + "0" * 61 + "1ff")
    assert (near.accepted, near.reason, near.distance, near.nearest_id) == (False, "duplicate", 8, first.shot_id)
    assert far.accepted
    row = queries.rejections(context)[0]
    assert (row.distance, row.nearest_id, row.reason) == (8, first.shot_id, "duplicate")
    assert len(files(context)) == 2


def test_an_inactive_source_is_refused_and_another_is_not(context: Context, hand: Hand) -> None:
    ingest.set_active(context, "window:7", active=False)
    assert hand.add(source="window:7").reason == "inactive"
    assert hand.add(source="window:8").accepted
    ingest.set_active(context, "window:7", active=True)
    assert hand.add(source="window:7").accepted
    assert len(files(context)) == 2


@pytest.mark.parametrize("source", ["", "screen", "screen:", "camera:1", "screen:../1", "screen:a b"])
def test_what_is_no_source_is_refused_before_anything_is_copied(context: Context, hand: Hand, source: str) -> None:
    with pytest.raises(UserError, match="no source"):
        hand.add(source=source)
    assert files(context) == set()


def test_what_cannot_be_taken_leaves_nothing(context: Context, hand: Hand) -> None:
    def broken(path: Path) -> str:
        raise UserError(f"{path} is no picture")

    with pytest.raises(UserError, match="no picture"):
        ingest.ingest(context, hand.file(), ingest.Frame("screen:1", BEGIN), broken)
    with pytest.raises(UserError):
        ingest.ingest(context, hand.folder / "none.png", ingest.Frame("screen:1", BEGIN), fingerprint)
    assert files(context) == set()


def test_five_frames_make_a_batch_in_the_order_of_capture_though_the_clock_went_back(
    context: Context, hand: Hand
) -> None:
    taken = [hand.add(ts=BEGIN - timedelta(minutes=i)) for i in range(5)]
    assert [bool(one.batches) for one in taken] == [False] * 4 + [True]
    batch = queries.batches(context)[0]
    assert batch.shot_ids == str([one.shot_id for one in taken[::-1]])
    assert batch.ts_start < batch.ts_end
    assert batch.idempotency_key.startswith("vlm_batch:screen:1:")


def test_fewer_wait_for_the_time_out_then_the_beat_makes_one_batch(context: Context, hand: Hand) -> None:
    hand.add()
    hand.add()
    assert buffering.batch_ready(context) == []
    age(context, 31)
    assert len(buffering.batch_ready(context)) == 1
    assert buffering.batch_ready(context) == []
    assert buffering.next_look_s(context) is None


def test_a_frame_from_the_future_does_not_wait_until_the_clock_comes_there(context: Context, hand: Hand) -> None:
    hand.add()
    age(context, -3600)
    assert len(buffering.batch_ready(context)) == 1


def test_orphans_are_batched_after_the_time_out_and_five_seconds(context: Context, hand: Hand) -> None:
    hand.add(source="screen:1")
    hand.add(source="window:2")
    ingest.set_active(context, "window:2", active=False)
    age(context, 34)
    assert buffering.batch_orphans(context) == []
    age(context, 36)
    assert len(buffering.batch_orphans(context)) == 2
    assert buffering.batch_orphans(context) == []


def test_adds_and_looks_at_once_make_each_frame_part_of_exactly_one_batch(context: Context, hand: Hand) -> None:
    for _ in range(4):
        hand.add()
    age(context, 40)
    barrier = threading.Barrier(4)

    def add(_: int) -> list[int]:
        barrier.wait(30)
        return hand.add().batches

    def look(way: int) -> list[int]:
        barrier.wait(30)
        return buffering.batch_ready(context) if way else buffering.batch_orphans(context)

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(add, 0), pool.submit(add, 1), pool.submit(look, 0), pool.submit(look, 1)]
        made = [batch for job in jobs for batch in job.result(60)]
    assert len(made) == len(set(made)) >= 1
    with context.db.read() as session:
        rows = session.execute(select(BATCHES)).all()
        members = [number for row in rows for number in eval(row.shot_ids)]
        batched = session.execute(select(SHOTS.c.id).where(SHOTS.c.batch_id.is_not(None))).scalars().all()
    assert {row.id for row in rows} == set(made)
    assert sorted(members) == sorted(batched)


def test_two_frames_that_fill_the_buffer_at_once_make_one_batch(context: Context, hand: Hand) -> None:
    for _ in range(4):
        hand.add()
    barrier = threading.Barrier(2)

    def add(_: int) -> list[int]:
        barrier.wait(30)
        return hand.add().batches

    with ThreadPoolExecutor(2) as pool:
        made = [batch for batches in pool.map(add, range(2)) for batch in batches]
    assert len(made) == len(queries.batches(context)) == 1


def test_a_file_without_a_row_is_swept_when_it_is_old(context: Context, hand: Hand) -> None:
    import os

    hand.add()
    lost = context.settings.screenshot_dir / "lost.png"
    lost.write_text("x")
    assert storage.remove_orphans(context) == 0
    for name in files(context):
        os.utime(context.settings.screenshot_dir / name, (1, 1))
    assert storage.remove_orphans(context) == 1
    assert len(files(context)) == 1
