"""A message analyses a shard: its request, its stored result, and its errors."""

import hashlib
import json
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from pipeline.engine.errors import UnitError
from pipeline.engine.traces import AiCall
from pipeline.flows.screenshots import queries, service
from pipeline.flows.screenshots.frames import files
from pipeline.flows.screenshots.graph.models import CALLS
from pipeline.flows.screenshots.live_settings import CPU, SCREENSHOT_VISION
from pipeline.flows.screenshots.models import BATCHES, SHARDS, SHOTS
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.flows.screenshots.work import analysis, shard
from pipeline.providers import gates, queue_control
from pipeline.storage.context import Context
from tests.integration.screenshots.conftest import ME, row_of, rows_of
from tests.integration.screenshots.work.conftest import NewBatch
from tests.support.provider_server import Fault, ProviderServer
from tests.support.screens import Driver, Models, index_reply, prompt_of


def shard_rows(context: Context) -> list[Any]:
    with context.db.read() as session:
        return list(session.execute(select(SHARDS).order_by(SHARDS.c.number)))


def used_calls(context: Context) -> list[Any]:
    with context.db.read() as session:
        return list(session.execute(select(CALLS).order_by(CALLS.c.id)))


def traced(context: Context) -> list[tuple[str, str, str]]:
    with context.db.read() as session:
        rows = session.execute(select(AiCall.operation, AiCall.model, AiCall.status).order_by(AiCall.id))
        return [(row.operation, row.model, row.status) for row in rows]


def batch_row(context: Context) -> Any:
    with context.db.read() as session:
        return session.execute(select(BATCHES)).one()


def titles(context: Context) -> list[str]:
    index = json.loads(batch_row(context).index_json)
    return [segment["event"]["title"] for segment in index["segments"]]


@pytest.mark.both_databases
def test_valid_replies_are_stored_with_their_calls(
    context: Context, driver: Driver, provider: ProviderServer, new_batch: NewBatch
) -> None:
    batch, shots = new_batch()
    assert driver.analyse_all(batch).status is WorkStatus.PENDING
    assert titles(context) == ["Writing a test"]  # segments at the boundary between the shards are joined
    assert [queries.screenshot(context, shot).ocr_text for shot in shots] == [f"text {shot}" for shot in shots]
    first, second = used_calls(context)
    messages = provider.records[0].body["messages"]
    digest = hashlib.sha256(f"{messages[0]['content']}\0{messages[1]['content'][0]['text']}".encode()).hexdigest()
    assert (first.batch_id, first.operation, first.provider, first.model) == (batch, "vlm_analyze_shard", "ai", "eyes")
    assert (first.prompt_hash, first.attempt, first.ask) == (digest, 1, "first")
    assert [json.loads(call.shot_ids) for call in (first, second)] == [shots[:3], shots[3:]]
    assert traced(context) == [("vlm_analyze_shard", "eyes", "ok")] * 2
    assert [len(record.body["messages"][1]["content"]) - 1 for record in provider.records] == [3, 2]
    # Screen ids count in the batch, not in the shard.
    assert [[frame["screen_id"] for frame in prompt_of(record)["screenshots"]] for record in provider.records] == [
        [1, 2, 3],
        [4, 5],
    ]


def test_unusable_reply_is_repaired_once_by_a_second_message(
    context: Context, driver: Driver, provider: ProviderServer, new_batch: NewBatch
) -> None:
    batch, _ = new_batch()
    analysis.claim(context, batch)
    provider.push(Fault(status=200, text='{"segments": 5}'))
    looked = driver.analyse(batch)
    assert (looked.status, looked.requeue) == (WorkStatus.PENDING, True)
    row = shard_rows(context)[0]
    assert (row.status, row.attempts, row.ask, row.reply) == ("pending", 0, "repair", '{"segments": 5}')
    assert used_calls(context) == []
    assert not driver.analyse(batch).requeue
    content = provider.records[1].body["messages"][1]["content"]
    assert "segments: Input should be a valid list" in content[0]["text"]
    assert len(content) == 4  # the repair repeats the pictures
    row = shard_rows(context)[0]
    assert (row.status, row.attempts, row.reply) == ("succeeded", 1, None)
    assert [(call.attempt, call.ask) for call in used_calls(context)] == [(1, "repair")]


def test_batch_fails_if_its_reply_is_unusable_after_one_repair(
    context: Context, driver: Driver, provider: ProviderServer, models: Models, new_batch: NewBatch
) -> None:
    models.index = lambda request: index_reply(request) if len(request["screenshots"]) == 2 else "I cannot say."
    batch, _ = new_batch()
    assert driver.analyse_all(batch).status is WorkStatus.FAILED_PERMANENT
    assert len(provider.records) == 3  # two about the first shard, one about the second
    assert [row.status for row in shard_rows(context)] == ["failed_permanent", "succeeded"]
    reason = queries.dead_letters(context)[0].reason
    assert reason.startswith("shard 1: the model's reply is unusable, even after a repair: the reply is not JSON")


def test_valid_parts_of_an_unusable_reply_are_kept_with_a_note(
    context: Context, driver: Driver, provider: ProviderServer, models: Models, new_batch: NewBatch
) -> None:
    def half(request: dict[str, Any]) -> object:
        reply = index_reply(request)
        reply["segments"].append({"screen_ids": "all", "event": {}})
        return reply

    models.index = half
    batch, _ = new_batch()
    assert driver.analyse_all(batch).status is WorkStatus.PENDING
    assert len(provider.records) == 4
    assert titles(context) == ["Writing a test"]
    assert "used only the valid parts of the reply" in batch_row(context).notes


def test_truncated_reply_is_not_requested_twice(
    context: Context, driver: Driver, provider: ProviderServer, new_batch: NewBatch
) -> None:
    batch, _ = new_batch()
    provider.push(Fault("truncated", text='{"segments": ['))
    assert driver.analyse_all(batch).status is WorkStatus.FAILED_PERMANENT
    assert len(provider.records) == 2
    assert "PENSTOCK_SCREENSHOTS__SHARD_SIZE" in queries.dead_letters(context)[0].reason


def test_unsent_screenshots_are_left_out(context: Context, driver: Driver, models: Models, new_batch: NewBatch) -> None:
    others = new_batch()[1]

    def with_unsent(request: dict[str, Any]) -> object:
        reply = index_reply(request)
        reply["segments"][0]["screen_ids"].append(77)
        reply["segments"].append({"screen_ids": [99], "event": {"title": "Elsewhere"}})
        reply["screenshots"].append({"screenshot_id": others[0], "ocr_text": "not asked for"})
        return reply

    models.index = with_unsent
    batch, _ = new_batch()
    driver.analyse_all(batch)
    notes = rows_of(context, BATCHES)[0].notes
    assert "“Elsewhere” was left out" in notes
    assert f"the reply describes a screenshot that was not sent: {others[0]}" in notes
    assert queries.screenshot(context, others[0]).ocr_text is None
    segments = json.loads(rows_of(context, BATCHES)[0].index_json)["segments"]
    assert [segment["screen_ids"] for segment in segments] == [[1, 2, 3, 4, 5]]


def test_refusal_is_final_for_its_shard_and_its_sibling_is_paid_for_once(
    context: Context, driver: Driver, provider: ProviderServer, new_batch: NewBatch
) -> None:
    batch, _ = new_batch()
    provider.push(Fault("refusal"))
    assert driver.analyse_all(batch).status is WorkStatus.FAILED_PERMANENT
    assert [row.status for row in shard_rows(context)] == ["failed_permanent", "succeeded"]
    assert "refused to answer" in queries.dead_letters(context)[0].reason
    assert traced(context)[0] == ("vlm_analyze_shard", "eyes", "permanent")
    service.replay(context, "batch")
    assert driver.analyse_all(batch).status is WorkStatus.PENDING
    assert len(provider.records) == 3


@pytest.mark.usefixtures("others_succeed")
def test_shard_waits_after_a_server_error_and_is_retried_alone(
    context: Context, driver: Driver, provider: ProviderServer, new_batch: NewBatch
) -> None:
    batch, _ = new_batch()
    provider.push(Fault(status=503))
    settled = driver.analyse_all(batch)
    assert settled.status is WorkStatus.FAILED
    assert settled.retry_in_s is not None
    assert 4 < settled.retry_in_s < 16  # 5 s and a jitter of up to 10
    assert [(row.status, row.attempts) for row in shard_rows(context)] == [("failed", 1), ("succeeded", 1)]
    assert analysis.claim(context, batch) is None, "not due"
    driver.skip_waits()
    assert driver.analyse_all(batch).status is WorkStatus.PENDING
    assert [len(prompt_of(record)["screenshots"]) for record in provider.records] == [3, 2, 3]
    assert [(call.attempt, json.loads(call.shot_ids)[0]) for call in used_calls(context)][1][0] == 2
    assert batch_row(context).error is None


def test_rate_limited_shard_waits_at_the_gate_without_an_attempt(
    context: Context, driver: Driver, provider: ProviderServer, new_batch: NewBatch
) -> None:
    batch, _ = new_batch()
    analysis.claim(context, batch)
    provider.push(Fault(status=429, headers={"Retry-After": "300"}))
    assert driver.analyse(batch).requeue
    assert [(row.status, row.attempts) for row in shard_rows(context)] == [("pending", 0)] * 2
    # The gate is closed now, so no message is sent.
    assert driver.analyse(batch).requeue
    assert len(provider.records) == 1
    assert gates.closed_because(context, SCREENSHOT_VISION)


def test_shard_before_a_closed_gate_goes_back_without_an_attempt_and_without_a_call(
    context: Context, driver: Driver, provider: ProviderServer, new_batch: NewBatch
) -> None:
    batch, _ = new_batch()
    analysis.claim(context, batch)
    queue_control.pause(context, SCREENSHOT_VISION, None)
    assert driver.analyse(batch).requeue
    assert [(row.status, row.attempts, row.claim_id) for row in shard_rows(context)] == [("pending", 0, None)] * 2
    assert provider.records == []
    assert traced(context) == []
    assert analysis.settle(context, batch).status is None
    queue_control.resume(context, SCREENSHOT_VISION)
    assert driver.analyse_all(batch).status is WorkStatus.PENDING


def test_frames_without_files_are_not_sent_and_a_shard_without_files_costs_no_call(
    context: Context, driver: Driver, provider: ProviderServer, new_batch: NewBatch
) -> None:
    batch, shots = new_batch()
    deleted = [shots[0], *shots[3:]]
    files.discard(context.settings, [row_of(context, SHOTS, shot).file for shot in deleted])
    assert driver.analyse_all(batch).status is WorkStatus.PENDING
    assert [[frame["screenshot_id"] for frame in prompt_of(record)["screenshots"]] for record in provider.records] == [
        shots[1:3]
    ]
    assert "deleted or damaged before the analysis: 1 of 3 screenshots" in batch_row(context).notes
    assert [json.loads(call.shot_ids) for call in used_calls(context)] == [shots[1:3]]
    states = [queries.screenshot(context, shot).status for shot in shots]
    assert states == ["failed_permanent", "succeeded", "succeeded", "failed_permanent", "failed_permanent"]


def test_damaged_file_fails_only_its_frame(
    context: Context, driver: Driver, provider: ProviderServer, new_batch: NewBatch
) -> None:
    batch, shots = new_batch()
    path = files.path_of(context.settings, row_of(context, SHOTS, shots[1]).file)
    path.write_bytes(path.read_bytes()[:100])
    assert driver.analyse_all(batch).status is WorkStatus.PENDING
    row = queries.screenshot(context, shots[1])
    assert (row.status, row.storage_state) == ("failed_permanent", "missing")
    assert row.error
    sent = [frame["screenshot_id"] for record in provider.records for frame in prompt_of(record)["screenshots"]]
    assert sorted(sent) == sorted(set(shots) - {shots[1]})


def test_frames_wait_while_no_child_process_can_start(
    context: Context, driver: Driver, new_batch: NewBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process(_: object) -> bytes:
        raise UnitError("No process to read files can be started", code="no_reader")

    batch, shots = new_batch()
    with monkeypatch.context() as patched:
        patched.setattr(shard, "jpeg_of", no_process)
        assert driver.analyse_all(batch).status is WorkStatus.FAILED
    assert {queries.screenshot(context, shot).storage_state for shot in shots} == {"stored"}
    driver.skip_waits()
    assert driver.analyse_all(batch).status is WorkStatus.PENDING


@pytest.mark.slow
def test_without_a_provider_this_machine_recognises_text_and_the_batch_notes_it(
    context: Context, driver: Driver, provider: ProviderServer, new_batch: NewBatch
) -> None:
    batch, shots = new_batch()
    assert driver.analyse_all(batch, CPU).status is WorkStatus.PENDING
    assert provider.records == []
    assert f"Screen {shots[0]}" in (queries.screenshot(context, shots[0]).ocr_text or "")
    assert "No vision model looked at these screenshots" in batch_row(context).notes
    assert {(call.operation, call.provider, call.model) for call in used_calls(context)} == {
        ("rules", "local", "rules")
    }


@pytest.mark.both_databases
def test_a_providers_error_message_fits_every_database(
    context: Context, driver: Driver, new_batch: NewBatch, models: Models
) -> None:
    batch, _ = new_batch()
    models.index = lambda _: Fault(status=400, body={"error": {"message": "odd \x00 picture"}})
    assert driver.analyse_all(batch).status is WorkStatus.FAILED_PERMANENT
    assert all("odd" in row.error and "\x00" not in row.error for row in shard_rows(context))


@pytest.mark.both_databases
def test_a_databases_error_message_contains_no_text_of_the_screen(context: Context) -> None:
    with pytest.raises(DBAPIError) as failed, context.db.transaction() as session:
        session.execute(text("SELECT :secret FROM nowhere"), {"secret": "what was read on the screen"})
    assert "what was read" not in str(failed.value)


def test_frames_wait_while_their_folder_is_missing(
    context: Context, driver: Driver, new_batch: NewBatch, provider: ProviderServer
) -> None:
    batch, shots = new_batch()
    folder = context.settings.screenshot_dir
    away = folder.rename(folder.with_name("not-mounted"))
    assert driver.analyse_all(batch).status is WorkStatus.FAILED
    assert {queries.screenshot(context, shot).storage_state for shot in shots} == {"stored"}
    assert provider.records == []
    away.rename(folder)
    driver.skip_waits()
    assert driver.analyse_all(batch).status is WorkStatus.PENDING


def test_a_claim_ends_when_the_settings_say_but_not_during_its_call(
    context: Context, driver: Driver, provider: ProviderServer, models: Models, new_batch: NewBatch
) -> None:
    context.settings.screenshots.stale_running_s = 20
    batch, _ = new_batch()
    analysis.claim(context, batch)
    leases: list[float] = []

    def note_lease(prompt: dict[str, Any]) -> object:
        leases.append(lease_left_s(context))
        return index_reply(prompt)

    models.index = note_lease
    assert driver.analyse(batch).done
    assert shard.claim(context, batch, ME) is not None
    leases.append(lease_left_s(context))
    call_s = context.settings.providers["ai"].timeout_s
    assert leases == [pytest.approx(call_s + 60, abs=10), pytest.approx(20, abs=10)]


def lease_left_s(context: Context) -> float:
    (row,) = (row for row in shard_rows(context) if row.lease_until)
    return (row.lease_until - context.db.now()).total_seconds()
