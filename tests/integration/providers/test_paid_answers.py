"""A paid answer is recorded once and used, although the database is locked, or commits without an answer."""

import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import uuid4

import pytest
from PIL import Image
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from pipeline.engine import kept_answers
from pipeline.engine.claims import Owner
from pipeline.engine.settled import Settled
from pipeline.engine.traces import AiCall
from pipeline.flows.documents import service
from pipeline.flows.documents.flow import FLOW as DOCUMENTS_FLOW
from pipeline.flows.documents.models import PAGES
from pipeline.flows.documents.states import PageStatus
from pipeline.flows.documents.work.page_lane import PageLane
from pipeline.flows.knowledge.flow import FLOW as KNOWLEDGE_FLOW
from pipeline.flows.knowledge.models import BATCHES as KNOWLEDGE_BATCHES
from pipeline.flows.knowledge.plan import Step as Steps
from pipeline.flows.music import plan
from pipeline.flows.music.flow import FLOW as MUSIC_FLOW
from pipeline.flows.music.states import Step
from pipeline.flows.music.work import selection
from pipeline.providers import gates
from pipeline.storage import database
from pipeline.storage.context import Context
from tasks import maintenance
from tests.support import music as music_support
from tests.support import songs
from tests.support.commits import lose_answers
from tests.support.documents import attempts, document, insert_document, page_states
from tests.support.knowledge import add_base
from tests.support.knowledge_driver import WORKER
from tests.support.knowledge_driver import Driver as KnowledgeDriver
from tests.support.provider_server import ProviderServer

pytestmark = pytest.mark.both_databases

THREADS = 32
PRICE = 0.25
SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def provider() -> Iterator[ProviderServer]:
    with ProviderServer(answer=songs.answer) as server:
        yield server


@pytest.fixture
def settings_env(provider: ProviderServer) -> dict[str, str]:
    return music_support.services(provider.base_url, embeds=True) | {
        "PENSTOCK_PROVIDERS__AI__CONCURRENCY": "64",
        "PENSTOCK_PROVIDERS__AI__PRICES": '{"*": {"input": 1.0, "output": 1.0}}',
        "PENSTOCK_KNOWLEDGE__EMBEDDINGS_PROVIDER": "ai",
    }


def _calls(context: Context) -> list[Any]:
    with context.db.read() as session:
        return list(session.execute(select(AiCall.__table__)))


class Documents:
    """A document of one page, which a provider converts."""

    flow = DOCUMENTS_FLOW
    worker = "w:1:a"

    def __init__(self, context: Context) -> None:
        self.context = context
        gates.sync(context)
        self.document_id = insert_document(context, pages=[PageStatus.PENDING], provider="ai")
        image = context.settings.data_dir / f"{self.document_id}.png"
        Image.effect_noise((40, 40), 50).save(image)
        with context.db.transaction() as session:
            page = PAGES.c.document_id == self.document_id
            session.execute(PAGES.update().where(page).values(image_path=str(image), use_cache=False))

    def work(self) -> None:
        """Handle one message."""
        owner = Owner(self.worker, uuid4().hex)
        guarded = gates.guarded_call(self.context, "vision.ai", uuid4().hex)
        PageLane(self.context, self.document_id, "vision.ai", ["ai"], owner, guarded=guarded).run(quantum_s=0)

    def assert_done(self) -> None:
        assert page_states(self.context, self.document_id) == [PageStatus.COMPLETED]
        (tried,) = [attempt for attempt in attempts(self.context, self.document_id) if attempt.call_id]
        assert (tried.status, tried.effective, tried.text[:6]) == ("completed", True, "# Page")
        assert tried.cost == document(self.context, self.document_id).cost > 0


class Music:
    """A batch of one song, which a provider describes."""

    flow = MUSIC_FLOW
    worker = "w"

    def __init__(self, context: Context) -> None:
        self.driver = music_support.Driver(context)
        for name in ("metadata-generation", "metadata-only", "embedding-only"):
            music_support.change(context, f"queue.{name}.limits", "1000/s")
        music_support.add_songs(context, 1)
        self.run_id = self.driver.start()

    def work(self) -> Settled:
        if plan.plan(self.driver.context, self.run_id).enqueue:
            selection.enqueue(self.driver.context, self.run_id)
        (launch,) = plan.plan(self.driver.context, self.run_id).batches
        return self.driver.step(launch.id, launch.mode, launch.step, queue=launch.queue)

    def assert_done(self) -> None:
        (row,) = music_support.batch_rows(self.driver.context)
        assert Step(row.step) is Step.EMBED
        assert row.analysis


class Knowledge:
    """A batch of chunks, which a provider embeds."""

    flow = KNOWLEDGE_FLOW
    worker = WORKER

    def __init__(self, context: Context) -> None:
        self.driver = KnowledgeDriver(context)
        (self.item_id,) = self.driver.note(add_base(context), "one short note")
        while (due := self.driver.due()) and due[0].step is Steps.READ:
            self.driver.step(due[0])

    def work(self) -> Settled:
        return self.driver.embed(self.item_id, "ai")

    def assert_done(self) -> None:
        with self.driver.context.db.read() as session:
            (stored_vectors,) = session.execute(select(KNOWLEDGE_BATCHES.c.vectors)).scalars()
        assert stored_vectors


UNITS: dict[str, Callable[[Context], Any]] = {"documents": Documents, "music": Music, "knowledge": Knowledge}


class Lock:
    """Another connection's write lock on the SQLite file, from when `threads` threads have a paid answer."""

    def __init__(self, context: Context, monkeypatch: pytest.MonkeyPatch, threads: int = 1) -> None:
        # Short time-outs, which the lock outlasts: it ends when all threads have given up.
        monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 1)
        context.db.dispose()
        self._connection = sqlite3.connect(str(context.db.url.database), isolation_level=None, check_same_thread=False)

        def lock() -> None:
            self._connection.execute("BEGIN IMMEDIATE")
            monkeypatch.setattr(context.db, "patience_s", 0)

        paid = Barrier(threads, action=lock)
        keep, self._patch = kept_answers.keep, monkeypatch

        def keep_and_wait(*args: Any) -> Path | None:
            answer_file = keep(*args)
            paid.wait(60)
            return answer_file

        monkeypatch.setattr(kept_answers, "keep", keep_and_wait)

    def release(self) -> None:
        self._connection.close()
        self._patch.undo()


@pytest.fixture(params=sorted(UNITS))
def unit(context: Context, request: pytest.FixtureRequest) -> Any:
    return UNITS[request.param](context)


def _kept(context: Context) -> list[Path]:
    folder = context.settings.answer_dir
    return sorted(folder.iterdir()) if folder.exists() else []


def test_a_call_whose_commit_gets_no_answer_is_booked_once(
    context: Context, unit: Any, provider: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        lost_commits = lose_answers(patch, context.db, times=3)
        unit.work()
    assert len(lost_commits) >= 5, "each commit is repeated"
    assert len(provider.records) == len(_calls(context)) == 1
    unit.assert_done()
    assert _kept(context) == []


@SQLITE
def test_an_answer_that_the_database_refuses_is_kept_and_used_without_another_call(
    context: Context, unit: Any, provider: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        lock = Lock(context, patch)
        with pytest.raises(OperationalError):
            unit.work()
        (answer_file,) = _kept(context)
        lock.release()
    assert (stat.S_IMODE(answer_file.stat().st_mode), stat.S_IMODE(answer_file.parent.stat().st_mode)) == (0o600, 0o700)
    assert _calls(context) == []
    context.db.dispose()
    unit.flow.free_lost(context, {unit.worker})
    unit.work()
    assert len(provider.records) == len(_calls(context)) == 1
    unit.assert_done()
    assert _kept(context) == []


@SQLITE
def test_thirty_two_threads_settle_under_a_lock_that_outlasts_their_time_outs(
    context: Context, provider: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = [Documents(context) for _ in range(THREADS)]

    def work(unit: Documents) -> None:
        with suppress(OperationalError):
            unit.work()

    with monkeypatch.context() as patch, ThreadPoolExecutor(THREADS) as pool:
        lock = Lock(context, patch, THREADS)
        list(pool.map(work, units))
        lock.release()
    assert len(_kept(context)) == len(provider.records) == THREADS
    context.db.dispose()
    Documents.flow.free_lost(context, {Documents.worker})
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(Documents.work, units))
    for unit in units:
        unit.assert_done()
    assert len(provider.records) == len(_calls(context)) == THREADS, "each call is made exactly once"
    assert _kept(context) == []


def _kill_with_answer(context: Context, unit: Any) -> Path:
    """Kill the worker when it has its answer; return the answer's file."""
    with pytest.MonkeyPatch.context() as patch:
        keep = kept_answers.keep

        def keep_and_die(*args: Any) -> None:
            keep(*args)
            raise SystemExit

        patch.setattr(kept_answers, "keep", keep_and_die)
        patch.setattr(PageLane, "_give_back", lambda *_: None)
        with pytest.raises(SystemExit):
            unit.work()
    (answer_file,) = _kept(context)
    os.utime(answer_file, (0, time.time() - kept_answers.LATE_S - 1))
    return answer_file


def test_a_late_call_is_recorded_while_its_answer_still_waits_for_its_unit(
    context: Context, unit: Any, provider: ProviderServer
) -> None:
    _kill_with_answer(context, unit)
    for _ in range(2):
        maintenance.record_late_calls(context)
    (call,) = _calls(context)
    assert call.cost > 0
    unit.flow.free_lost(context, {unit.worker})
    unit.work()
    assert (len(provider.records), _calls(context)) == (1, [call])
    unit.assert_done()
    assert _kept(context) == []


def test_a_lost_worker_costs_no_attempt_of_a_page_whose_answer_came(context: Context, provider: ProviderServer) -> None:
    unit = Documents(context)
    context.settings.documents.backoff_s[:] = []
    _kill_with_answer(context, unit)
    unit.flow.free_lost(context, {unit.worker})
    assert page_states(context, unit.document_id) == [PageStatus.PENDING]
    unit.work()
    unit.assert_done()
    assert len(provider.records) == 1


def test_a_deleted_documents_kept_answer_loses_its_text_and_keeps_its_cost(context: Context) -> None:
    unit = Documents(context)
    answer_file = _kill_with_answer(context, unit)
    assert b"# Page" in answer_file.read_bytes()
    service.remove(context, unit.document_id)
    assert b"# Page" not in answer_file.read_bytes()
    os.utime(answer_file, (0, time.time() - kept_answers.LATE_S - 1))
    maintenance.record_late_calls(context)
    (call,) = _calls(context)
    assert (call.cost > 0, call.preview) == (True, "")
    assert _kept(context) == []


def test_a_recorded_answer_without_a_reader_for_a_day_is_deleted(context: Context) -> None:
    unit = Documents(context)
    answer_file = _kill_with_answer(context, unit)
    os.utime(answer_file, (0, time.time() - kept_answers.KEPT_S - 1))
    maintenance.record_late_calls(context)
    assert len(_calls(context)) == 1
    assert document(context, unit.document_id).cost == _calls(context)[0].cost
    assert _kept(context) == []


def test_a_truncated_file_is_not_an_answer(context: Context) -> None:
    unit = Documents(context)
    answer_file = _kill_with_answer(context, unit)
    answer_file.write_bytes(answer_file.read_bytes()[:-10])
    os.utime(answer_file, (0, 0))
    maintenance.record_late_calls(context)
    assert _kept(context) == []
