from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import func, select

from pipeline.engine.claims import FREE
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.traces import AiCall
from pipeline.flows.documents import queries, service
from pipeline.flows.documents.flow import FLOW
from pipeline.flows.documents.models import DOCUMENTS, PAGES
from pipeline.flows.documents.states import DOCUMENT, DocumentEvent, DocumentStatus, PageStatus
from pipeline.flows.documents.work.page import Attempt
from pipeline.providers.protocols import Answer, Usage
from pipeline.storage.context import Context
from tests.support.documents import (
    Worker,
    at_once,
    attempts,
    bad,
    call_of,
    document,
    good,
    insert_document,
    only,
    page_states,
    pages,
)

pytestmark = pytest.mark.both_databases

D, P = DocumentStatus, PageStatus
ATTEMPTS_CAP = 3


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_DOCUMENTS__BACKOFF_S": "[5.0, 15.0]"}


def counters(context: Context, document_id: str) -> tuple[DocumentStatus, int, int, int]:
    row = document(context, document_id)
    return D(row.status), row.completed_count, row.failed_count, row.progress


def test_pages_are_claimed_in_order_and_only_once(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING] * 5)
    first = Worker(context, document_id).claim(2)
    second = Worker(context, document_id, "w2").claim(5)
    assert [unit.page for unit in (*first, *second)] == [1, 2, 3, 4, 5]
    assert {unit.attempts for unit in (*first, *second)} == {1}
    assert Worker(context, document_id, "w3").claim() == []


def test_lanes_take_only_pages_of_their_queue(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING] * 2, provider="openai")
    assert Worker(context, document_id).claim(2) == []
    assert len(Worker(context, document_id, queue="vision.openai").claim(2)) == 2


def test_a_result_is_counted_and_moves_the_progress(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING] * 4)
    worker = Worker(context, document_id)
    for done, percent in ((1, 27), (2, 50), (3, 72)):
        worker.settle(good(only(worker.claim())))
        assert counters(context, document_id) == (D.PROCESSING, done, 0, percent)
    row = pages(context, document_id)[0]
    assert (row.status, row.content, row.error, row.claim_id) == (P.COMPLETED, "new text of page 1", None, None)


def test_the_last_page_s_own_transaction_completes_the_document(context: Context) -> None:
    document_id = insert_document(context, pages=[P.COMPLETED, P.PENDING])
    worker = Worker(context, document_id)
    done = worker.settle_and_claim([good(only(worker.claim()))], want=1)
    assert done is not None
    assert (done.units, done.more, done.document.status) == ([], False, D.READY_TO_MERGE)
    assert counters(context, document_id) == (D.READY_TO_MERGE, 2, 0, 95)


def test_finishing_and_claiming_are_one_transaction(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING] * 3)
    worker = Worker(context, document_id)
    done = worker.settle_and_claim([good(only(worker.claim()))], want=1)
    assert done is not None
    assert [unit.page for unit in done.units] == [2]
    assert page_states(context, document_id) == [P.COMPLETED, P.PROCESSING, P.PENDING]


def test_exactly_one_of_many_simultaneous_lanes_completes_the_document(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes, moves = 8, []
    move = type(DOCUMENT).move

    def counted(machine: object, session: object, table: object, event: str, *where: object, **values: object) -> int:
        moved = move(machine, session, table, event, *where, **values)  # type: ignore[arg-type]
        moves.extend([(event, moved)] if machine is DOCUMENT else [])
        return moved

    for _ in range(5):
        document_id = insert_document(context, pages=[P.PENDING] * lanes)
        workers = [Worker(context, document_id, f"w{number}") for number in range(lanes)]
        claimed = [worker.claim()[0] for worker in workers]
        moves.clear()
        with monkeypatch.context() as patched:
            patched.setattr(type(DOCUMENT), "move", counted)
            at_once(lanes, lambda n, workers=workers, claimed=claimed: workers[n].settle(good(claimed[n])))
        assert moves == [("pages_done", 1)]
        assert counters(context, document_id) == (D.READY_TO_MERGE, lanes, 0, 95)


def test_simultaneous_lanes_convert_every_page_once(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING] * 40)

    def lane(number: int) -> int:
        worker, done = Worker(context, document_id, f"w{number}"), 0
        claimed = worker.claim(number % 3 + 1)
        while claimed:
            done += len(claimed)
            exchanged = worker.settle_and_claim([good(unit) for unit in claimed], want=number % 3 + 1)
            claimed = exchanged.units if exchanged else []
        return done

    assert sum(at_once(6, lane)) == 40
    assert counters(context, document_id) == (D.READY_TO_MERGE, 40, 0, 95)
    assert sorted(row.page for row in attempts(context, document_id)) == list(range(1, 41))


def test_a_document_with_a_failed_page_is_partial_failed_when_all_are_settled(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING] * 2)
    worker = Worker(context, document_id)
    first, second = worker.claim(2)
    worker.settle(bad(first))
    assert counters(context, document_id) == (D.PROCESSING, 0, 1, 5)
    worker.settle(good(second))
    assert counters(context, document_id) == (D.PARTIAL_FAILED, 1, 1, 50)
    assert document(context, document_id).finished_at is not None


def test_a_document_whose_pages_all_failed_is_failed_with_the_commonest_reason(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING] * 3)
    worker = Worker(context, document_id)
    for error in ("an odd reply", "no credit left", "no credit left"):
        unit = only(worker.claim())
        worker.settle(replace(bad(unit), error=UnitError(error, kind=ErrorKind.PERMANENT)))
    row = document(context, document_id)
    assert (D(row.status), row.failed_count, row.error) == (D.FAILED, 3, "all 3 pages failed: no credit left")
    assert row.finished_at is not None
    view = service.retry_failed(context, document_id)
    assert (view.status, view.failed_count, view.error) == (D.PROCESSING, 0, None)
    assert page_states(context, document_id) == [P.RETRYING] * 3
    worker.settle(*(good(unit) for unit in worker.claim(3)))
    assert counters(context, document_id) == (D.READY_TO_MERGE, 3, 0, 95)


@pytest.mark.parametrize(("completed", "expected"), [(1, D.READY_TO_MERGE), (0, D.FAILED)])
def test_allow_partial_merges_converted_pages_but_never_none(
    context: Context, completed: int, expected: DocumentStatus
) -> None:
    document_id = insert_document(context, pages=[P.PENDING] * 2, allow_partial=True)
    worker = Worker(context, document_id)
    first, second = worker.claim(2)
    worker.settle(bad(first), good(second) if completed else bad(second))
    assert counters(context, document_id)[:3] == (expected, completed, 2 - completed)


def test_a_transient_error_waits_in_its_row_and_counts(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING])
    worker = Worker(context, document_id)
    before = datetime.now(UTC)
    done = worker.settle(bad(only(worker.claim()), ErrorKind.TRANSIENT))
    assert done is not None
    assert done.settled.retry_in_s is not None
    assert 5 <= done.settled.retry_in_s <= 6
    assert not done.more
    (row,) = pages(context, document_id)
    assert (row.status, row.attempts, row.retry_count, row.error) == (P.PENDING, 1, 1, "a transient error")
    assert timedelta(seconds=5) <= row.next_run_at - before <= timedelta(seconds=7)
    assert worker.claim() == []
    (unit,) = worker.claim(later_s=7)
    assert unit.attempts == 2
    assert counters(context, document_id)[:3] == (D.PROCESSING, 0, 0)


def test_a_page_fails_finally_when_its_attempts_are_used_up(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING])
    worker = Worker(context, document_id)
    for tries in range(ATTEMPTS_CAP):
        (unit,) = worker.claim(later_s=1000 * tries)
        worker.settle(bad(unit, ErrorKind.TRANSIENT))
    (row,) = pages(context, document_id)
    assert (row.status, row.retry_count) == (P.FAILED, ATTEMPTS_CAP)
    assert row.error == "a transient error (after 3 attempts)"
    assert counters(context, document_id)[:3] == (D.FAILED, 0, 1)


def test_a_permanent_error_fails_at_once(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING, P.PENDING])
    worker = Worker(context, document_id)
    worker.settle(bad(only(worker.claim())))
    row = pages(context, document_id)[0]
    assert (row.status, row.error, row.attempts, row.claim_id) == (P.FAILED, "a permanent error", 1, None)
    assert counters(context, document_id)[:3] == (D.PROCESSING, 0, 1)


def test_repeated_rate_limits_use_no_attempt(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING])
    worker = Worker(context, document_id)
    for tries in range(6):
        (unit,) = worker.claim(later_s=100 * tries)
        assert unit.attempts == 1
        done = worker.settle_and_claim([bad(unit, ErrorKind.RATE_LIMITED, retry_after_s=30)], later_s=100 * tries)
        assert done is not None
        assert done.more, "it waits before the gate, not in its row"
    assert counters(context, document_id)[:3] == (D.PROCESSING, 0, 0)


def test_the_exchange_names_the_nearest_wait(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING] * 3)
    worker = Worker(context, document_id)
    first, second, third = worker.claim(3)
    far = bad(first, ErrorKind.TRANSIENT, retry_after_s=50)
    done = worker.settle(far, bad(second, ErrorKind.TRANSIENT, retry_after_s=20), good(third))
    assert done is not None
    assert done.settled.retry_in_s == 20


def test_a_dropped_page_is_released_without_an_attempt(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING])
    worker = Worker(context, document_id)
    worker.settle(bad(only(worker.claim()), ErrorKind.CANCELLED))
    (unit,) = worker.claim()
    assert unit.attempts == 1


def test_claimed_but_untried_pages_go_back_uncounted_and_unrecorded(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING] * 3)
    worker = Worker(context, document_id)
    first, second, third = worker.claim(3)
    done = worker.settle_and_claim([good(first)], untried=[second, third])
    assert done is not None
    assert done.more
    assert page_states(context, document_id) == [P.COMPLETED, P.PENDING, P.PENDING]
    assert [unit.attempts for unit in worker.claim(3)] == [1, 1]
    assert len(attempts(context, document_id)) == 1
    worker.settle_and_claim(untried=[second])
    assert page_states(context, document_id)[1] is P.PROCESSING, "that claim has been replaced by another"


def test_a_discarded_result_is_in_the_ledger_but_changes_no_page(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING])
    slow = Worker(context, document_id, "slow")
    (stale,) = slow.claim()
    FLOW.free_lost(context, {"slow"})
    (unit,) = Worker(context, document_id, "w2").claim()
    assert unit.page == stale.page
    slow.settle(good(stale, "from the dead", call_id=uuid4().hex))
    Worker(context, document_id, "w2").settle(good(unit, "good"))
    slow.settle(good(stale, "late"))
    slow.settle(bad(stale))
    assert counters(context, document_id)[:3] == (D.READY_TO_MERGE, 1, 0)
    assert pages(context, document_id)[0].content == "good"
    ledger = [(row.text, row.effective, row.status) for row in attempts(context, document_id)]
    assert ledger == [
        ("from the dead", False, "completed"),
        ("good", True, "completed"),
        ("late", False, "completed"),
        ("", False, "permanent"),
    ]


def test_the_ledger_and_the_traces_keep_paid_calls(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING] * 2)
    worker = Worker(context, document_id)
    paid, other = worker.claim(2)
    worker.settle(good(paid, call_id=uuid4().hex, cost=0.25, cache_key="k", prompt_hash="h"), good(other, cached=True))
    first, second = attempts(context, document_id)
    assert (first.cost, document(context, document_id).cost) == (0.25, 0.25)
    assert [(cost.provider, cost.attempts, cost.cached, cost.cost) for cost in queries.costs(context, document_id)] == [
        ("local", 2, 1, 0.25)
    ]
    assert (first.input_tokens, first.output_tokens, first.latency_ms, first.model) == (10, 5, 7, "m-1")
    assert (first.cache_key, first.prompt_hash, first.cached, second.cached) == ("k", "h", False, True)
    assert first.worker_id == "w1"
    with context.db.read() as session:
        (call,) = session.execute(select(AiCall.__table__)).all()
    assert (call.scope_id, call.unit, call.status, call.preview) == (document_id, "1", "ok", "new text of page 1")
    assert call.created_at <= first.created_at, "when the call began"


def test_a_call_with_unbelievable_usage_succeeds_with_a_note(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING])
    worker = Worker(context, document_id)
    answer = Answer("text", "m-1", Usage(5, 5, "the service says 10^30 input tokens, counted as 5"))
    unit = only(worker.claim())
    worker.settle(Attempt(unit, answer, calls=(call_of(unit, answer, uuid4().hex),)))
    with context.db.read() as session:
        (call,) = session.execute(select(AiCall.__table__)).all()
    assert (call.status, call.error) == ("ok", "the service says 10^30 input tokens, counted as 5")
    assert attempts(context, document_id)[0].error is None


def test_pages_tried_before_are_claimed_singly_and_after_the_others(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING] * 4)
    slow = Worker(context, document_id, "slow")
    assert len(slow.claim(2)) == 2
    FLOW.free_lost(context, {"slow"})
    worker = Worker(context, document_id)
    assert [unit.page for unit in worker.claim(10)] == [3, 4]
    assert [unit.page for unit in worker.claim(10)] == [1]
    assert [unit.page for unit in worker.claim(10)] == [2]


def test_a_page_that_loses_its_worker_every_time_fails_with_the_reason(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING])
    worker = Worker(context, document_id)
    for tries in range(ATTEMPTS_CAP):
        assert page_states(context, document_id) == [P.PENDING]
        assert len(worker.claim()) == 1, f"attempt {tries + 1}"
        assert FLOW.free_lost(context, {"w1"}) == 1
    (row,) = pages(context, document_id)
    assert row.status == P.FAILED
    assert row.error == "the worker was lost while it converted this page (after 3 attempts)"
    assert counters(context, document_id)[:3] == (D.FAILED, 0, 1)


def test_a_page_past_its_lease_is_free_at_once(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING])
    Worker(context, document_id).claim(later_s=-1000)
    assert FLOW.free_lost(context, set()) == 1
    (unit,) = Worker(context, document_id).claim()
    assert unit.attempts == 2


def test_pages_of_an_ending_worker_go_back_uncounted(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING] * 2)
    Worker(context, document_id, "ends").claim()
    Worker(context, document_id, "stays").claim()
    FLOW.release_all(context, ["ends"])
    assert page_states(context, document_id) == [P.PENDING, P.PROCESSING]
    assert pages(context, document_id)[0].attempts == 0


@pytest.mark.parametrize("status", [D.PAUSED, D.CANCELLED, D.FAILED, D.READY_TO_MERGE, D.PENDING])
def test_no_page_is_claimed_unless_the_document_is_processing(context: Context, status: DocumentStatus) -> None:
    document_id = insert_document(context, status, pages=[P.PENDING])
    assert Worker(context, document_id).claim() == []


def test_a_paused_document_stores_results_under_way_and_stays_paused(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING])
    worker = Worker(context, document_id)
    (unit,) = worker.claim()
    with context.db.transaction() as session:
        DOCUMENT.move(session, DOCUMENTS, DocumentEvent.PAUSE, **FREE)
    worker.settle(good(unit))
    assert counters(context, document_id)[:3] == (D.PAUSED, 1, 0)


def test_a_deleted_document_ends_its_lanes_quietly(context: Context) -> None:
    assert Worker(context, "0123456789abcdef").settle_and_claim(want=1) is None


@pytest.mark.parametrize("text", ["nul \x00 inside", "half a pair \ud83d", "\x00", "中文 🙂 ü"])
def test_an_answer_or_an_error_with_any_characters_is_stored(context: Context, text: str) -> None:
    document_id = insert_document(context, pages=[P.PENDING] * 2)
    worker = Worker(context, document_id)
    first, second = worker.claim(2)
    failure = bad(second)
    assert failure.error is not None
    failure.error.args = (text,)
    worker.settle(good(first, text, call_id=uuid4().hex, model=text), failure)
    stored = pages(context, document_id)
    assert page_states(context, document_id) == [P.COMPLETED, P.FAILED]
    for stored_text in (stored[0].content, stored[1].error, attempts(context, document_id)[0].text):
        assert stored_text == text or ("\x00" not in stored_text and stored_text.encode())


def test_an_overlong_model_name_of_a_server_fails_no_page(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING])
    worker = Worker(context, document_id)
    (unit,) = worker.claim()
    answer = Answer("text", "m" * 5000)
    worker.settle(Attempt(unit, answer, calls=(call_of(unit, answer, uuid4().hex),)))
    assert page_states(context, document_id) == [P.COMPLETED]
    assert attempts(context, document_id)[0].model == "m" * 120


def test_every_page_of_a_large_document_is_claimed_in_its_place(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING] * 30)
    claimed = [unit.page for _ in range(6) for unit in Worker(context, document_id).claim(5)]
    assert claimed == list(range(1, 31))
    with context.db.read() as session:
        assert session.execute(select(func.count()).where(PAGES.c.claim_id.is_not(None))).scalar() == 30
