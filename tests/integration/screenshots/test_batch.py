from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update

from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UnitError, UserError
from pipeline.flows.screenshots import plan, queries, service
from pipeline.flows.screenshots.flow import FLOW
from pipeline.flows.screenshots.frames import files, retention
from pipeline.flows.screenshots.models import BATCHES, SHARDS, SHOTS
from pipeline.flows.screenshots.states import Origin, WorkStatus
from pipeline.flows.screenshots.work import analysis, expansion, retry, shard
from pipeline.flows.screenshots.work.shard import ShardUnit
from pipeline.storage.context import Context
from tests.integration.screenshots.conftest import ME, Evidence, Hand, as_expansion, draft, rows_of

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


def rest(context: Context, span: timedelta) -> None:
    """Let this time pass while a batch waits for its next attempt."""
    with context.db.transaction() as session:
        row = session.execute(select(BATCHES)).one()
        values = {name: getattr(row, name) - span for name in ("rests_since", "started_at")}
        session.execute(update(BATCHES).values(next_run_at=None, **values))


def claimed(context: Context, batch: int) -> ShardUnit:
    part = shard.claim(context, batch, ME)
    assert part is not None
    return part


def models(context: Context) -> list[str]:
    """Return the model of each shard; empty without a result."""
    with context.db.read() as session:
        return list(session.execute(select(SHARDS.c.model).order_by(SHARDS.c.number)).scalars())


def test_only_the_failed_shard_is_retried(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch()
    started = analysis.claim(context, batch)
    assert started is not None
    assert (started.due, started.is_new) == (3, True)
    found_again = analysis.claim(context, batch)
    assert found_again is not None
    assert (found_again.due, found_again.is_new) == (3, False)
    for number in range(3):
        part = claimed(context, batch)
        assert part.row.number == number
        if number == 1:
            assert shard.fail(context, part, UnitError("504")).retry_in_s
        else:
            assert hand.settle_shard(part, {shots[2 * number]: Evidence(f"text {number}")}, f"model {number}")
    settled = analysis.settle(context, batch)
    assert settled.status is WorkStatus.FAILED
    assert settled.retry_in_s
    assert statuses(context) == ["failed"] * 5
    assert analysis.claim(context, batch) is None  # not due
    due_now(context)
    retried = analysis.claim(context, batch)
    assert retried is not None
    assert (retried.due, retried.is_new) == (1, True)
    assert analysis.settle(context, batch).status is None  # a message of the previous attempt uses no attempt
    part = claimed(context, batch)
    assert part.row.number == 1
    hand.settle_shard(part, {shots[2]: Evidence("text 1")}, "model 1")
    assert shard.claim(context, batch, ME) is None
    assert analysis.settle(context, batch).status is WorkStatus.PENDING
    assert analysis.settle(context, batch).status is None  # one caller ends it
    assert models(context) == ["model 0", "model 1", "model 2"]
    read = [queries.screenshot(context, shot).ocr_text for shot in shots]
    assert read == ["text 0", None, "text 1", None, "text 2"]


@pytest.mark.both_databases
def test_a_batch_counts_attempts_over_its_whole_life_and_its_run_time_without_waits(
    context: Context, hand: Hand
) -> None:
    batch, shots = hand.batch()
    analysis.claim(context, batch)
    hand.settle_shard(claimed(context, batch))
    while part := shard.claim(context, batch, ME):
        shard.fail(context, part, UnitError("504"))
    analysis.settle(context, batch)
    first, last = (queries.screenshot(context, shots[place]) for place in (0, 4))
    assert first.vlm_next_run_at == last.vlm_next_run_at == queries.batch(context, batch).next_run_at is not None
    rest(context, timedelta(hours=30 * 24))
    hand.analyse_shards(batch, {shots[4]: Evidence("text", app_guess="Files")})
    first, last = (queries.screenshot(context, shots[place]) for place in (0, 4))
    # The first frame's shard had succeeded, so it was not repeated.
    assert [(frame.vlm_attempts, frame.vlm_next_run_at) for frame in (first, last)] == [(1, None), (2, None)]
    assert (last.app_guess, last.app_guess_confidence, first.app_guess_confidence) == ("Files", 0.5, None)
    unit = expansion.claim(context, batch, ME)
    assert unit is not None
    expansion.fail(context, unit, UnitError("503"))
    assert queries.batch(context, batch).total_attempts == 2  # its second attempt, which analysed the frames
    rest(context, timedelta(hours=1))
    unit = expansion.claim(context, batch, ME)
    assert unit is not None
    expansion.fail(context, unit, UnitError("no such model", kind=ErrorKind.PERMANENT))
    rest(context, timedelta(hours=1))
    service.replay(context, "batch", [batch])
    unit = expansion.claim(context, batch, ME)
    assert unit is not None
    expansion.settle(context, unit, as_expansion(batch, shots, [draft("a")]), Origin.MODEL)
    done = queries.batch(context, batch)
    assert (done.attempts, done.total_attempts) == (1, 4)
    assert done.run_ms < timedelta(minutes=30).total_seconds() * 1000
    assert queries.screenshot(context, shots[0]).vlm_attempts == 1


def test_a_batch_waits_as_long_as_a_server_asked_for_one_of_its_shards(context: Context, hand: Hand) -> None:
    batch, _ = hand.batch()
    analysis.claim(context, batch)
    for wait_s in (None, 120, None):
        shard.fail(context, claimed(context, batch), UnitError("503", retry_after_s=wait_s))
    assert analysis.settle(context, batch).retry_in_s == pytest.approx(120, abs=2)


def test_a_shard_that_is_under_way_keeps_its_batch_open(context: Context, hand: Hand) -> None:
    batch, _ = hand.batch()
    analysis.claim(context, batch)
    part = claimed(context, batch)
    assert analysis.settle(context, batch).status is None
    hand.settle_shard(part)
    assert analysis.settle(context, batch).status is None
    assert statuses(context, BATCHES) == ["running"]


@pytest.mark.both_databases
def test_a_result_with_a_lost_claim_changes_nothing(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch()
    analysis.claim(context, batch)
    stolen = claimed(context, batch)
    assert FLOW.free_lost(context, {ME.worker_id}) == 1
    assert not hand.settle_shard(stolen, {shots[0]: Evidence("late")})
    assert shard.fail(context, stolen, UnitError("late")).status is None
    assert statuses(context, SHARDS) == ["pending"] * 3
    hand.analyse_shards(batch)
    unit = expansion.claim(context, batch, ME)
    assert unit is not None
    assert FLOW.free_lost(context, {ME.worker_id}) == 1
    late = as_expansion(batch, shots, [draft("late", shots)])
    assert expansion.settle(context, unit, late, Origin.MODEL) is None
    assert expansion.fail(context, unit, UnitError("late")).status is None
    assert statuses(context, BATCHES) == ["pending"]


@pytest.mark.both_databases
def test_two_workers_that_finish_a_batch_finish_it_once(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch()
    hand.analyse_shards(batch, {shots[0]: Evidence("读到的文字 Ann", ["File"], ["Ann", "Bob"], "Code")})
    first = expansion.claim(context, batch, ME)
    assert first is not None
    assert expansion.claim(context, batch, OTHER) is None
    FLOW.free_lost(context, {ME.worker_id})
    second = expansion.claim(context, batch, OTHER)
    assert second is not None
    drawn = as_expansion(batch, shots, [draft("a", shots)])
    assert expansion.settle(context, first, drawn, Origin.MODEL) is None
    assert expansion.settle(context, second, drawn, Origin.MODEL) is not None
    assert expansion.settle(context, second, drawn, Origin.MODEL) is None
    row = queries.screenshot(context, shots[0])
    assert (row.ocr_text, row.app_guess, row.status) == ("读到的文字 Ann", "Code", "succeeded")
    assert (row.ui_text_snippets, row.detected_entities) == (["File"], ["Ann"])


def test_a_redelivered_message_gives_back_the_claims_of_its_dead_process(context: Context, hand: Hand) -> None:
    batch, _ = hand.batch()
    analysis.claim(context, batch)
    lost = claimed(context, batch)
    retried = claimed(context, batch)
    assert (retried.id, retried.attempts) == (lost.id, 2)
    assert not hand.settle_shard(lost)
    assert hand.settle_shard(retried)
    while part := shard.claim(context, batch, OTHER):
        hand.settle_shard(part)
    analysis.settle(context, batch)
    units = [expansion.claim(context, batch, ME) for _ in range(2)]
    assert [unit.attempts for unit in units if unit] == [1, 2]


def test_a_crash_on_the_last_attempt_makes_a_dead_letter_not_a_stranded_row(context: Context, hand: Hand) -> None:
    batch, _ = hand.batch()
    attempts = retry.policy(context.settings).max_attempts
    assert attempts == 6  # all five waits are used
    analysis.claim(context, batch)
    for attempt in range(attempts):
        assert claimed(context, batch).row.number == 0, attempt
        FLOW.free_lost(context, {ME.worker_id})
    while part := shard.claim(context, batch, ME):
        hand.settle_shard(part)
    assert analysis.settle(context, batch).status is WorkStatus.FAILED_PERMANENT
    letter = queries.dead_letters(context)[0]
    assert (letter.kind, letter.id) == ("batch", batch)
    assert letter.reason == "shard 1: the worker died during this work (after 6 attempts)"
    assert statuses(context) == ["failed_permanent"] * 5
    assert service.replay(context, "batch", [batch]) == [batch]
    assert statuses(context) == ["pending"] * 5
    assert queries.dead_letters(context) == []


def test_a_crash_on_the_last_attempt_of_an_expansion_makes_a_dead_letter(context: Context, hand: Hand) -> None:
    batch, _ = hand.batch()
    hand.analyse_shards(batch)
    attempts = retry.policy(context.settings).max_attempts
    for attempt in range(attempts):
        assert expansion.claim(context, batch, ME) is not None, attempt
        FLOW.free_lost(context, {ME.worker_id})
    assert expansion.claim(context, batch, ME) is None
    letter = queries.dead_letters(context)[0]
    assert (letter.kind, letter.id, letter.attempts) == ("batch", batch, attempts)
    assert "died" in letter.reason
    assert statuses(context) == ["succeeded"] * 5  # the frames' texts stay
    assert service.replay(context, "batch", [batch]) == [batch]
    assert [step.action for step in plan.next_steps(context, [batch])] == ["expand"]
    assert expansion.claim(context, batch, ME) is not None


def test_an_expired_lease_is_given_back(context: Context, hand: Hand) -> None:
    batch, _ = hand.batch()
    analysis.claim(context, batch)
    claimed(context, batch)
    assert FLOW.free_lost(context, set()) == 0
    with context.db.transaction() as session:
        session.execute(update(SHARDS).values(lease_until=datetime.now(UTC) - timedelta(seconds=1)))
    assert FLOW.free_lost(context, set()) == 1
    assert statuses(context, SHARDS) == ["pending"] * 3
    assert claimed(context, batch).row.number == 0


def dead_batch(context: Context, hand: Hand) -> int:
    """Make a batch that failed permanently at its expansion."""
    batch, _ = hand.batch()
    hand.analyse_shards(batch)
    unit = expansion.claim(context, batch, ME)
    assert unit is not None
    assert (
        expansion.fail(context, unit, UnitError("no such model", kind=ErrorKind.PERMANENT)).status
        is WorkStatus.FAILED_PERMANENT
    )
    return batch


@pytest.mark.both_databases
def test_replay_takes_some_or_all_dead_letters_and_nothing_if_one_id_is_not_a_dead_letter(
    context: Context, hand: Hand
) -> None:
    ids = [dead_batch(context, hand) for _ in range(3)]
    with pytest.raises(UserError, match="999"):
        service.replay(context, "batch", [ids[0], 999])
    assert [letter.reason for letter in queries.dead_letters(context)] == ["no such model"] * 3
    assert service.replay(context, "batch", ids[:1]) == ids[:1]
    assert service.replay(context, "batch") == ids[1:]


def test_a_replayed_batch_repeats_only_failed_shards_with_all_its_attempts(context: Context, hand: Hand) -> None:
    batch, _ = hand.batch()
    analysis.claim(context, batch)
    outcome = [UnitError("503"), None, UnitError("refused", kind=ErrorKind.PERMANENT)]
    for error in outcome:
        part = claimed(context, batch)
        if error is None:
            hand.settle_shard(part, model="paid")
        else:
            shard.fail(context, part, error)
    assert analysis.settle(context, batch).status is WorkStatus.FAILED_PERMANENT
    assert "shard 3: refused" in queries.dead_letters(context)[0].reason
    service.replay(context, "batch", [batch])
    retried = analysis.claim(context, batch)
    assert retried is not None
    assert retried.due == 2
    parts = [shard.claim(context, batch, owner) for owner in (ME, OTHER)]
    assert [(part.row.number, part.attempts) for part in parts if part] == [(0, 1), (2, 1)]
    assert models(context) == ["", "paid", ""]


def test_a_rate_limit_uses_no_attempt(context: Context, hand: Hand) -> None:
    batch, _ = hand.batch()
    analysis.claim(context, batch)
    failed = shard.fail(context, claimed(context, batch), UnitError("429", kind=ErrorKind.RATE_LIMITED))
    assert failed.status is not WorkStatus.FAILED_PERMANENT
    assert claimed(context, batch).attempts == 1
    batch, _ = hand.batch()
    hand.analyse_shards(batch)
    unit = expansion.claim(context, batch, ME)
    assert unit is not None
    expansion.fail(context, unit, UnitError("429", kind=ErrorKind.RATE_LIMITED))
    row = rows_of(context, BATCHES)[0]
    assert (row.status, row.attempts) == ("pending", 0)


def test_a_file_deleted_between_add_and_analyse_gives_up_its_frame_only(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch()
    analysis.claim(context, batch)
    part = claimed(context, batch)
    files.discard(context.settings, [part.shots[1].file])
    assert retention.image_of(context, part.shots[1]) is None
    assert retention.image_of(context, part.shots[2]) is not None
    hand.settle_shard(part)
    while another := shard.claim(context, batch, ME):
        hand.settle_shard(another)
    analysis.settle(context, batch)
    unit = expansion.claim(context, batch, ME)
    assert unit is not None
    drawn = as_expansion(batch, shots, [draft("a", shots[1:])])
    assert expansion.settle(context, unit, drawn, Origin.MODEL) is not None
    assert statuses(context) == ["failed_permanent", *["succeeded"] * 4]
    assert "deleted" in (queries.screenshot(context, shots[0]).error or "")


def test_originals_are_deleted_after_their_retention_and_their_texts_stay(context: Context, hand: Hand) -> None:
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
