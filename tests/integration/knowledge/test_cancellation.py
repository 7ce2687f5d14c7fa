"""Cancellation and deletion in every state: running work stops, its result is discarded, and no data is left."""

import os
import time
from collections.abc import Callable

import pytest
from sqlalchemy import func, select

from pipeline.engine.errors import UserError
from pipeline.engine.traces import AiCall
from pipeline.engine.work import Outcome
from pipeline.flows.knowledge import check as checking
from pipeline.flows.knowledge import deletion, files, plan, queries, service
from pipeline.flows.knowledge.models import BASES, BATCHES, CHUNKS, ITEMS
from pipeline.flows.knowledge.queries import UnknownBase, UnknownItem
from pipeline.flows.knowledge.service import CancelStatus
from pipeline.flows.knowledge.states import LINE, ItemStatus
from pipeline.flows.knowledge.work import batch, content, publication
from pipeline.operations import knowledge as operations
from pipeline.operations.caller import Caller
from pipeline.providers import gates
from pipeline.providers.traced_call import Tracer
from pipeline.storage.context import Context
from pipeline.storage.vectors.models import VECTORS
from tests.support.knowledge import add_base
from tests.support.knowledge_driver import Driver, long_text
from tests.support.provider_server import ProviderServer

Finish = Callable[[], object]
"""The late act of work that was under way."""


def in_line(_context: Context, driver: Driver, item_id: str) -> Finish:
    return lambda: driver.read(item_id)


def embedding_begun(context: Context, driver: Driver, item_id: str) -> Finish:
    plan.due_steps(context, [LINE])
    return lambda: driver.read(item_id)


def reading(context: Context, driver: Driver, item_id: str) -> Finish:
    plan.due_steps(context, [LINE])
    claimed = context.db.run(lambda session: content._claim(session, context, item_id, driver.owner()))
    assert claimed is not None

    def finish() -> None:
        checkpoint = claimed.checkpoint
        checkpoint._checked_at = time.monotonic() - 1
        assert not checkpoint.wanted()
        checkpoint._wanted, checkpoint._checked_at = True, time.monotonic() + 60  # as if it had just checked
        with pytest.raises(content.ClaimLost):
            content._store(context, claimed, content._content(context, claimed))

    return finish


def half_stored(context: Context, driver: Driver, item_id: str) -> Finish:
    finish = reading(context, driver, item_id)
    row = driver.row(item_id)
    chunk = {
        "item_id": item_id,
        "base_id": row.base_id,
        "generation": row.building,
        "number": 0,
        "batch": 0,
        "text": "x",
        "heading": "[]",
        "start": 0,
        "end": 1,
        "digest": "x",
        "created_at": context.db.now(),
    }
    context.db.run(lambda session: session.execute(CHUNKS.insert().values(**chunk)))
    return finish


def embedding(context: Context, driver: Driver, item_id: str) -> Finish:
    plan.due_steps(context, [LINE])
    driver.read(item_id)
    driver.embed(item_id)
    claimed = context.db.run(lambda session: batch._claim(session, item_id, "emb", driver.owner()))
    assert claimed is not None
    tracer = Tracer(context, gates.guarded_call(context, "knowledge.emb", "message"))

    def finish() -> None:
        embedded = batch._vectors(context, tracer, claimed)
        outcome = Outcome(claimed.row, values={"vectors": embedded})
        settled = batch._settle(context, outcome, tracer)
        assert (settled.done, settled.requeue) == (0, False)

    return finish


def writing(context: Context, driver: Driver, item_id: str) -> Finish:
    plan.due_steps(context, [LINE])
    driver.read(item_id)
    while driver.embed(item_id).requeue:
        pass
    row = context.db.run(lambda session: publication._claim(session, item_id, driver.owner()))
    assert row is not None
    context.db.run(lambda session: publication._write(session, row=row, numbers=[0], share=0.5))

    def finish() -> None:
        with pytest.raises(content.ClaimLost):
            publication._publish(context, row)

    return finish


STATES = (in_line, embedding_begun, reading, half_stored, embedding, writing)


def count_left(context: Context, table: object) -> int:
    with context.db.read() as session:
        return int(session.execute(select(func.count()).select_from(table)).scalar_one())  # type: ignore[arg-type]


@pytest.mark.parametrize("state", STATES)
def test_cancelled_in_any_state_stops_and_can_be_reprocessed(
    context: Context, driver: Driver, base: str, state: Callable[[Context, Driver, str], Finish]
) -> None:
    (item_id,) = driver.note(base, long_text("note", 5))
    finish = state(context, driver, item_id)
    progress = driver.progress(item_id)
    assert service.cancel(context, item_id) is CancelStatus.CANCELLED
    row = driver.row(item_id)
    assert (row.status, row.error, row.progress, row.admitted_at) == (ItemStatus.FAILED, "Cancelled", progress, None)
    finish()
    assert driver.status(item_id) is ItemStatus.FAILED
    assert driver.due() == []
    assert service.cancel(context, item_id) is CancelStatus.IGNORED
    service.reprocess(context, item_id)
    driver.work_off()
    assert driver.status(item_id) is ItemStatus.COMPLETED
    assert checking.check(context).sound
    assert count_left(context, VECTORS) == count_left(context, CHUNKS) == 5


@pytest.mark.parametrize("state", STATES)
@pytest.mark.both_databases
def test_deleted_in_any_state_leaves_nothing(
    context: Context, driver: Driver, base: str, state: Callable[[Context, Driver, str], Finish]
) -> None:
    (item_id,) = driver.note(base, long_text("note", 5))
    finish = state(context, driver, item_id)
    assert service.delete_items(context, item_id, "unknown") == 1
    assert queries.item(context, item_id).deleting
    assert queries.queue(context, base).processing_count == queries.status(context).processing_count == 0
    if state is not in_line:
        finish()
    driver.work_off()
    with pytest.raises(UnknownItem):
        queries.item(context, item_id)
    assert [count_left(context, table) for table in (ITEMS, CHUNKS, BATCHES, VECTORS)] == [0, 0, 0, 0]
    assert checking.check(context).sound
    assert not files.folder(context.settings, item_id).exists()
    with context.db.read() as session:
        assert not [text for text in session.execute(select(AiCall.preview)).scalars() if "note" in text]


def test_answer_after_the_deletion_of_its_row_is_counted_without_text(
    context: Context, driver: Driver, base: str, provider: ProviderServer
) -> None:
    (item_id,) = driver.note(base, long_text("secret", 3))
    finish = embedding(context, driver, item_id)
    service.delete_items(context, item_id)
    driver.work_off()
    finish()
    assert len(provider.records) == 2
    with context.db.read() as session:
        calls = session.execute(select(AiCall.status, AiCall.preview)).all()
    assert len(calls) == 2
    assert all("secret" not in call.preview for call in calls)
    assert checking.check(context).sound


def test_completed_item_is_deleted_with_its_vectors_and_index(context: Context, driver: Driver, base: str) -> None:
    item_id = driver.completed(base, long_text("old", 4))
    kept = driver.completed(base, long_text("kept", 3))
    service.delete_items(context, item_id)
    driver.work_off()
    assert count_left(context, VECTORS) == count_left(context, CHUNKS) == 3
    assert len(driver.texts(kept)) == 3
    assert checking.check(context).sound


def test_published_chunks_stay_searchable_when_reprocessing_is_cancelled(
    context: Context, driver: Driver, base: str
) -> None:
    item_id = driver.completed(base, long_text("kept", 3))
    before = driver.texts(item_id)
    service.reprocess(context, item_id)
    service.cancel(context, item_id)
    assert driver.texts(item_id) == before
    driver.work_off()
    assert driver.texts(item_id) == before


@pytest.mark.both_databases
def test_base_deleted_while_a_hundred_items_run(context: Context, driver: Driver, base: str) -> None:
    """As many items as the limit allows are under way, and the others wait in line."""
    ids = driver.note(base, *(long_text(f"note {number}", 3) for number in range(100)))
    kept = driver.note(add_base(context, "other"), "kept")
    call, read = embedding(context, driver, ids[0]), reading(context, driver, ids[1])
    service.delete_base(context, base)
    with pytest.raises(UnknownBase):
        queries.base(context, base)
    with pytest.raises(UserError):
        driver.note(base, "too late")
    read()
    driver.work_off()
    call()
    assert [view.name for view in queries.bases(context)] == ["other"]
    assert count_left(context, ITEMS) == 1
    assert driver.done == kept
    assert checking.check(context).sound
    assert [entry.name for entry in files.root(context.settings).iterdir()] == kept


def test_name_of_a_deleted_base_is_free_at_once_even_if_another_base_has_its_id_as_name(
    context: Context, driver: Driver
) -> None:
    first = add_base(context, "manuals")
    hostile = add_base(context, first)
    service.delete_base(context, first)
    second = add_base(context, "manuals")
    driver.work_off()
    assert {view.id for view in queries.bases(context)} == {hostile, second}


def test_an_interrupted_deletion_continues(
    context: Context, driver: Driver, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [driver.completed(base, long_text(f"note {number}", 2)) for number in range(3)]
    monkeypatch.setattr(deletion, "QUANTUM_S", -1.0)
    service.delete_base(context, base)
    assert deletion.remove(context, base)
    assert count_left(context, ITEMS) == 2
    assert checking.check(context).sound
    monkeypatch.setattr(deletion, "_item", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        deletion.remove(context, base)
    assert checking.check(context).sound
    monkeypatch.undo()
    driver.work_off()
    assert [count_left(context, table) for table in (BASES, ITEMS, CHUNKS, VECTORS)] == [0, 0, 0, 0]
    assert not any(files.folder(context.settings, item_id).exists() for item_id in ids)


class TestOrphanedFiles:
    """Files of a process that was killed between storing a file and writing its row."""

    def test_only_orphaned_files_are_removed(self, context: Context, driver: Driver, base: str) -> None:
        item_id = driver.completed(base, "note")
        root = files.root(context.settings)
        (root / "0123456789abcdef").mkdir()
        (root / "0123456789abcdef" / "copy").write_bytes(b"x")
        (root / "incoming-x").write_bytes(b"x")
        (root / "link").symlink_to(root / "nowhere")
        assert deletion.remove_orphans(context) == 0, "their rows may follow"
        for entry in root.iterdir():
            os.utime(entry, (0, 0), follow_symlinks=False)
        assert deletion.remove_orphans(context) == 3
        assert [entry.name for entry in root.iterdir()] == [item_id]
        assert files.stored_path(context.settings, item_id, driver.row(item_id).content_sha256).is_file()


def test_a_retry_of_all_failed_items_skips_items_that_are_deleted_at_the_same_time(
    context: Context, driver: Driver, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted, failed = (item_id for name in ("a", "b") for item_id in driver.note(base, name))
    for item_id in (deleted, failed):
        assert service.cancel(context, item_id) is CancelStatus.CANCELLED
    service.delete_items(context, deleted)
    assert service.failed(context, base) == [failed]
    monkeypatch.setattr(service, "failed", lambda *_: [deleted, failed])  # as it was before the deletion
    assert [view.id for view in operations.reprocess_failed.by(Caller(context), base)] == [failed]
