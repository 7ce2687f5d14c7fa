"""An outage of a provider uses no attempt; a page that fails while others succeed uses its own attempts."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import SecretStr
from sqlalchemy import select

from pipeline.engine import breaker
from pipeline.engine.claims import Owner
from pipeline.engine.guarded_call import GateClosed
from pipeline.engine.retry import MAX_RELEASES
from pipeline.flows.documents import submission
from pipeline.flows.documents.models import PAGES
from pipeline.flows.documents.states import PageStatus
from pipeline.flows.documents.submission import Options
from pipeline.flows.documents.work import split
from pipeline.flows.documents.work.page_lane import PageLane
from pipeline.providers import gates, queue_control, registry
from pipeline.storage.context import Context
from tests.support.documents import attempts, pages
from tests.support.provider_server import Fault, ProviderServer, Record
from tests.support.samples import Sheet, pdf_bytes, shown

QUEUE = "vision.ai"
BREAKER = "ai:vision"
TOO_LARGE = Fault(
    status=429,
    body={"error": {"message": "Request too large for m on tokens per min: Limit 30000, Requested 41217."}},
)


@pytest.fixture
def provider() -> Iterator[ProviderServer]:
    with ProviderServer() as server:
        yield server


@pytest.fixture
def settings_env(provider: ProviderServer) -> dict[str, str]:
    return {
        "PENSTOCK_PROVIDERS__AI__BASE_URL": provider.base_url,
        "PENSTOCK_PROVIDERS__AI__MODEL": "m",
        "PENSTOCK_PROVIDERS__AI__API_KEY": "a-secret-key",
        "PENSTOCK_PROVIDERS__AI__BREAKER_COOL_DOWN_S": "0.01",
        "PENSTOCK_PROVIDERS__AI__BREAKER_LONGEST_S": "0.01",
        "PENSTOCK_DOCUMENTS__BACKOFF_S": "[0.01, 0.01]",
    }


class Lane:
    """A document whose pages a provider converts, one in each message."""

    def __init__(self, context: Context, folder: Path, count: int) -> None:
        self.context = context
        path = folder / "book.pdf"
        path.write_bytes(pdf_bytes([Sheet(shown(f"page {number}", 30, 400, 90)) for number in range(count)]))
        self.document_id = submission.submit(context, path, Options(provider="ai")).id
        assert split.split_document(context, self.document_id, Owner("w:1:a", "r:0"))
        gates.sync(context)

    def hop(self) -> None:
        """Handle one message after its wait and the breaker's."""
        with self.context.db.transaction() as session:
            session.execute(PAGES.update().values(next_run_at=None))
        while gates.breaker(self.context, BREAKER).inspect().state == "open":
            time.sleep(0.005)
        guarded = gates.guarded_call(self.context, QUEUE, uuid4().hex)
        owner = Owner("w:1:a", uuid4().hex)
        PageLane(self.context, self.document_id, QUEUE, ["ai"], owner, guarded=guarded).run(quantum_s=0)

    @property
    def rows(self) -> list[Any]:
        with self.context.db.read() as session:
            own_pages = select(PAGES).where(PAGES.c.document_id == self.document_id).order_by(PAGES.c.page)
            return list(session.execute(own_pages))


@pytest.fixture
def lane(context: Context, tmp_path: Path) -> Callable[[int], Lane]:
    return lambda count: Lane(context, tmp_path, count)


@pytest.mark.parametrize(
    "fault", [Fault(status=500), Fault(status=503), Fault(status=529), Fault("close"), Fault("malformed"), None]
)
def test_a_provider_that_is_down_uses_no_attempt_of_any_page(
    lane: Callable[[int], Lane], provider: ProviderServer, fault: Fault | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "probe", lambda *_: pytest.fail("no request goes to a provider without room"))
    monkeypatch.setattr("pipeline.engine.breaker.STUBBORN", 1000)
    work = lane(2)
    provider.script.always = fault
    if fault is None:
        provider.stop()  # the port refuses connections
    for _ in range(12):
        work.hop()
    assert [(row.status, row.attempts) for row in work.rows] == [(PageStatus.PENDING, 0)] * 2
    assert [row.releases for row in work.rows] == [6, 6], "released pages come after their neighbours"
    provider.script.always = None
    if fault is None:
        provider.start()
    for _ in range(2):
        work.hop()
    assert [(row.status, row.attempts) for row in work.rows] == [(PageStatus.COMPLETED, 1)] * 2


@pytest.mark.parametrize("fault", [Fault(status=500), Fault(status=307), Fault(status=404)])
def test_a_page_that_fails_while_others_succeed_ends_failed(
    lane: Callable[[int], Lane], provider: ProviderServer, fault: Fault
) -> None:
    work = lane(6)
    poison: list[str] = []

    def rule(record: Record) -> Fault | None:
        poison[:] = poison or [record.image_sha256]
        return fault if record.image_sha256 in poison else None

    provider.script.rule = rule
    for _ in range(10):
        work.hop()
    assert sorted(row.status for row in work.rows) == [PageStatus.FAILED] + [PageStatus.COMPLETED] * 5
    failed = next(row for row in work.rows if row.status == PageStatus.FAILED)
    assert "(after 3 attempts)" in failed.error
    assert (failed.attempts, failed.releases) == (3, 1)


def test_the_last_page_ends_failed_at_a_provider_that_answers(
    lane: Callable[[int], Lane], provider: ProviderServer
) -> None:
    work = lane(1)
    provider.script.rule = lambda record: Fault(status=500) if record.path.endswith("completions") else None
    for _ in range(40):
        work.hop()
        if work.rows[0].status == PageStatus.FAILED:
            break
    (row,) = work.rows
    assert row.status == PageStatus.FAILED
    assert row.releases >= 5, "the breaker's failures in a row, and its openings"


def test_pages_at_fault_do_not_keep_the_breaker_open_while_the_provider_answers(
    context: Context, lane: Callable[[int], Lane], provider: ProviderServer
) -> None:
    context.settings.providers["ai"].breaker_longest_s = 600
    work = lane(6)
    provider.script.rule = lambda record: Fault(status=500) if record.path.endswith("completions") else None
    cool_down_s = context.settings.providers["ai"].breaker_cool_down_s
    for _ in range(60):
        work.hop()
        assert gates.breaker(context, BREAKER).inspect().left_s <= cool_down_s * 2**breaker.STUBBORN
    assert {row.status for row in work.rows} == {PageStatus.FAILED}


@pytest.mark.parametrize(("status", "words"), [(401, "refused the key"), (403, "may use"), (404, "no model 'm'")])
def test_a_wrong_setting_closes_the_queue_at_the_first_reply(
    context: Context, lane: Callable[[int], Lane], provider: ProviderServer, status: int, words: str
) -> None:
    context.settings.providers["ai"].breaker_cool_down_s = context.settings.providers["ai"].breaker_longest_s = 600
    work = lane(3)
    provider.script.always = Fault(status=status)
    work.hop()
    assert words in gates.closed_because(context, QUEUE)
    assert len(provider.records) == 1
    assert [(row.status, row.attempts) for row in work.rows] == [(PageStatus.PENDING, 0)] * 3
    guarded = gates.guarded_call(context, QUEUE, "another")
    assert guarded is not None
    assert not guarded.gate.admit("another").granted
    gates.close_after_changes(context)
    assert gates.closed_because(context, QUEUE), "nothing has changed"
    context.settings.providers["ai"].api_key = SecretStr("another key")
    provider.script.always = None
    gates.close_after_changes(context)
    assert not gates.closed_because(context, QUEUE)
    for _ in range(3):
        work.hop()
    assert {row.status for row in work.rows} == {PageStatus.COMPLETED}


def test_a_breaker_opened_by_hand_stays_open_after_a_change_of_settings(context: Context) -> None:
    gates.sync(context)
    queue_control.open_breaker(context, BREAKER, 600, "maintenance")
    context.settings.providers["ai"].api_key = SecretStr("another key")
    gates.close_after_changes(context)
    assert "maintenance" in gates.closed_because(context, QUEUE)


def test_missing_credit_is_not_a_daily_quota(
    context: Context, lane: Callable[[int], Lane], provider: ProviderServer
) -> None:
    context.settings.providers["ai"].breaker_cool_down_s = context.settings.providers["ai"].breaker_longest_s = 600
    work = lane(1)
    provider.push(Fault(status=429, body={"error": {"message": "You exceeded it", "code": "insufficient_quota"}}))
    work.hop()
    assert "no credit" in gates.closed_because(context, QUEUE)
    assert gates.breaker(context, BREAKER).inspect().left_s <= 600, "not until the day's reset"
    assert work.rows[0].attempts == 0


def test_a_page_above_the_size_limit_is_sent_smaller_and_closes_no_breaker(
    context: Context, lane: Callable[[int], Lane], provider: ProviderServer
) -> None:
    work = lane(2)
    provider.push(TOO_LARGE)
    work.hop()
    assert not gates.closed_because(context, QUEUE)
    assert work.rows[0].status == PageStatus.COMPLETED
    first, second = provider.records
    assert first.image_sha256 != second.image_sha256
    provider.script.always = TOO_LARGE
    work.hop()
    failed = work.rows[1]
    assert (failed.status, failed.attempts) == (PageStatus.FAILED, 1)
    assert "IMAGE_DPI" in failed.error
    assert not gates.closed_because(context, QUEUE)


@pytest.mark.usefixtures("others_succeed")
def test_releases_by_rate_limits_are_bounded_while_others_succeed(
    lane: Callable[[int], Lane], provider: ProviderServer
) -> None:
    work = lane(1)
    provider.script.always = Fault(status=429, headers={"Retry-After": "0.001"})
    for _ in range(MAX_RELEASES + 3):
        work.hop()
    (row,) = work.rows
    assert (row.status, row.releases, row.attempts) == (PageStatus.FAILED, MAX_RELEASES, 3)
    assert len(attempts(work.context, work.document_id)) == MAX_RELEASES + 3


def test_a_refusal_of_the_gate_is_not_a_release(context: Context, lane: Callable[[int], Lane]) -> None:
    work = lane(1)
    gates.breaker(context, BREAKER).open(60, "closed between admission and call")
    guarded = gates.guarded_call(context, QUEUE, "m")
    assert guarded is not None
    PageLane(context, work.document_id, QUEUE, ["ai"], Owner("w:1:a", "r:9"), guarded=guarded).run(quantum_s=0)
    (page,) = pages(context, work.document_id)
    assert (page.attempts, work.rows[0].releases) == (0, 0)
    assert GateClosed.__name__ not in (page.error or "")
