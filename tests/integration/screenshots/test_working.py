from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update

from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UnitError, UserError
from pipeline.screenshots import queries, recovery, shards, working
from pipeline.screenshots.frames import retention, storage
from pipeline.screenshots.models import BATCHES, SHARDS, SHOTS
from pipeline.screenshots.working import Evidence, Lane
from pipeline.storage.context import Context
from tests.integration.screenshots.conftest import ME, Hand, draft

OTHER = Owner("there:2:b", "request-2")


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_SCREENSHOTS__SHARD_SIZE": "2"}


def statuses(context: Context, table: object = SHOTS) -> list[str]:
    with context.db.read() as session:
        return list(session.execute(select(table.c.status).order_by(table.c.id)).scalars())  # type: ignore[attr-defined]


def due_now(context: Context) -> None:
    with context.db.transaction() as session:
        session.execute(update(BATCHES).values(next_run_at=None))


def test_only_the_failed_shard_runs_again(context: Context, hand: Hand) -> None:
    batch, _ = hand.batch()
    unit = working.begin(context, ME, batch_id=batch)
    assert unit is not None
    assert len(unit.open_shards) == 3
    assert working.begin(context, OTHER, batch_id=batch) is None
    for number in range(3):
        shard = shards.claim(context, batch, ME)
        assert shard is not None
        assert shard.number == number
        if number == 1:
            assert shards.failed(context, shard, UnitError("504")).retry_in_s
        else:
            assert shards.done(context, shard, f"result {number}", "m")
    assert shards.settle(context, batch) == "failed"
    assert statuses(context) == ["failed"] * 5
    assert working.begin(context, ME, batch_id=batch) is None  # not due
    due_now(context)
    again = working.begin(context, ME, batch_id=batch)
    assert again is not None
    assert len(again.open_shards) == 1
    shard = shards.claim(context, batch, ME)
    assert shard is not None
    assert shard.number == 1
    shards.done(context, shard, "result 1", "m")
    assert shards.claim(context, batch, ME) is None
    assert shards.settle(context, batch) == "succeeded"
    assert shards.results(context, batch) == ["result 0", "result 1", "result 2"]


def test_a_result_whose_claim_was_taken_away_changes_nothing(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch()
    hand_unit = working.begin(context, ME, batch_id=batch)
    assert hand_unit is not None
    stolen = shards.claim(context, batch, ME)
    assert stolen is not None
    assert recovery.free_lost(context, {ME.worker_id}) == 2
    assert not shards.done(context, stolen, "late", "m")
    assert working.finish(context, hand_unit, {}, [draft("late", shots)]) is None
    assert statuses(context) == ["pending"] * 5


def test_two_that_finish_a_batch_finish_it_once(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch()
    working.begin(context, ME, batch_id=batch)
    while shard := shards.claim(context, batch, ME):
        shards.done(context, shard, "{}", "m")
    first, second = working.resume(context, batch, ME), working.resume(context, batch, OTHER)
    assert first is not None
    assert second is not None
    evidence = {shots[0]: Evidence("读到的文字", ["File"], ["Ann"], "Code")}
    assert working.finish(context, first, evidence, [draft("a", shots)]) is None
    assert working.finish(context, second, evidence, [draft("a", shots)]) is not None
    assert working.finish(context, second, evidence, [draft("a", shots)]) is None
    row = queries.screenshot(context, shots[0])
    assert (row.ocr_text, row.app_guess, row.status) == ("读到的文字", "Code", "succeeded")


def test_a_crash_on_the_last_attempt_makes_a_dead_letter_not_a_stranded_row(context: Context, hand: Hand) -> None:
    batch, _ = hand.batch()
    attempts = retrying.policy(context.settings.screenshots).max_attempts
    assert attempts == 6  # every one of the five waits is used
    for attempt in range(attempts):
        assert working.begin(context, ME, batch_id=batch) is not None, attempt
        recovery.free_lost(context, {ME.worker_id})
    assert working.begin(context, ME, batch_id=batch) is None
    letter = recovery.dead_letters(context)[0]
    assert (letter.kind, letter.id, letter.attempts) == ("batch", batch, attempts)
    assert "lost" in letter.reason
    assert statuses(context) == ["failed_permanent"] * 5
    assert recovery.replay(context, "batch", [batch]) == [batch]
    assert statuses(context) == ["pending"] * 5
    assert recovery.dead_letters(context) == []


def test_an_expired_lease_is_given_back(context: Context, hand: Hand) -> None:
    batch, _ = hand.batch()
    working.begin(context, ME, batch_id=batch)
    assert recovery.free_lost(context, set()) == 0
    with context.db.transaction() as session:
        session.execute(update(BATCHES).values(lease_until=datetime.now(UTC) - timedelta(seconds=1)))
    assert recovery.free_lost(context, set()) == 1
    assert statuses(context, BATCHES) == ["pending"]


def test_replaying_some_or_all_and_nothing_when_one_is_no_dead_letter(context: Context, hand: Hand) -> None:
    ids = []
    for _ in range(3):
        batch, _ = hand.batch()
        unit = working.begin(context, ME, batch_id=batch)
        assert unit is not None
        assert working.fail(context, unit, UnitError("no such model", kind=ErrorKind.PERMANENT)).final
        ids.append(batch)
    with pytest.raises(UserError, match="999"):
        recovery.replay(context, "batch", [ids[0], 999])
    assert [letter.reason for letter in recovery.dead_letters(context)] == ["no such model"] * 3
    assert recovery.replay(context, "batch", ids[:1]) == ids[:1]
    assert recovery.replay(context, "batch") == ids[1:]


def test_a_replayed_batch_asks_only_for_what_failed_and_with_all_its_attempts(context: Context, hand: Hand) -> None:
    batch, _ = hand.batch()
    working.begin(context, ME, batch_id=batch)
    outcome = [UnitError("503"), None, UnitError("refused", kind=ErrorKind.PERMANENT)]
    for error in outcome:
        shard = shards.claim(context, batch, ME)
        assert shard is not None
        if error is None:
            shards.done(context, shard, "paid", "m")
        else:
            shards.failed(context, shard, error)
    assert shards.settle(context, batch) == "failed_permanent"
    assert "shard 2: refused" in recovery.dead_letters(context)[0].reason
    recovery.replay(context, "batch", [batch])
    again = working.begin(context, ME, batch_id=batch)
    assert again is not None
    assert len(again.open_shards) == 2
    found = [shards.claim(context, batch, ME) for _ in range(2)]
    assert [(shard.number, shard.attempts) for shard in found if shard] == [(0, 1), (2, 1)]
    assert shards.results(context, batch) == ["paid"]


def test_a_rate_limit_uses_no_attempt(context: Context, hand: Hand) -> None:
    batch, _ = hand.batch()
    unit = working.begin(context, ME, batch_id=batch)
    assert unit is not None
    working.fail(context, unit, UnitError("429", kind=ErrorKind.RATE_LIMITED))
    row = queries.batches(context)[0]
    assert (row.status, row.attempts) == ("pending", 0)


def test_lanes_split_fresh_batches_from_old_and_tried_ones(context: Context, hand: Hand) -> None:
    old, _ = hand.batch()
    fresh, _ = hand.batch()
    with context.db.transaction() as session:
        an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
        session.execute(update(BATCHES).where(BATCHES.c.id == old).values(created_at=an_hour_ago))
    realtime, recovered = (working.begin(context, ME, lane=lane) for lane in (Lane.REALTIME, Lane.RECOVERY))
    assert realtime is not None
    assert recovered is not None
    assert (realtime.id, recovered.id) == (fresh, old)
    assert working.begin(context, ME, lane=Lane.REALTIME) is None


def test_a_file_deleted_between_add_and_analyse_gives_up_its_frame_only(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch()
    working.begin(context, ME, batch_id=batch)
    shard = shards.claim(context, batch, ME)
    assert shard is not None
    storage.discard(context.settings, [shard.shots[0].file])
    assert retention.image_of(context, shard.shots[0]) is None
    assert retention.image_of(context, shard.shots[1]) is not None
    shards.done(context, shard, "{}", "m")
    while shard := shards.claim(context, batch, ME):
        shards.done(context, shard, "{}", "m")
    unit = working.resume(context, batch, ME)
    assert unit is not None
    assert working.finish(context, unit, {}, [draft("a", shots[1:])]) is not None
    assert statuses(context) == ["failed_permanent", *["succeeded"] * 4]
    assert "gone" in queries.screenshot(context, shots[0]).error


def test_originals_go_when_their_time_is_over_and_what_was_read_stays(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch()
    hand.analyse(batch, [draft("a", shots)], {shots[0]: Evidence("text")})
    assert retention.expire(context) == 0
    with context.db.transaction() as session:
        session.execute(update(SHOTS).values(retention_expires_at=datetime.now(UTC)))
    assert retention.expire(context) == 5
    assert list(context.settings.screenshot_dir.iterdir()) == []
    row = queries.screenshot(context, shots[0])
    assert (row.storage_state, row.ocr_text) == ("deleted", "text")
    assert len(statuses(context, SHARDS)) == 3
