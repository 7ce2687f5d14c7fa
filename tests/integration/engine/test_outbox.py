"""Each change of a row with events gets its event, in order, in the same transaction; on both databases."""

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


def told(context: Context, after: int = 0) -> list[Event]:
    with context.db.read() as session:
        return outbox.after(session, after, 10_000)


def types(context: Context, after: int = 0) -> list[str]:
    return [one.type for one in told(context, after)]


def move(context: Context, *events: DocumentEvent, which: str) -> None:
    for one in events:
        context.db.run(lambda session, one=one: DOCUMENT.move(session, DOCUMENTS, one, DOCUMENTS.c.id == which))


def test_every_flow_has_rows_that_people_follow() -> None:
    # But for the one that sends them: events of deliveries would make deliveries.
    assert {one.flow for one in announced.KINDS.values()} == {flow.name for flow in flows()} - {"webhooks"}
    for kind, one in announced.KINDS.items():
        assert len(kind) <= 40
        assert all(len(name) <= 80 for name in one.types)


def test_a_change_is_told_with_its_row_as_it_was_then(context: Context) -> None:
    document_id = insert_document(context, DocumentStatus.PENDING, filename="报告 ü.pdf")
    before = datetime.now(UTC).replace(microsecond=0)
    service.pause(context, document_id)
    service.cancel(context, document_id)
    paused, cancelled = told(context)
    assert (paused.seq, paused.flow, paused.kind, paused.scope_id) == (1, "documents", "document", document_id)
    assert (paused.type, paused.status) == ("document.paused", "paused")
    assert paused.data["filename"] == "报告 ü.pdf"
    assert (cancelled.seq, cancelled.type) == (2, "document.cancelled")
    assert before.timestamp() - 60 <= paused.created_at.timestamp() <= cancelled.created_at.timestamp()


def test_a_new_document_and_its_end_are_told(context: Context, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(Path("examples/scanned-page.png").read_bytes())
    made = submission.submit(context, tmp_path / "a.png", submission.Options())
    again = submission.submit(context, tmp_path / "a.png", submission.Options())
    assert made.id == again.id
    assert types(context) == ["document.pending"]
    service.remove(context, made.id)
    assert types(context) == ["document.pending", "document.deleted"]
    assert [one.data for one in told(context)] == [{}, {}], "a deleted document's events keep no word of it"


def test_a_run_is_told_by_its_outcome(context: Context) -> None:
    music.start(context, music.StartOptions(skip_sync=True, mode=Mode.EMBEDDING))
    music.pause(context)
    music.stop(context)
    assert types(context) == ["music_run.enqueuing", "music_run.paused", "music_run.stopped"]


def test_a_batch_that_is_taken_apart_is_told_and_its_words_go(context: Context) -> None:
    batch_id = FACTORIES["screenshots.batch"](context, 1).scope
    work = works()["screenshots.batch"]
    kernel_claim(context, work, batch_id)
    now = context.db.now()
    context.db.run(lambda session: deletion_of(session, batch_id, now))
    assert types(context) == ["screenshot_batch.running", "screenshot_batch.deleted"]
    assert {json.dumps(one.data) for one in told(context)} == {"{}"}


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
def test_whatever_claims_settles_or_frees_a_followed_row_tells_it(context: Context, name: str) -> None:
    work = FOLLOWED_WORKS[name]
    made = FACTORIES[name](context, 1)
    standing = announced.of(work.table)
    assert standing is not None

    def status() -> str:
        with context.db.read() as session:
            return standing.status(session.execute(select(work.table)).one())

    said, last = [status()], 0
    for _ in range(2):
        (row,) = kernel_claim(context, work, made.scope)
        said.append(status())
        kernel.free_lost(context.db, work, {"w:1:a"})
        said.append(status())
        last = row.id
    changes = [after for before, after in pairwise(said) if before != after]
    assert [(one.status, one.scope_id) for one in told(context)] == [(one, str(last)) for one in changes]


def test_what_nobody_follows_costs_nothing(context: Context) -> None:
    insert_document(context, DocumentStatus.PROCESSING, [PageStatus.PENDING] * 2)
    context.db.run(lambda session: PAGE.move(session, PAGES, PageEvent.CLAIM))
    assert told(context) == []


def test_what_is_rolled_back_is_not_told_and_uses_no_number(context: Context) -> None:
    document_id = insert_document(context, DocumentStatus.PENDING)

    def breaks(session: Session) -> None:
        DOCUMENT.move(session, DOCUMENTS, DocumentEvent.PAUSE)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        context.db.run(breaks)
    move(context, DocumentEvent.CANCEL, which=document_id)
    assert [(one.seq, one.type) for one in told(context)] == [(1, "document.cancelled")]


def test_a_commit_that_fails_tells_nothing_and_the_next_try_tells_it_once(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.commits import lose_answers

    document_id = insert_document(context, DocumentStatus.PENDING)
    lose_answers(monkeypatch, context.db, committed=False)
    service.pause(context, document_id)
    assert types(context) == ["document.paused"]


def test_several_changes_of_a_row_in_one_transaction_are_told_as_the_row_is_left(context: Context) -> None:
    insert_document(context, DocumentStatus.PENDING)

    def act(session: Session) -> None:
        DOCUMENT.move(session, DOCUMENTS, DocumentEvent.PAUSE)
        DOCUMENT.move(session, DOCUMENTS, DocumentEvent.RESUME_SPLIT)
        DOCUMENT.move(session, DOCUMENTS, DocumentEvent.CANCEL)

    context.db.run(act)
    assert types(context) == ["document.cancelled"]


def test_a_reader_by_number_misses_none_of_many_writers(context: Context) -> None:
    """They change several rows each, in any order, and vectors as well: none waits for another for ever."""
    own = [[insert_document(context, DocumentStatus.PENDING) for _ in range(2)] for _ in range(WRITERS)]
    done = threading.Event()
    # Between number and commit: else another order than that of the numbers is rarely seen.
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
                for one in acts:
                    one()

            context.db.run(act)

    def read() -> list[int]:
        seen: list[int] = []
        while True:
            ending = done.is_set()
            found = [one.seq for one in told(context, seen[-1] if seen else 0)]
            seen += found
            if ending and not found:
                return seen

    with capture_logs() as logs, ThreadPoolExecutor(WRITERS + 1) as pool:
        reader = pool.submit(read)
        writers = [pool.submit(write, number) for number in range(WRITERS)]
        for one in writers:
            one.result(120)
        done.set()
        seen = reader.result(60)
    assert seen == list(range(1, WRITERS * EACH * 2 + 1))
    assert [one for one in logs if one["event"] == "database.retry"] == [], "none was in a deadlock"
    with context.db.read() as session:
        assert session.execute(select(func.count()).select_from(EVENTS)).scalar_one() == len(seen)


def test_times_never_go_back_though_the_clock_does(context: Context) -> None:
    document_id = insert_document(context, DocumentStatus.PENDING)
    move(context, DocumentEvent.PAUSE, which=document_id)
    ahead = datetime(2100, 1, 1, tzinfo=UTC)
    context.db.run(lambda session: session.execute(update(outbox.COUNTER).values(at=ahead)))
    move(context, DocumentEvent.CANCEL, which=document_id)
    assert told(context)[-1].created_at == ahead


def test_the_stamp_of_vectors_comes_before_that_of_events_whoever_is_imported_first(context: Context) -> None:
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
