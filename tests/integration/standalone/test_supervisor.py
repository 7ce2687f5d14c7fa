"""The supervisor ends in every state of the database."""

import sqlite3
import threading
from contextlib import closing

from pipeline.flows.documents.states import PageStatus
from pipeline.standalone.locks import supervisor_lock
from pipeline.standalone.supervisor import Supervisor
from pipeline.storage.context import Context
from tests.support.documents import insert_document, pages
from tests.support.waiting import wait_until


def test_the_stack_ends_although_the_database_stays_locked(context: Context) -> None:
    document_id = insert_document(context, pages=[PageStatus.PROCESSING])
    settings = context.settings.model_copy(update={"database_url": ""})  # the data folder's own file, which is the same
    lock = supervisor_lock(settings)
    supervisor, threads = Supervisor(settings, "up", lock), threading.active_count()
    with lock, closing(sqlite3.connect(context.settings.data_dir / "penstock.db", isolation_level=None)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        ended = threading.Thread(target=supervisor._end, daemon=True)
        ended.start()
        ended.join(60)
        assert not ended.is_alive(), "the supervisor waits for the database"
        blocker.execute("ROLLBACK")
        wait_until(lambda: threading.active_count() == threads, 60, "the waiting threads have ended")
    assert [page.status for page in pages(context, document_id)] == [PageStatus.PENDING], "and has released the claim"
