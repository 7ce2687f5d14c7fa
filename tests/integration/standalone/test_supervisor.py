"""The supervisor ends, whatever the database does."""

import sqlite3
import threading
from contextlib import closing

from pipeline.flows.documents.states import PageStatus
from pipeline.standalone.locks import supervisor_lock
from pipeline.standalone.supervisor import Supervisor
from pipeline.storage.context import Context
from tests.support.documents import insert_document, pages
from tests.support.waiting import wait_until


def test_a_database_that_stays_locked_does_not_keep_the_stack_from_ending(context: Context) -> None:
    mine = insert_document(context, pages=[PageStatus.PROCESSING])
    settings = context.settings.model_copy(update={"database_url": ""})  # the same file, as its own
    lock = supervisor_lock(settings)
    supervisor, threads = Supervisor(settings, "up", lock), threading.active_count()
    with lock, closing(sqlite3.connect(context.settings.data_dir / "penstock.db", isolation_level=None)) as somebody:
        somebody.execute("BEGIN IMMEDIATE")
        ended = threading.Thread(target=supervisor._end, daemon=True)
        ended.start()
        ended.join(60)
        assert not ended.is_alive(), "it waits for the database"
        somebody.execute("ROLLBACK")
        wait_until(lambda: threading.active_count() == threads, 60, "what waited for the database has ended")
    assert [page.status for page in pages(context, mine)] == [PageStatus.PENDING], "and has released the claim"
