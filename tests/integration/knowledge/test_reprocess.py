"""An item that is read again: old chunks stay searchable, unchanged chunks cost nothing, and no message of the old run
disturbs the new one."""

from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import select

from pipeline.engine import work as kernel
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.work import Outcome
from pipeline.flows.knowledge import check as checking
from pipeline.flows.knowledge import files, plan, service
from pipeline.flows.knowledge.flow import FLOW
from pipeline.flows.knowledge.models import BATCHES, CHUNKS
from pipeline.flows.knowledge.service import CancelStatus
from pipeline.flows.knowledge.states import LINE, ItemStatus
from pipeline.flows.knowledge.work import batch, content, publication
from pipeline.providers.traced_call import Tracer
from pipeline.reading.sandbox.limits import Unwanted
from pipeline.storage.context import Context
from tests.support.knowledge_driver import WORKER, Driver, long_text, published
from tests.support.provider_server import ProviderServer


def rewrite(context: Context, driver: Driver, item_id: str, text: str) -> None:
    """Change the text of the item's stored copy."""
    row = driver.row(item_id)
    files.stored_path(context.settings, item_id, row.content_sha256).write_text(text)


def embedded(provider: ProviderServer) -> list[str]:
    """Every text that was paid for."""
    return [text for record in provider.records if record.status == 200 for text in record.body["input"]]


@pytest.mark.both_databases
def test_old_chunks_stay_searchable_until_new_chunks_replace_them_at_once(
    context: Context, driver: Driver, base: str
) -> None:
    item_id = driver.completed(base, long_text("old", 5))
    before = driver.texts(item_id)
    rewrite(context, driver, item_id, long_text("new", 5))
    service.reprocess(context, item_id)
    while driver.status(item_id) is not ItemStatus.COMPLETED:
        assert driver.texts(item_id) == before
        assert checking.check(context).sound
        assert driver.round()
    after = driver.texts(item_id)
    assert len(after) == 5
    assert all(text.startswith("new") for text in after)
    assert checking.check(context).sound
    assert len(published(context)) == len(driver.rows(CHUNKS)) == 5


def test_unchanged_chunks_are_not_re_embedded(
    context: Context, driver: Driver, base: str, provider: ProviderServer
) -> None:
    item_id = driver.completed(base, long_text("same", 6))
    first = published(context)
    assert len(embedded(provider)) == 6
    rewrite(context, driver, item_id, long_text("same", 6) + "\n\n" + "added " * 20)
    service.reprocess(context, item_id)
    driver.work_off()
    assert len(embedded(provider)) == 7
    assert [row[-1] for row in published(context)][:6] == [row[-1] for row in first]
    service.reprocess(context, item_id)
    driver.work_off()
    assert len(embedded(provider)) == 7, "unchanged chunks cost no call"
    assert checking.check(context).sound


def test_vectors_paid_before_a_cancellation_are_reused(
    context: Context, driver: Driver, base: str, provider: ProviderServer
) -> None:
    (item_id,) = driver.note(base, long_text("kept", 6))
    plan.due_steps(context, [LINE])
    driver.read(item_id)
    driver.embed(item_id)
    assert len(embedded(provider)) == 2
    service.cancel(context, item_id)
    service.reprocess(context, item_id)
    driver.work_off()
    assert driver.status(item_id) is ItemStatus.COMPLETED
    assert sorted(set(embedded(provider))) == sorted(embedded(provider))


def test_reprocess_begins_at_0_and_ends_at_100(context: Context, driver: Driver, base: str) -> None:
    item_id = driver.completed(base, long_text("again", 6))
    assert driver.progress(item_id) == 100
    seen = [service.reprocess(context, item_id).progress]
    while driver.round():
        seen.append(driver.progress(item_id))
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert (seen[-1], driver.status(item_id)) == (100, ItemStatus.COMPLETED)


def test_reprocess_takes_a_place_at_the_end_of_the_line(context: Context, driver: Driver, base: str) -> None:
    first = driver.completed(base, "first")
    second, third = driver.note(base, "second", "third")
    service.reprocess(context, first)
    driver.done.clear()
    driver.work_off()
    assert driver.done == [second, third, first]


class TestMessagesOfAnOldRun:
    """A batch whose call is under way while its item is cancelled and reprocessed."""

    @pytest.fixture
    def item_id(self, driver: Driver, base: str, context: Context) -> str:
        (item_id,) = driver.note(base, long_text("run", 6))
        plan.due_steps(context, [LINE])
        driver.read(item_id)
        return item_id

    @pytest.fixture
    def claimed(self, context: Context, driver: Driver, item_id: str) -> batch.Claimed:
        return self._claim(context, driver, item_id)

    @staticmethod
    def _claim(context: Context, driver: Driver, item_id: str) -> batch.Claimed:
        owner = driver.owner()
        claimed = context.db.run(lambda session: batch._claim(session, item_id, "emb", owner))
        assert claimed is not None
        return claimed

    @staticmethod
    def _end(context: Context, claimed: batch.Claimed, error: UnitError | None = None) -> None:
        """End the call, with a result or an error."""
        vectors = {} if error else {"vectors": b"\0" * 4 * 8 * len(claimed.texts)}
        outcome = Outcome(claimed.row, error, values=vectors)
        batch._settle(context, outcome, Tracer(context, None))

    def test_an_answer_of_the_old_run_is_kept_without_changing_the_new_runs_progress(
        self, context: Context, driver: Driver, item_id: str, claimed: batch.Claimed, provider: ProviderServer
    ) -> None:
        service.reprocess(context, item_id)
        self._end(context, claimed)
        row = driver.row(item_id)
        assert (row.status, row.progress, row.batches_left) == (ItemStatus.PENDING, 0, 0)
        driver.work_off()
        assert driver.status(item_id) is ItemStatus.COMPLETED
        assert not set(claimed.texts) & set(embedded(provider)), "answered batches cost no second call"
        assert checking.check(context).sound

    def test_error_does_not_fail_the_new_run(
        self, context: Context, driver: Driver, item_id: str, claimed: batch.Claimed
    ) -> None:
        service.reprocess(context, item_id)
        plan.due_steps(context, [LINE])
        reading = context.db.run(lambda session: content._claim(session, context, item_id, driver.owner()))
        assert reading is not None
        self._end(context, claimed, UnitError("refused", kind=ErrorKind.PERMANENT))
        assert driver.status(item_id) is ItemStatus.PREPROCESSING
        FLOW.free_lost(context, {WORKER})
        driver.work_off()
        assert driver.status(item_id) is ItemStatus.COMPLETED

    def test_lost_worker_of_the_old_run_does_not_fail_the_new_one(
        self, context: Context, driver: Driver, item_id: str
    ) -> None:
        for _ in range(2):
            self._claim(context, driver, item_id)
            FLOW.free_lost(context, {WORKER})
        self._claim(context, Driver(context, "old:1:a"), item_id)
        service.reprocess(context, item_id)
        plan.due_steps(context, [LINE])
        reading = context.db.run(lambda session: content._claim(session, context, item_id, driver.owner()))
        FLOW.free_lost(context, {"old:1:a"})
        assert driver.row(item_id).status == ItemStatus.PREPROCESSING
        assert reading is not None
        content._store(context, reading, content._content(context, reading))
        driver.work_off()
        assert driver.status(item_id) is ItemStatus.COMPLETED

    def test_answer_after_the_new_run_was_chunked_changes_nothing(
        self, context: Context, driver: Driver, item_id: str, claimed: batch.Claimed
    ) -> None:
        service.reprocess(context, item_id)
        plan.due_steps(context, [LINE])
        driver.read(item_id)
        before = driver.row(item_id), driver.rows(BATCHES)
        self._end(context, claimed)
        assert (driver.row(item_id), driver.rows(BATCHES)) == before
        driver.work_off()
        assert driver.status(item_id) is ItemStatus.COMPLETED

    def test_answer_after_a_cancellation_leaves_the_item_as_it_was(
        self, context: Context, driver: Driver, item_id: str, claimed: batch.Claimed
    ) -> None:
        assert service.cancel(context, item_id) is CancelStatus.CANCELLED
        before = driver.row(item_id)
        self._end(context, claimed)
        assert driver.row(item_id) == before

    def test_read_of_the_old_run_stores_nothing(self, context: Context, driver: Driver, base: str) -> None:
        (item_id,) = driver.note(base, long_text("slow", 4))
        plan.due_steps(context, [LINE])
        old = context.db.run(lambda session: content._claim(session, context, item_id, driver.owner()))
        assert old is not None
        service.reprocess(context, item_id)
        plan.due_steps(context, [LINE])
        # On a busy machine the reading lasts long enough to check its claim.
        with pytest.raises((content.ClaimLost, Unwanted)):
            content._store(context, old, content._content(context, old))
        assert driver.rows(CHUNKS, item_id) == []
        content._fail(context, old, UnitError("late", kind=ErrorKind.PERMANENT))
        assert driver.row(item_id).error is None
        driver.work_off()
        assert driver.status(item_id) is ItemStatus.COMPLETED


def test_vectors_of_a_half_cancelled_write_go_with_the_next_reading(
    context: Context, driver: Driver, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "MOST_AT_ONCE", 2)
    (item_id,) = driver.note(base, long_text("half", 6))
    plan.due_steps(context, [LINE])
    driver.read(item_id)
    for _ in range(3):
        driver.embed(item_id)
    row = context.db.run(lambda session: publication._claim(session, item_id, driver.owner()))
    assert row is not None
    context.db.run(lambda session: publication._write(session, row=row, numbers=[0], share=0.5))
    service.cancel(context, item_id)
    with pytest.raises(content.ClaimLost):
        publication._publish(context, row)
    assert driver.texts(item_id) == []
    rewrite(context, driver, item_id, "quite another text")
    service.reprocess(context, item_id)
    driver.work_off()
    assert driver.texts(item_id) == ["quite another text"]
    assert checking.check(context).sound
    with context.db.read() as session:
        assert len(session.execute(select(CHUNKS.c.id)).all()) == 1


@pytest.mark.parametrize("after", range(1, 8))
def test_an_item_is_published_whole_after_its_writer_is_lost_at_any_step(
    context: Context, driver: Driver, base: str, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(publication, "MOST_AT_ONCE", 4)
    item_id = driver.completed(base, long_text("old", 7))
    rewrite(context, driver, item_id, long_text("new", 7))
    service.reprocess(context, item_id)
    renew, steps = kernel.renew, iter(range(after))

    def lost(*arguments: Any) -> bool:
        if next(steps, None) is None:
            raise SystemExit
        return renew(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(kernel, "renew", lost)
        with suppress(SystemExit):
            driver.work_off()
    words = {text.split()[0] for text in driver.texts(item_id)}
    assert len(words) == 1, "all hits are of one reading"
    FLOW.free_lost(context, {driver.worker})
    driver.finish()
    assert len(driver.texts(item_id)) == 7
    assert checking.check(context).sound
