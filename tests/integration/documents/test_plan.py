"""The messages that documents ask for, and the documents that the sweeper reads."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, text, update

from pipeline.engine.errors import ErrorKind
from pipeline.flows.documents import plan
from pipeline.flows.documents.models import DOCUMENTS, PAGES
from pipeline.flows.documents.plan import CPU, Stage
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.storage.context import Context
from tests.support.documents import Worker, bad, good, insert_document, only

pytestmark = pytest.mark.both_databases

D, P = DocumentStatus, PageStatus
VISION = "vision.openai"


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {
        "PENSTOCK_PROVIDERS__OPENAI__BASE_URL": "http://127.0.0.1:9/v1",
        "PENSTOCK_PROVIDERS__OPENAI__MODEL": "m-1",
        "PENSTOCK_PROVIDERS__OPENAI__API_KEY": "sk-1",
        "PENSTOCK_PROVIDERS__OPENAI__CONCURRENCY": "3",
        "PENSTOCK_DOCUMENTS__CONVERTER_COUNT": "4",
    }


def lanes(context: Context, document_id: str) -> dict[str, int]:
    return {queue: count for due in plan.stages(context, [document_id]) for queue, count in due.lanes.items()}


@pytest.mark.parametrize(("pages", "wanted"), [(1, 1), (3, 3), (40, 4)])
def test_a_document_asks_for_a_lane_a_page_up_to_the_limit(context: Context, pages: int, wanted: int) -> None:
    assert lanes(context, insert_document(context, pages=[P.PENDING] * pages)) == {CPU: wanted}


def test_lanes_go_to_the_queue_of_each_page_s_provider(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING] * 8)
    mixed = update(PAGES).where(PAGES.c.page > 2)
    context.db.run(lambda session: session.execute(mixed.values(provider="openai")))
    assert lanes(context, document_id) == {CPU: 2, VISION: 3}


def test_lanes_at_work_stay_beside_new_lanes_for_due_pages(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING] * 3)
    Worker(context, document_id, "w1").claim(2)
    assert lanes(context, document_id) == {CPU: 2}, "one lane holds two pages, and another takes the third"
    Worker(context, document_id, "w2").claim()
    assert lanes(context, document_id) == {}


def test_a_page_before_its_retry_time_needs_no_lane(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING])
    worker = Worker(context, document_id)
    worker.settle(bad(only(worker.claim()), ErrorKind.TRANSIENT))
    assert plan.stages(context, [document_id]) == []
    assert list(plan.runnable(context, ())) == plan.due(context) == []
    assert (wait_s := plan.next_wait_s(context)) is not None
    assert 0 < wait_s < 60
    past = context.db.now() - timedelta(seconds=1)
    context.db.run(lambda session: session.execute(update(PAGES).values(next_run_at=past)))
    assert list(plan.runnable(context, ())) == plan.due(context) == [document_id]
    assert lanes(context, document_id) == {CPU: 1}


@pytest.mark.parametrize("status", list(D))
def test_a_document_asks_for_the_stage_of_its_state(context: Context, status: DocumentStatus) -> None:
    document_id = insert_document(context, status)
    stages = {D.PENDING: [Stage.SPLIT], D.PROCESSING: [Stage.CONVERT], D.READY_TO_MERGE: [Stage.MERGE]}.get(status, [])
    assert [due.stage for due in plan.stages(context, [document_id])] == stages
    assert list(plan.runnable(context, ())) == [document_id] * len(stages)


def test_the_sweeper_skips_documents_whose_pages_wait_for_a_closed_gate(context: Context) -> None:
    waiting = insert_document(context, provider="openai")
    both = insert_document(context, pages=[P.PENDING] * 2, provider="openai")
    split = insert_document(context, D.PENDING, [], provider="openai")
    other = update(PAGES).where(PAGES.c.document_id == both, PAGES.c.page == 2)
    context.db.run(lambda session: session.execute(other.values(provider="local")))
    assert set(plan.runnable(context, {VISION})) == {both, split}
    assert set(plan.runnable(context, ())) == {waiting, both, split}


def test_pages_of_a_provider_that_was_removed_need_no_lane(context: Context) -> None:
    document_id = insert_document(context, provider="gone")
    assert plan.stages(context, [document_id]) == []
    assert list(plan.runnable(context, ())) == []


def test_all_documents_are_walked_in_portions_the_oldest_first(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "PORTION", 2)
    ids = [insert_document(context, D.PENDING, []) for _ in range(5)]
    same = context.db.now()
    context.db.run(lambda session: session.execute(update(DOCUMENTS).values(created_at=same)))
    older = update(DOCUMENTS).where(DOCUMENTS.c.id == ids[3]).values(created_at=same - timedelta(days=1))
    context.db.run(lambda session: session.execute(older))
    assert list(plan.runnable(context, ())) == [ids[3], *sorted(set(ids) - {ids[3]})]


def test_a_claim_reads_its_pages_from_the_index_in_their_order(context: Context) -> None:
    """A claim costs the same at any progress of a document."""
    document_id = insert_document(context, pages=[P.PENDING] * 3)
    seen: list[tuple[str, Any]] = []
    event.listen(
        context.db.engine,
        "before_cursor_execute",
        lambda _c, _u, sql, parameters, _x, _m: seen.append((sql, parameters)),
    )
    worker = Worker(context, document_id)
    for want in (1, 2):
        worker.claim(want)
    claims = [(sql, parameters) for sql, parameters in seen if sql.startswith("WITH due")]
    assert len(claims) == 2
    prefix = "EXPLAIN QUERY PLAN " if context.db.is_sqlite else "EXPLAIN "
    for sql, parameters in claims:
        with context.db.engine.connect() as connection, connection.begin() as transaction:
            if not context.db.is_sqlite:
                # The test's tables are small, so ask PostgreSQL for its plan for large ones.
                connection.execute(text("SET LOCAL enable_seqscan = off"))
                connection.execute(text("SET LOCAL enable_bitmapscan = off"))
            query_plan = "\n".join(str(row) for row in connection.exec_driver_sql(prefix + sql, parameters))
            transaction.rollback()
        assert "ix_pages_claimable" in query_plan, query_plan
        assert "TEMP B-TREE" not in query_plan, query_plan
        assert "Sort" not in query_plan, query_plan


def test_planning_costs_the_same_for_documents_of_any_length(context: Context) -> None:
    short, long = (insert_document(context, pages=[P.PENDING] * count) for count in (5, 50))
    context.db.now()  # asked once a minute
    statements: list[str] = []
    event.listen(context.db.engine, "before_cursor_execute", lambda _c, _u, sql, *_: statements.append(sql))
    assert len(plan.stages(context, [short, long])) == 2
    assert len([sql for sql in statements if sql.startswith("SELECT")]) == 1


def test_a_hop_is_two_transactions_of_eight_statements(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING] * 4)
    context.db.send = lambda _: None  # a message sends at its end, once
    worker = Worker(context, document_id)
    worker.settle(good(only(worker.claim())))
    statements: list[str] = []
    event.listen(context.db.engine, "before_cursor_execute", lambda _c, _u, sql, *_: statements.append(sql))
    worker.settle(good(only(worker.claim())))
    did = [sql for sql in statements if not sql.startswith("BEGIN")]
    assert len(did) == 7, "a lane also asks once for the claims of an earlier delivery"
