"""The overview over all flows: waiting units with their reasons, failures, and workers."""

import json
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, update

from pipeline.engine import work as kernel
from pipeline.engine.claims import Owner
from pipeline.engine.presence import NoWorker, Presence
from pipeline.engine.work import Work
from pipeline.flows import flows
from pipeline.flows.documents.models import ATTEMPTS, PAGES
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.operations import overview
from pipeline.operations.backlog import Reason
from pipeline.providers import queue_control
from pipeline.storage.context import Context
from tests.support.documents import insert_document
from tests.support.works import FACTORIES, Units, works

pytestmark = pytest.mark.both_databases

ALL = works()
WAITING, FAILED, DONE = PageStatus.PENDING, PageStatus.FAILED, PageStatus.COMPLETED


@pytest.fixture
def settings_env() -> dict[str, str]:
    provider = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
    return {"PENSTOCK_PROVIDERS": json.dumps({"p": provider, "q": provider})}


def _why(context: Context) -> dict[str, Reason]:
    return {reason.kind: reason for reason in overview.overview(context).waiting}


def _work(context: Context, *queues: str) -> None:
    Presence(context.redis).renew("ai@desk:42:1f09ab", 60, facts={"queues": list(queues), "slots": 4})


@pytest.mark.parametrize("name", sorted(ALL))
def test_claimable_units_wait_and_claimed_units_are_counted_by_worker(context: Context, name: str) -> None:
    units, flow = FACTORIES[name](context, 3), next(flow for flow in flows() if flow.name == name.partition(".")[0])
    before = sum(kind.count for kind in flow.waiting(context))
    assert before >= units.count
    row = _claim(context, ALL[name], units)
    assert sum(kind.count for kind in flow.waiting(context)) == before - 1
    held = [group for group in flow.held(context) if group.worker_id == "ai@desk:43:1f09ab"]
    assert [(group.work, group.units, group.messages) for group in held] == [(ALL[name].name, 1, 1)]
    with context.db.transaction() as session:
        later = {"next_run_at": context.db.now() + timedelta(minutes=5), "claim_id": None, "worker_id": None}
        session.execute(update(ALL[name].table).where(ALL[name].table.c.id == row.id).values(**later))


def _claim(context: Context, work: Work, units: Units) -> Any:
    """Claim a unit for a process of the worker's pool."""
    owner = Owner("ai@desk:43:1f09ab", "m1")
    return context.db.run(lambda tx: kernel.claim_next(tx, work, work.lock(tx, units.scope), owner))


def test_pages_wait_for_a_worker_then_for_a_free_one_then_for_their_provider(context: Context) -> None:
    insert_document(context, pages=[WAITING, WAITING, DONE], provider="p")
    insert_document(context, pages=[WAITING], provider="q")
    assert _why(context)["worker"] == Reason("worker", NoWorker().reason, None, "", {"pages": 3})
    _work(context, "vision.p", "cpu")
    reasons = _why(context)
    assert reasons["free"].units == {"pages": 2}
    assert reasons["worker"].words == "no worker takes vision.q: start one with `penstock worker --role ai`"
    _work(context, "vision.p", "vision.q")
    assert _why(context)["free"].count == 3
    queue_control.open_breaker(context, "q:vision", 41, "5 failures in a row: 503")
    held = _why(context)["breaker"]
    assert (held.queue, held.count) == ("vision.q", 1)
    assert held.words == "q is paused by its breaker: 5 failures in a row: 503"
    assert held.until is not None
    assert timedelta(seconds=35) < held.until - context.db.now() <= timedelta(seconds=41)
    queue_control.pause(context, "vision.p", None, "invoices first")
    paused = _why(context)["operator"]
    assert (paused.words, paused.until) == ("vision.p is paused by an operator: “invoices first”", None)


def test_retries_and_paused_pages_have_their_own_reasons(context: Context) -> None:
    _work(context, "cpu")
    document = insert_document(context, pages=[WAITING, WAITING, PageStatus.RETRYING])
    due = context.db.now() + timedelta(minutes=3)
    with context.db.transaction() as session:
        third_page = update(PAGES).where(PAGES.c.document_id == document, PAGES.c.page == 3)
        session.execute(third_page.values(next_run_at=due))
    insert_document(context, DocumentStatus.PAUSED, [WAITING] * 4)
    insert_document(context, DocumentStatus.PAUSED, [])
    reasons = _why(context)
    assert {kind: dict(reason.units) for kind, reason in reasons.items()} == {
        "free": {"pages": 2},
        "retry": {"pages": 1},
        "paused": {"pages": 4, "documents": 1},
    }
    assert reasons["retry"].until == due


def test_pages_of_cancelled_documents_wait_for_nothing_and_of_a_removed_provider_for_its_return(
    context: Context,
) -> None:
    insert_document(context, DocumentStatus.CANCELLED, [WAITING])
    insert_document(context, pages=[WAITING], provider="gone")
    reasons = _why(context)
    assert {kind: reason.count for kind, reason in reasons.items()} == {"unserved": 1}
    assert reasons["unserved"].words == "vision.gone: its provider is no longer configured"


def test_failures_of_all_flows_come_newest_first_each_with_a_sentence(context: Context) -> None:
    insert_document(context, DocumentStatus.PARTIAL_FAILED, [DONE, FAILED, FAILED], filename="lease.pdf")
    insert_document(context, DocumentStatus.FAILED, [], filename="x.pdf", error="the file has no pages")
    insert_document(context, DocumentStatus.COMPLETED, [DONE])
    insert_document(context, pages=[WAITING, FAILED], filename="half.pdf")
    failures = overview.overview(context).failures
    assert [(failure.name, failure.words) for failure in failures] == [
        ("half.pdf", "1 of 2 pages failed: it failed"),
        ("x.pdf", "the file has no pages"),
        ("lease.pdf", "2 of 3 pages failed: it failed"),
    ]
    assert {failure.flow for failure in failures} == {"documents"}


def test_pages_are_counted_by_minute_over_the_last_hour(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    document = insert_document(context, pages=[DONE])
    now = context.db.now()
    monkeypatch.setattr(context.db, "now", lambda: now)  # The test may run while a minute ends.

    def attempts(minutes_ago: int, *states: str) -> None:
        at = now.replace(second=1, microsecond=0) - timedelta(minutes=minutes_ago)
        rows = [
            {
                "document_id": document,
                "page": 1,
                "page_source": 1,
                "provider": "p",
                "model": "m",
                "status": state,
                "worker_id": "w",
                "created_at": at,
            }
            for state in states
        ]
        with context.db.transaction() as session:
            session.execute(insert(ATTEMPTS), rows)

    attempts(3, "completed", "completed", "transient")
    attempts(59, "completed")
    attempts(61, "completed")
    minutes = overview.overview(context).minutes
    assert len(minutes) == 60
    counted = Counter({at: minute.finished for at, minute in enumerate(reversed(minutes)) if minute.finished})
    assert sum(counted.values()) == 4
    assert sum(minute.failed for minute in minutes) == 1
    attempts(1, "completed")
    assert sum(minute.finished for minute in overview.overview(context).minutes) == 5, "a late page is counted"


def test_a_worker_is_listed_with_its_facts_and_its_claims(context: Context) -> None:
    Presence(context.redis).renew(
        "cpu@desk:42:1f09ab", 60, facts={"slots": 2, "queues": ["cpu"], "since_ms": 1_795_341_600_000}
    )
    document = insert_document(context, pages=[WAITING, WAITING])
    with context.db.transaction() as session:
        held = {"status": PageStatus.PROCESSING, "claim_id": "c", "request_id": "m", "worker_id": "cpu@desk:77:1f09ab"}
        session.execute(update(PAGES).where(PAGES.c.document_id == document).values(**held))
    fleet = overview.fleet(context)
    assert fleet is not None
    (worker,) = fleet.workers
    assert (worker.role, worker.host, worker.slots, worker.busy, worker.queues) == ("cpu", "desk", 2, 1, ["cpu"])
    assert [(job.flow, job.work, job.scope, job.units) for job in worker.jobs] == [("documents", "page", document, 2)]
    assert worker.seen_s is not None
    assert worker.seen_s < 30
    Presence(context.redis).leave("cpu@desk:42:1f09ab")
    assert Presence(context.redis).facts() == {}
