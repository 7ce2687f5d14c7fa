"""Each change of a followed row writes its event in the same transaction and in order, on both databases."""

import json
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, func, insert, select, update
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from pipeline.engine import announced, outbox
from pipeline.engine import work as kernel
from pipeline.engine.claims import Owner
from pipeline.engine.outbox import EVENTS, Event
from pipeline.engine.transaction import Tx
from pipeline.engine.work import Work
from pipeline.flows import flows
from pipeline.flows.documents import service, submission
from pipeline.flows.documents.models import DOCUMENTS, PAGES
from pipeline.flows.documents.states import DOCUMENT, PAGE, DocumentEvent, DocumentStatus, PageEvent, PageStatus
from pipeline.flows.music import service as music
from pipeline.flows.music.states import Mode
from pipeline.flows.screenshots import deletion
from pipeline.storage import vectors
from pipeline.storage.context import Context
from tests.support.documents import insert_document
from tests.support.works import FACTORIES, works

pytestmark = pytest.mark.both_databases

WRITERS, EACH = 6, 12
FOLLOWED_WORKS = {name: work for name, work in works().items() if announced.of(work.table)}


def stored_events(context: Context, after: int = 0) -> list[Event]:
    with context.db.read() as session:
        return outbox.after(session, after, 10_000)


def event_types(context: Context, after: int = 0) -> list[str]:
    return [stored.type for stored in stored_events(context, after)]


def move(context: Context, *events: DocumentEvent, which: str) -> None:
    for change in events:
        context.db.run(
            lambda session, change=change: DOCUMENT.move(session, DOCUMENTS, change, DOCUMENTS.c.id == which)
        )


def test_every_flow_has_followed_rows() -> None:
    # Webhooks deliver the events: an event of a delivery would cause another delivery.
    assert {followed.flow for followed in announced.KINDS.values()} == {flow.name for flow in flows()} - {"webhooks"}
    for kind, followed in announced.KINDS.items():
        assert len(kind) <= 40
        assert all(len(name) <= 80 for name in followed.types)


def test_an_event_contains_its_row_at_the_time_of_the_change(context: Context) -> None:
    document_id = insert_document(context, DocumentStatus.PENDING, filename="报告 ü.pdf")
    before = datetime.now(UTC).replace(microsecond=0)
    service.pause(context, document_id)
    service.cancel(context, document_id)
    paused, cancelled = stored_events(context)
    assert (paused.seq, paused.flow, paused.kind, paused.scope_id) == (1, "documents", "document", document_id)
    assert (paused.type, paused.status) == ("document.paused", "paused")
    assert paused.data["filename"] == "报告 ü.pdf"
    assert (cancelled.seq, cancelled.type) == (2, "document.cancelled")
    assert before.timestamp() - 60 <= paused.created_at.timestamp() <= cancelled.created_at.timestamp()


def test_a_new_and_a_deleted_document_write_events(context: Context, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(Path("examples/scanned-page.png").read_bytes())
    document = submission.submit(context, tmp_path / "a.png", submission.Options())
    resubmitted = submission.submit(context, tmp_path / "a.png", submission.Options())
    assert document.id == resubmitted.id
    assert event_types(context) == ["document.pending"]
    service.remove(context, document.id)
    assert event_types(context) == ["document.pending", "document.deleted"]
    assert [stored.data for stored in stored_events(context)] == [{}, {}], (
        "a deleted document's events keep no data of it"
    )


def test_events_of_a_run_name_its_outcome(context: Context) -> None:
    music.start(context, music.StartOptions(skip_sync=True, mode=Mode.EMBEDDING))
    music.pause(context)
    music.stop(context)
    assert event_types(context) == ["music_run.enqueuing", "music_run.paused", "music_run.stopped"]


def test_a_dissolved_batch_writes_an_event_and_its_events_lose_their_data(context: Context) -> None:
    batch_id = FACTORIES["screenshots.batch"](context, 1).scope
    work = works()["screenshots.batch"]
    kernel_claim(context, work, batch_id)
    now = context.db.now()
    context.db.run(lambda session: deletion_of(session, batch_id, now))
    assert event_types(context) == ["screenshot_batch.running", "screenshot_batch.deleted"]
    assert {json.dumps(stored.data) for stored in stored_events(context)} == {"{}"}


def deletion_of(session: Tx, batch_id: int, now: datetime) -> None:
    from pipeline.flows.screenshots.models import SHOTS, SOURCES

    session.execute(insert(SOURCES).values(key="screen:1", created_at=now, seen_at=now))
    shot = {
        "source_key": "screen:1",
        "ts": now,
        "file": "f",
        "sha256": "s",
        "phash": "p",
        "size_bytes": 1,
        "batch_id": batch_id,
        "created_at": now,
        "updated_at": now,
    }
    shot_id = session.execute(insert(SHOTS).values(**shot).returning(SHOTS.c.id)).scalar_one()
    deletion._forget_batches(session, [shot_id])


def kernel_claim(context: Context, work: Work, scope: Any) -> list[Any]:
    return context.db.run(lambda tx: kernel.claim(tx, work, work.lock(tx, scope), Owner("w:1:a", "m1")))


@pytest.mark.parametrize("name", sorted(FOLLOWED_WORKS))
def test_claiming_and_freeing_a_followed_row_writes_events(context: Context, name: str) -> None:
    work = FOLLOWED_WORKS[name]
    units = FACTORIES[name](context, 1)
    followed = announced.of(work.table)
    assert followed is not None

    def status() -> str:
        with context.db.read() as session:
            return followed.status(session.execute(select(work.table)).one())

    statuses, last = [status()], 0
    for _ in range(2):
        (row,) = kernel_claim(context, work, units.scope)
        statuses.append(status())
        kernel.free_lost(context.db, work, {"w:1:a"})
        statuses.append(status())
        last = row.id
    changes = [after for before, after in pairwise(statuses) if before != after]
    expected = [(new_status, str(last)) for new_status in changes]
    assert [(stored.status, stored.scope_id) for stored in stored_events(context)] == expected


def test_changes_of_other_rows_write_no_events(context: Context) -> None:
    insert_document(context, DocumentStatus.PROCESSING, [PageStatus.PENDING] * 2)
    context.db.run(lambda session: PAGE.move(session, PAGES, PageEvent.CLAIM))
    assert stored_events(context) == []


def test_a_rolled_back_change_writes_no_event_and_uses_no_number(context: Context) -> None:
    document_id = insert_document(context, DocumentStatus.PENDING)

    def breaks(session: Session) -> None:
        DOCUMENT.move(session, DOCUMENTS, DocumentEvent.PAUSE)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        context.db.run(breaks)
    move(context, DocumentEvent.CANCEL, which=document_id)
    assert [(stored.seq, stored.type) for stored in stored_events(context)] == [(1, "document.cancelled")]


def test_a_retried_commit_writes_its_event_once(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.commits import lose_answers

    document_id = insert_document(context, DocumentStatus.PENDING)
    lose_answers(monkeypatch, context.db, committed=False)
    service.pause(context, document_id)
    assert event_types(context) == ["document.paused"]


def test_several_changes_of_a_row_in_a_transaction_write_one_event_of_its_last_state(context: Context) -> None:
    insert_document(context, DocumentStatus.PENDING)

    def act(session: Session) -> None:
        DOCUMENT.move(session, DOCUMENTS, DocumentEvent.PAUSE)
        DOCUMENT.move(session, DOCUMENTS, DocumentEvent.RESUME_SPLIT)
        DOCUMENT.move(session, DOCUMENTS, DocumentEvent.CANCEL)

    context.db.run(act)
    assert event_types(context) == ["document.cancelled"]


def test_a_reader_by_number_misses_none_of_many_writers(context: Context) -> None:
    """Each writer changes several rows and vectors in random order, and no transaction deadlocks."""
    own = [[insert_document(context, DocumentStatus.PENDING) for _ in range(2)] for _ in range(WRITERS)]
    done = threading.Event()
    # A pause between the number and its commit makes commits out of order likely.
    event.listen(context.db.engine, "commit", lambda _: time.sleep(random.random() / 100))

    def write(number: int) -> None:
        rng = random.Random(number)
        for step in range(EACH):
            change = DocumentEvent.PAUSE if step % 2 == 0 else DocumentEvent.RESUME_SPLIT

            def act(session: Tx, change: DocumentEvent = change) -> None:
                acts: list[Callable[[], Any]] = [
                    lambda: DOCUMENT.move(session, DOCUMENTS, change, DOCUMENTS.c.id.in_(own[number])),
                    lambda: vectors.upsert(session, rng.choice("ab"), "m", [(number, [1.0, 0.5])]),
                ]
                rng.shuffle(acts)
                for change_row in acts:
                    change_row()

            context.db.run(act)

    def read() -> list[int]:
        seen: list[int] = []
        while True:
            ending = done.is_set()
            seqs = [stored.seq for stored in stored_events(context, seen[-1] if seen else 0)]
            seen += seqs
            if ending and not seqs:
                return seen

    with capture_logs() as logs, ThreadPoolExecutor(WRITERS + 1) as pool:
        reader = pool.submit(read)
        writers = [pool.submit(write, number) for number in range(WRITERS)]
        for writer in writers:
            writer.result(120)
        done.set()
        seen = reader.result(60)
    assert seen == list(range(1, WRITERS * EACH * 2 + 1))
    assert [line for line in logs if line["event"] == "database.retry"] == [], "no transaction was in a deadlock"
    with context.db.read() as session:
        assert session.execute(select(func.count()).select_from(EVENTS)).scalar_one() == len(seen)


def test_event_times_never_go_back_when_the_clock_does(context: Context) -> None:
    document_id = insert_document(context, DocumentStatus.PENDING)
    move(context, DocumentEvent.PAUSE, which=document_id)
    ahead = datetime(2100, 1, 1, tzinfo=UTC)
    context.db.run(lambda session: session.execute(update(outbox.COUNTER).values(at=ahead)))
    move(context, DocumentEvent.CANCEL, which=document_id)
    assert stored_events(context)[-1].created_at == ahead


def test_the_version_of_vectors_is_written_before_the_event_counter(context: Context) -> None:
    insert_document(context, DocumentStatus.PENDING)
    order: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        order.extend(name for name in ("vector_versions", "event_counter") if f"INTO {name}" in statement)

    def act(session: Tx) -> None:
        DOCUMENT.move(session, DOCUMENTS, DocumentEvent.PAUSE)
        vectors.upsert(session, "k", "m", [(1, [1.0, 0.5])])

    event.listen(context.db.engine, "before_cursor_execute", note)
    context.db.run(act)
    assert order == ["vector_versions", "event_counter"]
