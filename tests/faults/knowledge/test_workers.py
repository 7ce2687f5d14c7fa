"""Killed workers, storms of provider errors and an emptied Redis leave the same rows as a run without faults."""

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.flows.knowledge import check as checking
from pipeline.flows.knowledge import files, queries
from pipeline.flows.knowledge.flow import FLOW
from pipeline.flows.knowledge.queries import UnknownItem
from tasks import knowledge
from tests.faults.flow import POSTGRESQL, SQLITE
from tests.faults.knowledge.flow import DONE_S, START_S, Knowledge
from tests.support.knowledge_driver import WORKER, Driver
from tests.support.provider_server import Fault, Record
from tests.support.redis_server import RedisServer
from tests.support.stack import Stack, python
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults

# The function at which the worker dies, and the most calls under way or without a stored answer.
STEPS = {
    "when_an_item_is_begun": ("work.admission:admit:after", 0),
    "with_an_item_to_read": ("work.content:_claim:after", 0),
    "before_chunks_are_stored": ("work.content:_store:before", 0),
    "before_chunks_are_settled": ("work.content:_forget_drafts:before", 0),
    "with_a_batch_claimed": ("work.batch:_claim:after", 0),
    "while_the_provider_answers": ("work.batch:embedded_text:during", 1),
    "with_an_answer_that_is_not_stored": ("work.batch:_settle:before", 0),
    "with_an_answer_just_stored": ("work.batch:_settle:after", 0),
    "with_an_item_to_write": ("work.publication:_claim:after", 0),
    "while_vectors_are_written": ("work.publication:_forget_old:before", 0),
    "when_vectors_are_just_written": ("work.publication:vectors.upsert:after", 0),
}


def deadly(*names: str) -> pytest.MarkDecorator:
    """Run the test once for each of these steps, with a worker that dies there."""
    cases = [
        pytest.param({"KILL_AT": f"pipeline.flows.knowledge.{STEPS[name][0]}"}, STEPS[name][1], id=name)
        for name in names
    ]
    return pytest.mark.parametrize(("extra_env", "in_vain"), cases, indirect=["extra_env"])


def _die_and_finish(kb: Knowledge, in_vain: int, folder: Path, env: dict[str, str]) -> None:
    ids = kb.add(kb.base(), 3)
    with python("tests.faults.knowledge.doomed", folder, kb.context, env) as doomed:
        assert doomed.wait(START_S) == -signal.SIGKILL, kb.describe()
    FLOW.free_lost(kb.context, {WORKER})
    Driver(kb.context, "w:2:b").finish()
    kb.assert_as_without_faults(ids)
    kb.assert_paid_once(repeated=in_vain)


@SQLITE
@deadly(*STEPS)
def test_worker_killed_costs_the_call_under_way_and_nothing_else(
    kb: Knowledge, in_vain: int, data_dir: Path, settings_env: dict[str, str]
) -> None:
    _die_and_finish(kb, in_vain, data_dir, settings_env)


@pytest.mark.rotating
@POSTGRESQL
@deadly("before_chunks_are_settled", "with_an_answer_that_is_not_stored", "while_vectors_are_written")
def test_the_same_on_postgresql(kb: Knowledge, in_vain: int, data_dir: Path, settings_env: dict[str, str]) -> None:
    _die_and_finish(kb, in_vain, data_dir, settings_env)


@pytest.mark.rotating
def test_results_survive_killed_workers_an_emptied_redis_and_a_storm_of_errors(
    stack: Stack, kb: Knowledge, redis_server: RedisServer
) -> None:
    kb.provider.script.rule = _storm()
    stack.start("knowledge-1", "knowledge-2", "beat-1")
    ids = [item_id for number in range(3) for item_id in kb.add(kb.base(f"base {number}"), 8, name=f"file {number}")]
    assert kb.provider.wait_for_calls(12, START_S), kb.describe()
    stack["knowledge-1"].kill_group()
    stack.start("knowledge-3")
    calls = len(kb.provider.records)
    assert kb.provider.wait_for_calls(calls + 12, START_S), kb.describe()
    redis_server.flush()
    kb.finish()
    kb.assert_as_without_faults(ids)
    # Of the killed worker's threads, as many calls as the gate admits.
    kb.assert_paid_once(repeated=4)
    with kb.context.db.read() as session:
        assert session.execute(FLOW.anything).scalar_one() == 0  # type: ignore[arg-type]


def _storm() -> Callable[[Record], Fault | None]:
    """Fail every third of the first thirty calls, in turn with 429 and 503; no batch twice, so that no batch loses its
    three attempts together with the worker's death."""
    seen: list[Record] = []
    failed: set[str] = set()

    def rule(record: Record) -> Fault | None:
        seen.append(record)
        if len(seen) > 30 or len(seen) % 3 or failed & set(record.body["input"]):
            return None
        failed.update(record.body["input"])
        return Fault(status=429, headers={"Retry-After": "0.2"}) if len(seen) % 2 else Fault(status=503)

    return rule


@pytest.mark.rotating
@SQLITE
def test_acceptance_of_the_design(stack: Stack, kb: Knowledge) -> None:
    """A batch of 100 files, a small base beside it, the deletion of a running item, and a large file."""
    kb.provider.script.latency_s = 0.02
    stack.start("knowledge-1", "beat-1")
    large = kb.folder / "large.md"
    large.write_text("\n\n".join(f"Paragraph {number} of a large file. " + "word " * 20 for number in range(2000)))
    first, second, third = (
        kb.base("first"),
        kb.base("second", provider="local", model=""),
        kb.base("third", provider="local", model=""),
    )
    ids = kb.add(first, 100, chunks=2, name="many")
    wait_until(lambda: kb.states().get("completed", 0) >= 3, START_S, "some items are completed", last=kb.describe)
    kb.add(second, 5, chunks=2, name="few")
    added = knowledge.add_files(third, [large])
    item_id = added.created[0].id
    wait_until(
        lambda: queries.item(kb.context, item_id).status == "embedding",
        DONE_S,
        "the item is being embedded",
        last=kb.describe,
    )
    seen = {listed.progress for listed in knowledge.items(first, limit=200)}
    assert seen - {0, 100} or len(seen) == 2, "progress is visible while it runs"
    knowledge.delete(item_id)
    with suppress(UnknownItem):  # the item may be completed
        assert queries.item(kb.context, item_id).deleting
    wait_until(lambda: _is_deleted(kb, item_id), DONE_S, "the item is deleted", last=kb.describe)
    kb.finish()
    order = kb.completions()
    few = [place for place, name in enumerate(order) if name.startswith("few")]
    before = [name for name in order[few[0] : few[-1]] if name.startswith("many")]
    assert len(before) <= 2 * len(few) + 4, "the small base got its share of the turns"
    assert checking.check(kb.context).sound
    kb.assert_paid_once()
    assert {queries.item(kb.context, listed).progress for listed in ids} == {100}


def _is_deleted(kb: Knowledge, item_id: str) -> bool:
    try:
        queries.item(kb.context, item_id)
    except UnknownItem:
        return not files.folder(kb.context.settings, item_id).exists()
    return False
