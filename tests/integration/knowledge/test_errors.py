"""Errors of reading, of the provider and of writing: which are retried, when, and the item's final error."""

import math
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from pipeline.engine.work import Outcome
from pipeline.flows.knowledge import check as checking
from pipeline.flows.knowledge import plan, service
from pipeline.flows.knowledge.backlog import fail_unserved
from pipeline.flows.knowledge.models import BATCHES, CHUNKS
from pipeline.flows.knowledge.states import LINE, ItemStatus
from pipeline.flows.knowledge.work import batch, publication
from pipeline.providers.traced_call import Tracer
from pipeline.storage.context import Context
from pipeline.storage.vectors.models import VECTORS
from tests.support.knowledge import add_batches, add_item
from tests.support.knowledge_driver import Driver, long_text, published
from tests.support.provider_server import Fault, ProviderServer


@pytest.fixture
def item_id(context: Context, driver: Driver, base: str) -> str:
    """An item of four chunks, whose two batches wait to be embedded."""
    (item_id,) = driver.note(base, long_text("note", 4))
    plan.due_steps(context, [LINE])
    driver.read(item_id)
    return item_id


def waits_s(driver: Driver, context: Context) -> list[float]:
    """The remaining waits of the waiting batches."""
    now = context.db.now()
    return [(row.next_run_at - now).total_seconds() for row in driver.rows(BATCHES) if row.next_run_at]


def wrong(vectors: list[Any]) -> Fault:
    """An answer with these vectors for any request."""
    data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)]
    return Fault(status=200, body={"object": "list", "data": data, "model": "embedder", "usage": {}})


@pytest.mark.usefixtures("others_succeed")
def test_call_is_tried_three_times_after_half_a_second_and_a_second(
    context: Context, driver: Driver, item_id: str, provider: ProviderServer
) -> None:
    provider.script.always = Fault(status=503)
    for low, high in ((0.3, 0.65), (0.8, 1.25)):
        driver.embed(item_id)
        (wait,) = waits_s(driver, context)
        assert low <= wait <= high
        assert driver.status(item_id) is ItemStatus.EMBEDDING
        driver.skip_waits()
    before = driver.progress(item_id)
    assert driver.embed(item_id).status is ItemStatus.FAILED
    row = driver.row(item_id)
    assert "503" in row.error
    assert "after 3 attempts" in row.error
    assert (row.progress, row.admitted_at, row.claim_id) == (before, None, None)
    assert len(provider.records) == 3
    assert driver.due() == []


def test_retry_after_of_a_server_is_obeyed(
    context: Context, driver: Driver, item_id: str, provider: ProviderServer
) -> None:
    provider.push(Fault(status=503, headers={"Retry-After": "7"}))
    driver.embed(item_id)
    (wait,) = waits_s(driver, context)
    assert 6 < wait <= 7.5


def test_exhausted_quota_uses_up_no_attempt(
    context: Context, driver: Driver, item_id: str, provider: ProviderServer
) -> None:
    provider.push(*[Fault(status=429, headers={"Retry-After": "1"})] * 2)
    driver.embed(item_id)
    assert {row.attempts for row in driver.rows(BATCHES)} == {0}
    assert driver.status(item_id) is ItemStatus.EMBEDDING


@pytest.mark.parametrize("status", [400, 413, 422])
def test_refused_call_is_not_repeated(driver: Driver, item_id: str, provider: ProviderServer, status: int) -> None:
    provider.push(Fault(status=status))
    driver.embed(item_id)
    assert len(provider.records) == 1
    assert driver.status(item_id) is ItemStatus.FAILED


@pytest.mark.parametrize(
    "vectors",
    [
        pytest.param([[1.0] * 8], id="too few"),
        pytest.param([[1.0] * 8] * 3, id="too many"),
        pytest.param([], id="none"),
        pytest.param([[1.0] * 8, [1.0] * 7], id="of two lengths"),
        pytest.param([[], []], id="empty"),
        pytest.param([[1.0] * 7 + [1e39]] * 2, id="too large for a float"),
        pytest.param([[1.0] * 7 + ["x"]] * 2, id="no number"),
        pytest.param([[1.0] * 7 + [math.nan]] * 2, id="NaN"),
        pytest.param([None, None], id="null"),
    ],
)
def test_invalid_vectors_are_re_requested_and_never_stored(
    context: Context, driver: Driver, item_id: str, provider: ProviderServer, vectors: list[Any]
) -> None:
    provider.push(wrong(vectors))
    driver.embed(item_id)
    assert [row.vectors for row in driver.rows(BATCHES)] == [None, None]
    driver.finish()
    assert driver.status(item_id) is ItemStatus.COMPLETED, driver.row(item_id).error
    assert {row.dims for row in driver.rows(VECTORS)} == {8}
    assert checking.check(context).sound


def test_vectors_of_different_lengths_fail_their_item(
    context: Context, driver: Driver, item_id: str, provider: ProviderServer
) -> None:
    """Also if both calls were under way at once, and neither saw the other's result."""
    claims = [context.db.run(lambda s: batch._claim(s, item_id, "emb", driver.owner())) for _ in range(2)]
    for claimed, length in zip(claims, (8, 9), strict=True):
        assert claimed is not None
        outcome = Outcome(claimed.row, values={"vectors": b"\0" * (4 * length * len(claimed.texts))})
        batch._settle(context, outcome, Tracer(context, None))
    assert driver.status(item_id) is ItemStatus.FAILED
    assert "others of this item have 8" in driver.row(item_id).error
    assert published(context) == []


def test_unreadable_file_fails_at_once_and_gives_its_place_back(context: Context, driver: Driver, base: str) -> None:
    (item_id,) = driver.note(base, "note")
    plan.due_steps(context, [LINE])
    driver.change(item_id, name="note.pdf", content_sha256="0" * 64)
    driver.read(item_id)
    row = driver.row(item_id)
    assert (row.status, row.attempts, row.admitted_at) == (ItemStatus.FAILED, 1, None)
    assert "missing" in row.error
    assert driver.due() == []


def test_writing_is_tried_twice(
    context: Context, driver: Driver, item_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: Any, **__: Any) -> None:
        raise OperationalError("INSERT", {}, Exception("disk I/O error"))

    driver.embed(item_id)
    driver.embed(item_id)
    monkeypatch.setattr(publication, "_write", busy)
    driver.write(item_id)
    assert (driver.status(item_id), driver.progress(item_id)) == (ItemStatus.EMBEDDING, 96)
    assert 0.3 < (driver.row(item_id).next_run_at - context.db.now()).total_seconds() < 0.65
    driver.skip_waits()
    driver.write(item_id)
    row = driver.row(item_id)
    assert (row.status, row.progress, row.admitted_at, row.claim_id) == (ItemStatus.FAILED, 96, None, None)
    assert "after 2 attempts" in row.error
    monkeypatch.undo()
    service.reprocess(context, item_id)
    driver.work_off()
    assert driver.status(item_id) is ItemStatus.COMPLETED
    assert checking.check(context).sound


def test_a_large_item_is_written_in_small_transactions_and_published_at_the_end(
    context: Context, driver: Driver, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "MOST_AT_ONCE", 4)
    seen: list[tuple[int, int]] = []
    write = publication._write

    def noted(tx: Any, **arguments: Any) -> None:
        write(tx, **arguments)
        seen.append((len(arguments["numbers"]), len(published(context))))

    monkeypatch.setattr(publication, "_write", noted)
    (item_id,) = driver.note(base, long_text("large", 11))
    driver.work_off()
    assert seen == [(2, 0), (2, 0), (2, 0)]
    assert len(published(context)) == 11
    assert driver.progress(item_id) == 100
    assert len(driver.rows(CHUNKS)) == 11
    assert checking.check(context).sound


def test_items_that_wait_for_a_removed_provider_fail_despite_batches_of_ended_items(
    context: Context, driver: Driver, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.flows.knowledge.backlog.PORTION", 2)
    for _ in range(3):
        add_batches(context, add_item(context, base, ItemStatus.FAILED), 1, "removed")
    now = context.db.now()
    waiting = add_item(context, base, ItemStatus.EMBEDDING, admitted_at=now, position=9)
    add_batches(context, waiting, 2, "removed")
    served = add_item(context, base, ItemStatus.EMBEDDING, admitted_at=now + timedelta(seconds=1), position=10)
    add_batches(context, served, 1, "emb")
    assert fail_unserved(context) == [waiting]
    assert (driver.row(waiting).status, driver.row(waiting).admitted_at) == (ItemStatus.FAILED, None)
    assert "there is no provider 'removed'" in driver.row(waiting).error
    assert driver.status(served) is ItemStatus.EMBEDDING
    assert fail_unserved(context) == []
