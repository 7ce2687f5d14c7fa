"""Watchers receive events at the start and the end of a batch."""

import pytest

from pipeline.engine import events
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.flows.screenshots.models import BATCHES
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.flows.screenshots.work import analysis, expansion, shard
from pipeline.flows.screenshots.work.batch import finished as announce_finished
from pipeline.flows.screenshots.work.batch import started as announce_started
from pipeline.storage.context import Context
from tasks import events as followed
from tests.integration.screenshots.conftest import ME, rows_of
from tests.integration.screenshots.work.conftest import NewBatch
from tests.support.provider_server import ProviderServer
from tests.support.screens import Driver


def told_of(context: Context) -> list[dict[str, str]]:
    return [fields for _, fields in events.read(context.redis, "0", 0.01) if fields["flow"] == "screenshots"]


@pytest.mark.both_databases
def test_batch_is_announced_at_its_start_and_at_its_end_with_its_times(
    context: Context, driver: Driver, provider: ProviderServer, new_batch: NewBatch
) -> None:
    provider.script.latency_s = 0.05
    batch, _ = new_batch()
    claimed = analysis.claim(context, batch)
    assert claimed is not None
    announce_started(context, claimed.row)
    driver.analyse_all(batch)
    driver.expand(batch)
    announce_finished(context, batch)
    row = rows_of(context, BATCHES)[0]
    started, finished = told_of(context)
    assert started == {
        "flow": "screenshots",
        "event": "pipeline:batch:started",
        "batchDbId": str(batch),
        "batchId": row.correlation_id,
        "sourceKey": "screen:1",
        "attempts": "1",
        "screenshotCount": "5",
    }
    assert (finished["event"], finished["status"]) == ("pipeline:batch:finished", "succeeded")
    assert {name: finished[name] for name in ("batchDbId", "batchId", "sourceKey", "screenshotCount")} == {
        name: started[name] for name in ("batchDbId", "batchId", "sourceKey", "screenshotCount")
    }
    vlm_ms, text_ms, total_ms = (int(finished[name]) for name in ("vlmMs", "textLlmMs", "totalMs"))
    assert vlm_ms >= 100  # two calls, one after the other
    assert text_ms >= 50
    assert total_ms >= vlm_ms + text_ms - 1
    assert "errorMessage" not in finished
    (event,) = followed.follow(0, types=["screenshot_batch.succeeded"], scope_id=str(batch), timeout_s=0)
    fields = {name: event.data[name] for name in ("correlation_id", "source_key", "vlm_ms", "text_ms", "error")}
    assert fields == {
        "correlation_id": row.correlation_id,
        "source_key": "screen:1",
        "vlm_ms": vlm_ms,
        "text_ms": text_ms,
        "error": None,
    }


@pytest.mark.parametrize(
    ("error", "status"),
    [(UnitError("504 from the model"), "failed"), (UnitError("refused", kind=ErrorKind.PERMANENT), "failed_permanent")],
    ids=["waits", "given-up"],
)
def test_failed_batch_is_announced_with_its_reason(
    context: Context, driver: Driver, new_batch: NewBatch, error: UnitError, status: str
) -> None:
    batch, _ = new_batch()
    analysis.claim(context, batch)
    while part := shard.claim(context, batch, ME):
        shard.fail(context, part, error)
    assert analysis.settle(context, batch).status == WorkStatus(status)
    announce_finished(context, batch)
    (finished,) = told_of(context)
    assert finished["status"] == status
    assert str(error) in finished["errorMessage"]


def test_batch_that_continues_elsewhere_is_not_announced_as_finished(
    context: Context, driver: Driver, new_batch: NewBatch
) -> None:
    batch, _ = new_batch()
    driver.analyse_all(batch)
    assert expansion.claim(context, batch, ME) is not None
    announce_finished(context, batch)
    assert told_of(context) == []


def test_deleted_batch_is_not_announced_and_no_message_fails_while_redis_is_down(
    context: Context, driver: Driver, new_batch: NewBatch
) -> None:
    announce_finished(context, 4711)
    assert told_of(context) == []
    batch, _ = new_batch()
    claimed = analysis.claim(context, batch)
    assert claimed is not None
    driver.analyse_all(batch)
    driver.expand(batch)
    context.redis.config_set("min-replicas-to-write", 1)  # writes are refused from now on
    try:
        announce_started(context, claimed.row)
        announce_finished(context, batch)
    finally:
        context.redis.config_set("min-replicas-to-write", 0)
    assert told_of(context) == []
