"""The plan's messages: turns, places and priorities."""

import base64
import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.metrics import queue_depths
from pipeline.engine.transaction import Dispatch
from pipeline.flows.screenshots import plan, service
from pipeline.flows.screenshots.frames import buffer
from pipeline.flows.screenshots.live_settings import CONTROL, CPU, SCREENSHOT_TEXT, SCREENSHOT_VISION
from pipeline.flows.screenshots.models import BATCHES
from pipeline.flows.screenshots.plan import FILLER, TURN, URGENT, Action
from pipeline.flows.screenshots.scopes import Scope, batch_ids, buffer_of, scope_of
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.flows.screenshots.work import analysis, expansion, shard
from pipeline.process import new_context
from pipeline.providers import gates, queue_control
from pipeline.storage.context import Context
from tasks.flow import send
from tasks.screenshots import canvas
from tests.integration.screenshots.conftest import ME, Hand, draft, rows_of

HOUR = timedelta(hours=1)


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {
        "PENSTOCK_PROVIDERS__AI__BASE_URL": "http://127.0.0.1:9/v1",
        "PENSTOCK_PROVIDERS__AI__API_KEY": "k",
        "PENSTOCK_PROVIDERS__AI__MODEL": "any",
        "PENSTOCK_SCREENSHOTS__VISION_PROVIDER": "ai",
        "PENSTOCK_SCREENSHOTS__TEXT_PROVIDER": "ai",
        "PENSTOCK_SCREENSHOTS__BATCH_SIZE": "1",
        "PENSTOCK_SCREENSHOTS__SHARD_SIZE": "1",
        "PENSTOCK_SCREENSHOTS__PRESSURE_BATCHES": "1000",
    }


@pytest.fixture
def new(hand: Hand) -> Callable[..., list[int]]:
    """Makes batches of one frame; `age`: of the first batch; each further batch is a second younger."""

    screens = itertools.count(1)

    def make(count: int, age: timedelta = timedelta()) -> list[int]:
        ids = []
        for number in range(count):
            source = f"screen:{next(screens)}"
            assert hand.add(source=source).ready
            (batch,) = buffer.batch(hand.context, source)
            ids.append(batch)
            at = datetime.now(UTC) - age + timedelta(seconds=number - count)
            change(hand.context, batch, created_at=at)
        return ids

    return make


def change(context: Context, batch: int | None = None, **values: object) -> None:
    which = [BATCHES.c.id == batch] if batch is not None else []
    with context.db.transaction() as session:
        session.execute(update(BATCHES).where(*which).values(**values))


def row_of(context: Context, batch: int) -> Any:
    with context.db.read() as session:
        return session.execute(select(BATCHES).where(BATCHES.c.id == batch)).one()


def sent(context: Context) -> list[int]:
    """Return the batches that get their turn now."""
    return plan.take_turns(context)


def finish(context: Context, batch: int) -> None:
    """Finish a batch, which frees its place."""
    change(context, batch, status=WorkStatus.SUCCEEDED)


def turns(context: Context, count: int) -> list[int]:
    """Return the batches of the next turns; each batch ends before the next turn."""
    order: list[int] = []
    while len(order) < count:
        for batch in sent(context):
            order.append(batch)
            finish(context, batch)
    return order


def asks(context: Context, *batches: int) -> list[tuple[Action, str, int]]:
    """Return the (next action, queue, number of messages) of batches."""
    return [(step.action, step.queue, step.places) for step in plan.next_steps(context, batches)]


def waiting_in(context: Context, *queues: str) -> list[int]:
    """Count the messages in these queues."""
    return list(queue_depths(context.redis, list(queues)).values())


@pytest.mark.both_databases
def test_each_step_asks_for_messages_in_its_queue(context: Context, hand: Hand, new: Callable[..., list[int]]) -> None:
    (batch,) = new(1)
    assert asks(context, batch) == [], "its turn has not come"
    assert sent(context) == [batch]
    assert asks(context, batch) == [(Action.BEGIN, CONTROL, 1)]
    analysis.claim(context, batch)
    assert asks(context, batch) == [(Action.ANALYSE, SCREENSHOT_VISION, 1)]
    part = shard.claim(context, batch, ME)
    assert part is not None
    assert asks(context, batch) == [], "a worker holds its shard"
    hand.settle_shard(part)
    assert asks(context, batch) == [(Action.MERGE, CONTROL, 1)]
    analysis.settle(context, batch)
    assert asks(context, batch) == [(Action.EXPAND, SCREENSHOT_TEXT, 1)]
    assert expansion.claim(context, batch, ME) is not None
    assert asks(context, batch) == []


@pytest.mark.both_databases
def test_a_chain_that_broke_after_its_shards_continues_from_the_rows(
    context: Context, hand: Hand, new: Callable[..., list[int]]
) -> None:
    (batch,) = new(1)
    plan.take_turns(context)
    analysis.claim(context, batch)
    part = shard.claim(context, batch, ME)
    assert part is not None
    hand.settle_shard(part)
    analysis.settle(context, batch)  # by a worker that died before it sent the chain's next message
    assert canvas.TASKS.launch_all() == 1
    (message,) = map(json.loads, context.redis.lrange(SCREENSHOT_TEXT, 0, -1))
    assert message["headers"]["task"] == "screenshots.expand"
    _, _, embed = json.loads(base64.b64decode(message["body"]))
    assert [link["task"] for link in embed["chain"]] == ["screenshots.merge_nodes"]


def test_frames_that_make_a_batch_are_a_task_of_their_own(context: Context, hand: Hand, launched: Dispatch) -> None:
    hand.add()
    hand.add()
    send(context, launched)
    assert waiting_in(context, CONTROL) == [1], "one message for any number of frames"
    assert rows_of(context, BATCHES) == [], "the intake makes no batch"
    assert plan.due(context)[0] == buffer_of("screen:1"), "a lost message is replaced"
    canvas.batch.apply(["screen:1"])
    send(context, launched)
    (later, first) = rows_of(context, BATCHES)
    assert (first.shot_ids, later.shot_ids) == ("[1]", "[2]")
    assert plan.ready_buffers(context) == []
    assert context.redis.llen(CONTROL) == 3, "both batches have been launched"


def test_a_batch_has_its_turn_once(context: Context, new: Callable[..., list[int]]) -> None:
    (batch,) = new(1)
    assert sent(context) == [batch]
    assert sent(context) == []
    analysis.claim(context, batch)
    assert sent(context) == []


@pytest.mark.both_databases
def test_two_batches_are_under_way_at_once_until_one_has_its_nodes_or_waits(
    context: Context, hand: Hand, new: Callable[..., list[int]]
) -> None:
    batches = new(6)
    with ThreadPoolExecutor(4) as pool:
        first, second = itertools.chain(*pool.map(lambda _: sent(context), range(4)))
    assert sent(context) == []
    hand.analyse_shards(first)
    assert sent(context) == [], "a batch keeps its place until its expansion is done"
    assert expansion.claim(context, first, ME) is not None
    assert sent(context) == []
    finish(context, first)
    (third,) = sent(context)
    change(context, second, status=WorkStatus.FAILED, next_run_at=datetime.now(UTC) + HOUR, urgency=None)
    (fourth,) = sent(context)
    assert {first, second, third, fourth} < set(batches)


def test_new_batches_get_three_of_four_turns_while_old_ones_wait_too(
    context: Context, new: Callable[..., list[int]]
) -> None:
    old, fresh = set(new(8, HOUR)), set(new(20))
    order = turns(context, 24)
    assert set(order) <= old | fresh
    assert ["old" if batch in old else "new" for batch in order] == ["new", "new", "new", "old"] * 6


def test_the_turn_persists_and_starts_over_if_redis_loses_it(context: Context, new: Callable[..., list[int]]) -> None:
    old = set(new(4, HOUR))
    new(20)
    assert [batch in old for batch in turns(context, 6)] == [False, False, False, True, False, False]
    assert context.redis.get(TURN) == "6"
    assert [batch in old for batch in turns(context, 2)] == [False, True]
    context.redis.set(TURN, "nonsense")
    assert [batch in old for batch in turns(context, 2)] == [False, False]


@pytest.mark.both_databases
def test_an_empty_track_leaves_its_places_to_the_other(context: Context, new: Callable[..., list[int]]) -> None:
    old = new(9, HOUR)
    assert set(turns(context, 8)) <= set(old)
    assert context.redis.get(TURN) is None, "no turn is used, and no track accumulates turns"


def test_recovering_batches_let_others_pass_only_in_places_that_no_new_batch_needs(
    context: Context, new: Callable[..., list[int]]
) -> None:
    old = set(new(8, HOUR))
    first = sent(context)
    assert set(first) <= old
    assert {row_of(context, batch).urgency for batch in first} == {FILLER}
    new(8)
    for batch in first:
        analysis.claim(context, batch)
    assert {step.priority for step in plan.next_steps(context, first)} == {FILLER}
    for batch in first:
        finish(context, batch)
    second = turns(context, 4)
    assert set(second) & old, "it has its own turns beside new batches"
    assert {row_of(context, batch).urgency for batch in second} == {URGENT}


def test_a_scan_reads_twenty_rows_the_newest_and_the_oldest(context: Context, new: Callable[..., list[int]]) -> None:
    batches = new(25)
    change(context, attempts=1)
    fresh = batches[12]
    change(context, fresh, attempts=0)
    assert fresh not in turns(context, 4), "ten newer and ten older ones stand before it"
    assert fresh in turns(context, 4)


def test_four_calls_pass_each_gate_at_once(context: Context) -> None:
    gates.sync(context)
    for queue in (SCREENSHOT_VISION, SCREENSHOT_TEXT):
        gate = gates.gate(context, queue)
        assert [gate.admit(str(number)).granted for number in range(5)] == [True] * 4 + [False]


def test_merges_get_the_text_calls_that_two_reserved_ones_and_the_batches_leave(
    context: Context, hand: Hand, new: Callable[..., list[int]]
) -> None:
    gates.sync(context)
    context.settings.screenshots.text_concurrency = 6
    for batch in new(4):
        hand.analyse(batch, [draft(f"Topic {batch}", thread=f"thread_{batch}")])
    canvas.TASKS.launch(Scope.MERGE_LANES)
    assert waiting_in(context, SCREENSHOT_TEXT) == [2]


def test_messages_of_all_priorities_are_counted(context: Context) -> None:
    for priority in (0, 3, 9):
        signature = canvas.TASKS.wake.si().set(queue=SCREENSHOT_TEXT, priority=priority)
        signature.apply_async()
    assert queue_depths(context.redis, [SCREENSHOT_TEXT, CONTROL]) == {SCREENSHOT_TEXT: 3, CONTROL: 0}


def test_only_the_flows_own_queues_have_less_urgent_messages() -> None:
    assert [plan.priority(queue, FILLER) for queue in (SCREENSHOT_VISION, SCREENSHOT_TEXT)] == [3, 3]
    assert [plan.priority(queue, FILLER) for queue in (CONTROL, CPU, "vision.other")] == [0, 0, 0]
    assert plan.priority(SCREENSHOT_VISION, URGENT) == 0


def test_a_retried_batch_is_on_the_recovery_track_at_any_age(context: Context, new: Callable[..., list[int]]) -> None:
    tried, *fresh = new(8)
    change(context, tried, attempts=1, status=WorkStatus.FAILED, next_run_at=None)
    assert turns(context, 4).index(tried) == 3
    assert len(fresh) == 7


@pytest.mark.both_databases
def test_half_of_the_launched_batches_are_the_newest_and_half_the_oldest(
    context: Context, new: Callable[..., list[int]]
) -> None:
    batches = new(30)
    assert sent(context) == [batches[-1], batches[0]]
    finish(context, batches[-1])
    finish(context, batches[0])
    assert sent(context) == [batches[-2], batches[1]]


def test_a_batch_that_waits_for_its_next_attempt_is_not_sent_before(
    context: Context, new: Callable[..., list[int]]
) -> None:
    (batch,) = new(1)
    sent(context)
    analysis.claim(context, batch)
    part = shard.claim(context, batch, ME)
    assert part is not None
    shard.fail(context, part, UnitError("503"))
    wait_s = analysis.settle(context, batch).retry_in_s
    assert wait_s
    assert plan.next_retry_s(context) == pytest.approx(wait_s, abs=2)
    assert sent(context) == []
    change(context, batch, next_run_at=datetime.now(UTC))
    assert sent(context) == [batch]


def test_a_message_is_not_sent_twice_until_the_broker_has_lost_it(
    context: Context, new: Callable[..., list[int]]
) -> None:
    new(2)
    assert canvas.TASKS.launch(Scope.BATCHES) == 2
    scopes = list(plan.runnable(context, ()))
    assert canvas.TASKS.launch(*scopes) == 0
    assert waiting_in(context, CONTROL) == [2]
    context.redis.flushdb()
    assert canvas.TASKS.launch(*scopes) == 2
    assert waiting_in(context, CONTROL) == [2]


def test_no_message_goes_to_a_closed_gate_and_the_sweeper_skips_batches_that_wait_for_it(
    context: Context, hand: Hand, new: Callable[..., list[int]]
) -> None:
    running, analysed, ended = new(3)
    sent(context)
    analysis.claim(context, running)
    hand.analyse_shards(analysed)
    analysis.claim(context, ended)
    part = shard.claim(context, ended, ME)
    assert part is not None
    hand.settle_shard(part)
    gates.sync(context)
    closed = (SCREENSHOT_VISION, SCREENSHOT_TEXT)
    for queue in closed:
        queue_control.pause(context, queue, None)
    assert canvas.TASKS.launch(*map(scope_of, (running, analysed))) == 0
    assert waiting_in(context, *closed) == [0, 0]
    assert batch_ids(plan.runnable(context, closed)) == [ended]
    assert batch_ids(plan.runnable(context, ())) == [running, ended, analysed]


def test_a_chord_has_a_message_for_each_shard_that_lacks_one(context: Context, new: Callable[..., list[int]]) -> None:
    (batch,) = new(1)
    sent(context)
    analysis.claim(context, batch)
    assert canvas.TASKS.launch(scope_of(batch)) == 1
    assert canvas.TASKS.launch(scope_of(batch)) == 0
    assert waiting_in(context, SCREENSHOT_VISION) == [1]


def test_a_replayed_dead_letter_is_sent(context: Context, new: Callable[..., list[int]]) -> None:
    (batch,) = new(1)
    sent(context)
    analysis.claim(context, batch)
    part = shard.claim(context, batch, ME)
    assert part is not None
    shard.fail(context, part, UnitError("refused", kind=ErrorKind.PERMANENT))
    assert analysis.settle(context, batch).status is WorkStatus.FAILED_PERMANENT
    assert sent(context) == []
    service.replay(context, "batch")
    assert sent(context) == [batch]
    assert analysis.claim(context, batch) is not None


def test_batches_behind_the_text_models_open_breaker_continue_without_it(
    context: Context, hand: Hand, new: Callable[..., list[int]]
) -> None:
    (batch,) = new(1)
    hand.analyse_shards(batch)
    assert canvas.TASKS.launch(scope_of(batch)) == 1
    gates.sync(context)
    gates.breaker(context, "ai:text").open(600, "by hand")
    assert asks(context, batch) == [(Action.EXPAND, CONTROL, 1)]
    assert canvas.TASKS.launch(scope_of(batch)) == 1
    assert canvas.TASKS.launch(scope_of(batch)) == 0, "once"


def test_frames_wait_for_a_provider_that_is_down(context: Context, new: Callable[..., list[int]]) -> None:
    (batch,) = new(1)
    gates.sync(context)
    gates.breaker(context, "ai:vision").open(600, "by hand")
    assert sent(context) == [batch]
    analysis.claim(context, batch)
    assert asks(context, batch) == [(Action.ANALYSE, SCREENSHOT_VISION, 1)]
    assert canvas.TASKS.launch(scope_of(batch)) == 0


class TestWithoutProviders:
    """This machine does all steps."""

    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {"PENSTOCK_SCREENSHOTS__BATCH_SIZE": "1"}

    def test_this_machine_analyses_frames(self, context: Context, new: Callable[..., list[int]]) -> None:
        (batch,) = new(1)
        sent(context)
        analysis.claim(context, batch)
        assert asks(context, batch) == [(Action.ANALYSE, CPU, 1)]


def test_this_machine_analyses_frames_of_a_removed_provider(context: Context, new: Callable[..., list[int]]) -> None:
    (batch,) = new(1)
    sent(context)
    analysis.claim(context, batch)
    assert asks(context, batch) == [(Action.ANALYSE, SCREENSHOT_VISION, 1)]
    own = context.settings.screenshots.model_copy(update={"vision_provider": "", "text_provider": ""})
    without = new_context(context.settings.model_copy(update={"screenshots": own, "providers": {}}))
    assert asks(without, batch) == [(Action.ANALYSE, CPU, 1)]
    assert batch_ids(plan.runnable(without, ())) == [batch]
    without.db.dispose()
