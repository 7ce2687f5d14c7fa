"""The reasons of documents' states in words: waits, pauses and failures."""

from datetime import timedelta

import pytest
from sqlalchemy import update

from pipeline.engine.errors import ErrorKind
from pipeline.engine.presence import Presence
from pipeline.flows.documents import catalog, queries, service
from pipeline.flows.documents.models import PAGES
from pipeline.flows.documents.reasons import reasons
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.views import Kind, Reason
from pipeline.providers import gates, queue_control
from pipeline.storage.context import Context
from tests.support.documents import Worker, bad, insert_document, only

D, P = DocumentStatus, PageStatus


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {
        "PENSTOCK_PROVIDERS__OPENAI__BASE_URL": "http://127.0.0.1:9/v1",
        "PENSTOCK_PROVIDERS__OPENAI__MODEL": "m-1",
        "PENSTOCK_PROVIDERS__OPENAI__API_KEY": "sk-1",
    }


@pytest.fixture
def worker_there(context: Context) -> None:
    """A worker is alive."""
    Presence(context.redis).renew("holder", 60)


def why(context: Context, document_id: str) -> Reason | None:
    return reasons(context, [queries.document(context, document_id)]).get(document_id)


def reason_of(context: Context, document_id: str) -> Reason:
    reason = why(context, document_id)
    assert reason is not None
    return reason


def test_a_document_names_its_queue_that_no_worker_consumes(context: Context) -> None:
    presence = Presence(context.redis)
    presence.renew("w1", 60, facts={"queues": ["default", "cpu"]})
    document_id = insert_document(context, pages=[P.PENDING], provider="openai")
    words = "no worker takes vision.openai: start one with `penstock worker --role ai`"
    assert reason_of(context, document_id) == Reason(Kind.WORKERS, words)
    presence.renew("w2", 60, facts={"queues": ["vision.openai"]})
    assert reason_of(context, document_id).kind is Kind.CAPACITY


@pytest.mark.usefixtures("worker_there")
def test_a_document_names_the_reason_of_its_wait(context: Context) -> None:
    assert reason_of(context, insert_document(context, D.PENDING, [])).kind is Kind.CAPACITY
    document_id = insert_document(context, pages=[P.PENDING] * 3)
    assert reason_of(context, document_id).words == "for a free worker, to convert its pages"
    worker = Worker(context, document_id)
    unit = only(worker.claim())
    assert reason_of(context, document_id) == Reason(Kind.WORKING, "1 page under way")
    worker.settle(bad(unit, ErrorKind.TRANSIENT))
    assert reason_of(context, document_id).kind is Kind.CAPACITY, "two others are due"
    context.db.run(lambda session: session.execute(update(PAGES).where(PAGES.c.page > 1).values(status=P.COMPLETED)))
    later = reason_of(context, document_id)
    assert later.kind is Kind.RETRY
    assert "a transient error" in later.words
    assert later.until is not None
    assert later.until > context.db.now()


def test_a_missing_worker_is_the_reason(context: Context) -> None:
    assert reason_of(context, insert_document(context)).kind is Kind.WORKERS


@pytest.mark.usefixtures("worker_there")
def test_a_closed_queue_names_its_closer_and_its_end(context: Context) -> None:
    elsewhere = insert_document(context, provider="openai")
    here = insert_document(context)
    queue_control.pause(context, "vision.openai", 600, "invoices first")
    reason = reason_of(context, elsewhere)
    in_ten_minutes = pytest.approx(context.db.now() + timedelta(minutes=10), abs=timedelta(seconds=9))
    assert (reason.kind, reason.until) == (Kind.OPERATOR, in_ten_minutes)
    assert "invoices first" in reason.words
    assert reason_of(context, here).kind is Kind.CAPACITY, "another queue"
    queue_control.resume(context, "vision.openai")
    gates.breaker(context, "openai:vision").open(30, "five failures in a row")
    assert reason_of(context, elsewhere).kind is Kind.BREAKER


def test_a_failure_names_its_page_and_error(context: Context) -> None:
    broken = insert_document(context, D.FAILED, [], error="the file is damaged")
    assert reason_of(context, broken) == Reason(Kind.FAILED, "the file is damaged")
    partly = insert_document(context, D.PARTIAL_FAILED, [P.COMPLETED, P.FAILED, P.COMPLETED, P.FAILED])
    assert reason_of(context, partly) == Reason(Kind.FAILED, "page 2 and 1 more: it failed")
    assert why(context, insert_document(context, D.COMPLETED, [P.COMPLETED])) is None
    doubtful = insert_document(context, D.COMPLETED, [P.COMPLETED], doubtful_count=1)
    assert reason_of(context, doubtful).kind is Kind.DOUBT


def test_a_pause_names_its_key_and_time(context: Context) -> None:
    document_id = insert_document(context)
    service.pause(context, document_id, "scanner-room")
    service.pause(context, document_id, "somebody else")
    reason = reason_of(context, document_id)
    assert (reason.kind, reason.words) == (Kind.PAUSED, "by scanner-room")
    assert reason.until == queries.document(context, document_id).paused_at
    service.resume(context, document_id)
    service.pause(context, document_id)
    assert reason_of(context, document_id).words == ""


def test_the_list_pages_forwards_and_backwards_with_any_filter(context: Context) -> None:
    states = [D.COMPLETED, D.FAILED, D.PAUSED, D.PARTIAL_FAILED, D.COMPLETED, D.FAILED]
    now = context.db.now()
    ids = [
        insert_document(context, state, [P.COMPLETED], created_at=now - timedelta(minutes=n // 2))
        for n, state in enumerate(states)
    ]
    for which in (catalog.Filter(), catalog.Filter(frozenset({D.FAILED, D.PARTIAL_FAILED, D.PAUSED}))):
        everything = catalog.documents(context, which)
        assert {row.id for row in everything} == {
            key for key, state in zip(ids, states, strict=True) if state in (which.statuses or states)
        }
        keys = [(row.created_at, row.id) for row in everything]
        assert keys == sorted(keys, reverse=True)
        assert catalog.documents(context, which, limit=2, after=keys[0]) == everything[1:3]
        assert catalog.documents(context, which, limit=2, before=keys[3]) == everything[1:3]
        assert catalog.documents(context, which, before=keys[0]) == []
    counted = {D.COMPLETED: 2, D.FAILED: 2, D.PAUSED: 1, D.PARTIAL_FAILED: 1}
    assert catalog.count_by_status(context, catalog.Filter(frozenset({D.FAILED}), "REPORT")) == counted
    assert catalog.count_by_status(context, catalog.Filter(name="letter")) == {}
    failed = catalog.Filter(frozenset({D.FAILED}))
    assert failed.among([D.PAUSED]) is None
    assert failed.among([D.PAUSED, D.FAILED]) == failed
