"""Doubtful and failed pages go to another provider, within a budget, and the better text is kept."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select

from pipeline.engine import work
from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UserError
from pipeline.flows.documents import queries, recovery, service
from pipeline.flows.documents.models import ESCALATIONS
from pipeline.flows.documents.rules.escalation import parse_budget
from pipeline.flows.documents.states import DocumentStatus, EscalationState, PageStatus
from pipeline.flows.documents.work import merge
from pipeline.flows.documents.work.page import CONVERT, Attempt, PageUnit
from pipeline.providers.protocols import Answer, Usage
from pipeline.storage.context import Context
from tests.support.documents import Worker, at_once, bad, call_of, document, insert_document, only, page_states, pages

pytestmark = pytest.mark.both_databases
D, P, S = DocumentStatus, PageStatus, EscalationState
TEXT = "ten common words that the local reading was quite sure about today"
BETTER = f"{TEXT} and the others"
EACH = 1.0
"""The most that a page may cost: three answers of 1,000 tokens."""


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {
        "PENSTOCK_DOCUMENTS__BACKOFF_S": "[]",
        "PENSTOCK_PROVIDERS__BIG__BASE_URL": "http://127.0.0.1:9/v1",
        "PENSTOCK_PROVIDERS__BIG__MODEL": "m-1",
        "PENSTOCK_PROVIDERS__BIG__MAX_TOKENS": "1000",
        "PENSTOCK_PROVIDERS__BIG__PRICES": '{"*": {"output": 333.3333333333333}}',
    }


def insert(context: Context, count: int, budget: str = "", provider: str = "local") -> str:
    most = parse_budget(budget)
    limits: dict[str, Any] = {"budget": budget, "budget_cost": most.cost, "budget_pages": most.pages}
    return insert_document(context, pages=[P.PENDING] * count, provider=provider, escalate="big", **limits)


def read(unit: PageUnit, sure: float = 0.5, text: str = TEXT) -> Attempt:
    """The local reading of a page."""
    layout = {"width": 1, "height": 1, "unit": "px", "blocks": [], "confidence": sure}
    return Attempt(unit, Answer(text, "local", layout=layout))


def answered(unit: PageUnit, text: str = BETTER, cost: float = 0.1) -> Attempt:
    """The answer of the other provider."""
    answer = Answer(text, "m-1", Usage(10, 5))
    return Attempt(unit, answer, calls=(call_of(unit, answer, uuid4().hex, cost),))


def local(context: Context, document_id: str, *sure: float) -> None:
    worker = Worker(context, document_id, "local")
    for each in sure:
        worker.settle(read(only(worker.claim()), each))


def big(context: Context, document_id: str, name: str = "big") -> Worker:
    return Worker(context, document_id, name, queue="vision.big")


def escalations(context: Context, document_id: str) -> list[tuple[int, EscalationState, str]]:
    known = [(page.page, page.escalation) for page in queries.pages(context, document_id)]
    return [(number, each.state, each.outcome) for number, each in known if each]


def reserved(context: Context, document_id: str) -> float:
    with context.db.read() as session:
        query = select(ESCALATIONS.c.reserved).where(ESCALATIONS.c.document_id == document_id)
        return sum(session.execute(query).scalars())


def test_a_doubtful_page_goes_to_the_other_provider_and_keeps_its_text_until_the_answer(context: Context) -> None:
    document_id = insert(context, 2)
    local(context, document_id, 0.5, 0.99)
    first, second = pages(context, document_id)
    assert (first.status, first.provider, first.content, first.doubtful) == (P.RETRYING, "big", TEXT, True)
    assert (second.status, second.provider) == (P.COMPLETED, "local")
    row = document(context, document_id)
    assert (D(row.status), row.completed_count, row.escalated_pages) == (D.PROCESSING, 1, 1)

    worker = big(context, document_id)
    worker.settle(answered(only(worker.claim())))
    first = pages(context, document_id)[0]
    assert (first.status, first.provider, first.content, first.doubtful) == (P.COMPLETED, "big", BETTER, False)
    row = document(context, document_id)
    assert (D(row.status), row.completed_count, row.escalated_cost, row.cost) == (D.READY_TO_MERGE, 2, 0.1, 0.1)
    why = "its answer has 100% of the words of which recognition was sure"
    assert escalations(context, document_id) == [(1, S.REPLACED, why)]
    assert queries.layouts(context, document_id).keys() == {2}


def test_the_manifest_says_which_pages_went_why_and_what_it_cost(context: Context) -> None:
    document_id = insert(context, 1)
    local(context, document_id, 0.5)
    worker = big(context, document_id)
    worker.settle(answered(only(worker.claim())))
    assert merge.merge_document(context, document_id, Owner("m", "1"))
    view = queries.document(context, document_id)
    manifest = json.loads(Path(str(view.merged_path)).with_suffix(".manifest.json").read_text())
    escalation = manifest["pages"][0]["escalation"]
    assert (escalation["state"], escalation["reason"], escalation["cost"], escalation["former_provider"]) == (
        "replaced",
        "recognition is 50% sure",
        0.1,
        "local",
    )
    assert (manifest["document"]["escalated_pages"], manifest["document"]["escalated_cost"]) == (1, 0.1)
    assert BETTER in view.result_path.read_text()


def test_a_worse_answer_stays_an_attempt_that_a_user_can_choose(context: Context) -> None:
    document_id = insert(context, 1)
    local(context, document_id, 0.5)
    worker = big(context, document_id)
    worker.settle(answered(only(worker.claim()), "I am sorry, I cannot help with this picture."))
    (page,) = queries.pages(context, document_id)
    assert (page.status, page.provider, page.content, page.doubtful) == (P.COMPLETED, "local", TEXT, True)
    assert queries.layouts(context, document_id).keys() == {1}
    ((_, state, why),) = escalations(context, document_id)
    assert (state, why) == (S.KEPT, "its answer lacks 100% of the words of which recognition was sure")
    assert document(context, document_id).status == D.READY_TO_MERGE

    assert merge.merge_document(context, document_id, Owner("m", "1"))
    (other,) = [each for each in queries.attempts(context, document_id) if each.provider == "big"]
    service.promote(context, document_id, 1, other.id)
    assert queries.pages(context, document_id)[0].content == other.text
    assert escalations(context, document_id) == [(1, S.REPLACED, "a user chose this text")]


def test_a_provider_that_fails_leaves_the_local_text(context: Context) -> None:
    document_id = insert(context, 1)
    local(context, document_id, 0.5)
    worker = big(context, document_id)
    worker.settle(bad(only(worker.claim())))
    (page,) = queries.pages(context, document_id)
    assert (page.status, page.provider, page.content, page.error) == (P.COMPLETED, "local", TEXT, None)
    assert escalations(context, document_id) == [(1, S.FAILED, "a permanent error")]
    row = document(context, document_id)
    assert (row.status, row.completed_count, row.failed_count) == (D.READY_TO_MERGE, 1, 0)


def test_a_failed_page_goes_to_the_other_provider_once(context: Context) -> None:
    document_id = insert(context, 2)
    worker, other = Worker(context, document_id), big(context, document_id)
    for unit in worker.claim(2):
        worker.settle(bad(unit))
    assert page_states(context, document_id) == [P.RETRYING] * 2
    first, second = other.claim(2)
    other.settle(answered(first), bad(second))
    assert page_states(context, document_id) == [P.COMPLETED, P.FAILED]
    states = [(state, why) for _, state, why in escalations(context, document_id)]
    assert states == [(S.REPLACED, "the page had no text"), (S.FAILED, "a permanent error")]
    row = document(context, document_id)
    assert (row.status, row.completed_count, row.failed_count) == (D.PARTIAL_FAILED, 1, 1)


@pytest.mark.parametrize("budget", ["0", "0p", "0.99"])
def test_without_budget_the_pages_stay_and_say_so(context: Context, budget: str) -> None:
    document_id = insert(context, 2, budget)
    local(context, document_id, 0.5, 0.5)
    assert page_states(context, document_id) == [P.COMPLETED] * 2
    assert escalations(context, document_id) == [(1, S.UNPAID, "budget spent"), (2, S.UNPAID, "budget spent")]
    row = document(context, document_id)
    assert (row.status, row.escalated_pages, row.unpaid_pages) == (D.READY_TO_MERGE, 0, 2)


def test_pages_wait_for_room_in_the_budget_until_open_escalations_are_settled(context: Context) -> None:
    document_id = insert(context, 4, "2.2")
    local(context, document_id, *[0.5] * 4)
    assert [state for _, state, _ in escalations(context, document_id)] == [S.OPEN, S.OPEN, S.WAITING, S.WAITING]
    assert reserved(context, document_id) == pytest.approx(2 * EACH)
    assert page_states(context, document_id) == [P.RETRYING, P.RETRYING, P.COMPLETED, P.COMPLETED]
    worker = big(context, document_id)
    worker.settle(answered(only(worker.claim()), cost=0.1))  # 2.1 are left, 1 is reserved
    assert [state for _, state, _ in escalations(context, document_id)] == [S.REPLACED, S.OPEN, S.OPEN, S.WAITING]
    worker.settle(answered(only(worker.claim()), cost=0.9))  # 1.2 are left, 1 is reserved
    worker.settle(answered(only(worker.claim()), cost=0.9))  # 0.3 are left
    assert [state for _, state, _ in escalations(context, document_id)] == [*[S.REPLACED] * 3, S.UNPAID]
    row = document(context, document_id)
    assert (row.status, row.completed_count, row.unpaid_pages) == (D.READY_TO_MERGE, 4, 1)
    assert (row.escalated_cost, reserved(context, document_id)) == (pytest.approx(1.9), 0)


@pytest.mark.parametrize(("budget", "went"), [("3p", 3), ("3.5", 3)])
def test_the_budget_holds_when_many_lanes_settle_at_once(context: Context, budget: str, went: int) -> None:
    document_id = insert(context, 8, budget)
    workers = [Worker(context, document_id, f"w{number}") for number in range(8)]
    units = [only(worker.claim()) for worker in workers]
    at_once(8, lambda number: workers[number].settle(read(units[number])))
    row = document(context, document_id)
    assert (row.escalated_pages, reserved(context, document_id)) == (
        went,
        pytest.approx(went * EACH if "." in budget else 0),
    )
    others = [big(context, document_id, f"b{number}") for number in range(8)]
    claimed = [other.claim() for other in others]
    ready = [(other, units[0]) for other, units in zip(others, claimed, strict=True) if units]
    assert len(ready) == went
    at_once(went, lambda number: ready[number][0].settle(answered(ready[number][1], cost=EACH)))
    row = document(context, document_id)
    assert (row.status, row.escalated_pages, row.unpaid_pages) == (D.READY_TO_MERGE, went, 8 - went)


def test_a_lost_worker_leaks_no_budget_and_its_page_keeps_its_text(context: Context) -> None:
    document_id = insert(context, 1, "1.5")
    local(context, document_id, 0.5)
    unit = only(big(context, document_id, "dead").claim())
    work.free_lost(context.db, CONVERT, [unit.worker_id])  # without further attempts
    assert escalations(context, document_id) == [(1, S.FAILED, f"{CONVERT.lost} (after 1 attempts)")]
    assert (reserved(context, document_id), page_states(context, document_id)) == (0, [P.COMPLETED])
    assert document(context, document_id).status == D.READY_TO_MERGE
    big(context, document_id, "dead").settle(answered(unit))  # its answer arrives after all
    row = document(context, document_id)
    assert (row.cost, pages(context, document_id)[0].content) == (0.1, TEXT)


def test_an_answer_whose_commit_had_no_reply_is_counted_once(context: Context) -> None:
    document_id = insert(context, 1, "1.5")
    local(context, document_id, 0.5)
    worker = big(context, document_id)
    answer = answered(only(worker.claim()))
    worker.settle(answer)
    worker.settle(answer)
    row = document(context, document_id)
    assert (row.escalated_cost, row.cost, row.completed_count) == (0.1, 0.1, 1)


def test_a_silent_provider_ends_the_wait_but_not_the_text(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    document_id = insert(context, 1)
    local(context, document_id, 0.5)
    assert recovery.fail_unserved(context) == []
    monkeypatch.setattr(context.db, "now", lambda: datetime.now(UTC) + timedelta(hours=2))
    monkeypatch.setattr(context.settings.documents, "escalate_wait_s", -1.0)
    assert recovery.fail_unserved(context) == [document_id]
    assert pages(context, document_id)[0].provider == "local"
    assert document(context, document_id).status == D.READY_TO_MERGE
    assert [state for _, state, _ in escalations(context, document_id)] == [S.FAILED]


def test_cancelling_keeps_the_local_texts(context: Context) -> None:
    document_id = insert(context, 3, "2.5")
    local(context, document_id, *[0.5] * 3)
    big(context, document_id).claim()
    service.cancel(context, document_id)
    assert page_states(context, document_id) == [P.COMPLETED] * 3
    assert {page.provider for page in pages(context, document_id)} == {"local"}
    row = document(context, document_id)
    assert (row.status, row.completed_count, escalations(context, document_id)) == (D.CANCELLED, 3, [])


def test_a_user_sends_the_doubtful_pages_of_a_finished_document(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING] * 3)
    local(context, document_id, 0.5, 0.99, 0.6)
    assert merge.merge_document(context, document_id, Owner("m", "1"))
    view = service.escalate(context, document_id, "big", "1p")
    assert (view.status, view.outdated, view.completed_count) == (D.PROCESSING, True, 2)
    assert [(number, state) for number, state, _ in escalations(context, document_id)] == [(1, S.OPEN), (3, S.UNPAID)]
    worker = big(context, document_id)
    worker.settle(answered(only(worker.claim())))
    assert merge.merge_document(context, document_id, Owner("m", "1"))
    view = service.escalate(context, document_id, "big", "1p")  # the page that was left, not the answered one
    assert (view.escalated_pages, view.unpaid_pages) == (2, 0)
    assert [(number, state) for number, state, _ in escalations(context, document_id)] == [(1, S.REPLACED), (3, S.OPEN)]
    worker.settle(answered(only(worker.claim())))
    assert merge.merge_document(context, document_id, Owner("m", "1"))
    assert service.escalate(context, document_id, "big").status == D.COMPLETED  # nothing is left
    with context.db.read() as session:
        (pages_sent, cost), *others = queries.escalated_to(session, document_id).values()
    view = queries.document(context, document_id)
    assert (pages_sent, cost, others) == (2, pytest.approx(view.escalated_cost), [])
    with pytest.raises(UserError, match="local conversion is none"):
        service.escalate(context, document_id, "local")


def test_a_retry_lets_a_page_be_escalated_again(context: Context) -> None:
    document_id = insert(context, 1)
    local(context, document_id, 0.5)
    worker = big(context, document_id)
    worker.settle(answered(only(worker.claim()), "nothing of it"))
    service.retry_page(context, document_id, 1)
    local(context, document_id, 0.5)
    assert [state for _, state, _ in escalations(context, document_id)] == [S.OPEN]


@pytest.mark.parametrize(
    ("escalate", "budget", "message"),
    [("nobody", "", "there is no provider"), ("", "2.00", "needs a provider"), ("big", "much", "is not a budget")],
)
def test_bad_wishes_are_refused(context: Context, escalate: str, budget: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        service.other_provider(context.settings, "local", escalate, budget)


def test_a_budget_in_money_needs_a_price(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context.settings.providers["big"], "prices", {})
    with pytest.raises(UserError, match="has no price"):
        service.other_provider(context.settings, "local", "big", "2.00")
    columns: dict[str, Any] = service.other_provider(context.settings, "local", "big", "20p")
    assert (columns["escalate"], columns["budget_pages"]) == ("big", 20)


def test_a_transient_error_waits_as_any_page_of_that_provider(context: Context) -> None:
    document_id = insert(context, 1, "1.5")
    local(context, document_id, 0.5)
    worker = big(context, document_id)
    worker.settle(bad(only(worker.claim()), ErrorKind.RATE_LIMITED))
    assert page_states(context, document_id) == [P.PENDING]
    assert reserved(context, document_id) == pytest.approx(EACH)
