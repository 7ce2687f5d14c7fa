"""Each event reaches each endpoint that wants it, signed, and with retries until success, on both databases."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from threading import Barrier

import pytest
from sqlalchemy import delete, func, select, update
from standardwebhooks.webhooks import WebhookVerificationError
from structlog.testing import capture_logs

from pipeline.engine.errors import ErrorKind, UnitError, UserError
from pipeline.engine.outbox import EVENTS
from pipeline.engine.transaction import Dispatch
from pipeline.engine.views import plain
from pipeline.flows import flows
from pipeline.flows.documents import service as documents
from pipeline.flows.documents.states import DocumentEvent
from pipeline.flows.webhooks import plan, queries, service
from pipeline.flows.webhooks.models import ATTEMPTS, DELIVERIES, ENDPOINTS
from pipeline.flows.webhooks.settings import webhooks_of
from pipeline.flows.webhooks.states import DeliveryStatus
from pipeline.flows.webhooks.work import delivery, fanout
from pipeline.operations import webhooks
from pipeline.operations.backlog import reasons
from pipeline.storage.context import Context
from tests.integration.webhooks.conftest import Driver
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import Receiver, Reply


@pytest.mark.both_databases
def test_an_event_arrives_signed_by_the_specification(context: Context, driver: Driver, receiver: Receiver) -> None:
    created = service.create(context, receiver.url())
    document_id = driver.event(filename="报告 ü.pdf")
    assert driver.run() == 1
    (request,) = receiver.received
    message = request.verified(created.secret)
    assert message["type"] == "document.paused"
    assert message["data"] | {"id": document_id, "status": "paused", "filename": "报告 ü.pdf"} == message["data"]
    assert request.id == "evt_1"
    with pytest.raises(WebhookVerificationError):
        request.verified(service.create(context, receiver.url()).secret)
    assert driver.statuses() == ["delivered"]


def test_the_secret_is_shown_once_and_is_in_no_view_and_no_log(
    context: Context, driver: Driver, receiver: Receiver
) -> None:
    receiver.script(Reply(500))
    with capture_logs() as logs:
        created = service.create(context, receiver.url())
        driver.event()
        driver.run()
    seen = [queries.endpoints(context), queries.deliveries(context), queries.attempts(context, 1)]
    assert created.secret not in json.dumps([plain(seen), logs], default=str)
    assert receiver.url() not in json.dumps(logs, default=str), "addresses may contain tokens"


def test_an_exchanged_secret_signs_for_one_more_day_beside_the_new_one(
    context: Context, driver: Driver, receiver: Receiver
) -> None:
    old = service.create(context, receiver.url())
    new = service.exchange_secret(context, old.endpoint.id)
    driver.event()
    driver.run()
    (request,) = receiver.received
    assert request.verified(new.secret) == request.verified(old.secret)
    driver.pass_time(days=1)
    driver.event()
    driver.run()
    later = receiver.received[1]
    later.verified(new.secret)
    with pytest.raises(WebhookVerificationError):
        later.verified(old.secret)


def test_an_endpoint_gets_only_wanted_events_from_its_creation_on(
    context: Context, driver: Driver, receiver: Receiver
) -> None:
    driver.event()
    types = {"/all": [], "/one": ["document.cancelled"], "/kind": ["document.*"], "/other": ["music_run.*"]}
    for path, wanted in types.items():
        webhooks.create(receiver.url(path), wanted)
    driver.event()
    driver.event(DocumentEvent.CANCEL)
    driver.run()
    got = {path: [json.loads(request.body)["type"] for request in receiver.at(path)] for path in types}
    both = ["document.paused", "document.cancelled"]
    assert got == {"/all": both, "/one": both[1:], "/kind": both, "/other": []}


@pytest.mark.both_databases
def test_simultaneous_fan_outs_lose_no_event_and_repeat_none(
    context: Context, driver: Driver, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "PORTION", 3)
    endpoints = [service.create(context, receiver.url(f"/{number}")).endpoint.id for number in range(2)]
    barrier = Barrier(4)

    def some(_: int) -> None:
        barrier.wait(60)
        for _ in range(5):
            driver.event()
            fanout.fan_out(context)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(some, range(4)))
    fanout.fan_out(context)
    with context.db.read() as session:
        for endpoint_id in endpoints:
            numbers = select(DELIVERIES.c.seq).where(DELIVERIES.c.endpoint_id == endpoint_id)
            assert sorted(session.scalars(numbers)) == list(range(1, 21))
        assert not session.execute(plan.ANYTHING.with_only_columns(func.count()).where(fanout.BEHIND)).scalar_one()


def test_a_failed_delivery_is_retried_with_the_same_id_until_it_succeeds(
    context: Context, driver: Driver, receiver: Receiver
) -> None:
    created = service.create(context, receiver.url())
    receiver.script(
        Reply(500, body=b"our desk is closed: " + b"x" * 10_000),
        Reply(404),
        Reply(302, {"location": "/elsewhere"}),
        Reply(200, body=b"thanks"),
    )
    driver.event()
    assert driver.run() == 1
    assert driver.run() == 0, "its retry is not due"
    for _ in range(3):
        driver.pass_time(days=1)
        assert driver.run() == 1
    assert driver.statuses() == ["delivered"]
    assert {request.id for request in receiver.received} == {"evt_1"}
    assert len({request.body for request in receiver.received}) == 1
    assert len([request.verified(created.secret) for request in receiver.at("/hook")]) == 4
    assert [(request.response_status, request.preview) for request in queries.attempts(context, 1)] == [
        (500, "our desk is closed: " + "x" * 280),
        (404, ""),
        (302, ""),
        (200, "thanks"),
    ]
    assert queries.endpoints(context)[0].failures == 0


def test_a_delivery_fails_after_its_last_attempt_and_can_be_replayed(
    context: Context, driver: Driver, receiver: Receiver
) -> None:
    service.create(context, receiver.url())
    receiver.usual = Reply(503)
    driver.event()
    for _ in range(12):
        driver.run()
        driver.pass_time(hours=25)
        context.db.run(lambda session: session.execute(update(ENDPOINTS).values(failing_since=context.db.now())))
    assert driver.statuses() == ["failed"]
    (delivery,) = queries.deliveries(context)
    assert len(receiver.received) == 10
    assert "after 10 attempts" in (delivery.error or "")
    receiver.usual = Reply()
    service.replay(context, delivery.id)
    driver.run()
    assert driver.statuses() == ["delivered"]


def test_an_endpoints_retry_after_applies_to_all_its_deliveries(
    context: Context, driver: Driver, receiver: Receiver
) -> None:
    service.create(context, receiver.url())
    receiver.script(Reply(429, {"retry-after": "3600"}))
    for _ in range(3):
        driver.event()
    assert driver.run() == 1
    driver.pass_time(minutes=50)
    assert driver.run() == 0
    assert 0 < (plan.next_wait_s(context) or 0) <= 600
    driver.pass_time(minutes=11)
    assert driver.run() == 3
    assert driver.statuses() == ["delivered"] * 3


def test_410_disables_an_endpoint_and_no_other(context: Context, driver: Driver, receiver: Receiver) -> None:
    refusing = service.create(context, receiver.url("/gone")).endpoint
    service.create(context, receiver.url("/there"))
    receiver.script(Reply(410), path="/gone")
    driver.event()
    driver.event()
    driver.run()
    driver.pass_time(days=1)
    driver.run()
    assert (len(receiver.at("/gone")), len(receiver.at("/there"))) == (1, 2)
    disabled = queries.endpoint(context, refusing.id)
    assert (disabled.active, disabled.disabled_because) == (False, "it answered 410 Gone")
    enabled = service.change(context, refusing.id, active=True)
    assert (enabled.active, enabled.disabled_because, enabled.failures) == (True, None, 0)
    assert driver.run() == 1, "the waiting deliveries"


def test_an_endpoint_that_fails_for_days_is_disabled(context: Context, driver: Driver, receiver: Receiver) -> None:
    service.create(context, receiver.url())
    receiver.usual = Reply(500)
    driver.event()
    driver.run()
    (endpoint,) = queries.endpoints(context)
    assert endpoint.failing_since is not None
    assert endpoint.active
    driver.pass_time(days=5)
    driver.run()
    (endpoint,) = queries.endpoints(context)
    assert not endpoint.active
    assert "it has failed since" in (endpoint.disabled_because or "")


def test_a_refused_delivery_wakes_the_flow_when_its_retry_is_due(context: Context, receiver: Receiver) -> None:
    sent: list[Dispatch] = []
    woken = replace(context, launcher=lambda _, dispatch: sent.append(dispatch))
    service.create(woken, receiver.url())
    receiver.usual = Reply(503)
    driver = Driver(woken)
    driver.event()
    driver.run()
    assert [round(dispatch.wakes_s["webhooks"]) for dispatch in sent if dispatch.wakes_s] == [5]
    woken.db.dispose()


def test_a_retry_after_one_503_does_not_wait_for_dead_endpoints(
    context: Context, driver: Driver, receiver: Receiver
) -> None:
    for number in range(9):
        service.create(context, receiver.url(f"/dead{number}"))
    living = service.create(context, receiver.url("/living")).endpoint.id
    receiver.script(Reply(503), path="/living")
    driver.event()
    plan.due(context)

    def silent(endpoint_id: str) -> None:
        """Give an endpoint the state after a time-out."""
        unit = delivery.claim(context, endpoint_id, driver.owner())
        assert unit is not None
        error = UnitError("did not answer", kind=ErrorKind.TRANSIENT, code="timeout")
        delivery._settle(context, unit, None, error, 10_000)

    dead = [candidate.id for candidate in queries.endpoints(context) if candidate.id != living]
    for candidate in dead:
        silent(candidate)
    assert delivery.send(context, driver.owner()).status is DeliveryStatus.PENDING
    driver.pass_time(days=1)
    [reason] = [candidate for candidate in reasons(context, {}, None) if candidate.units.get("webhook_deliveries")]
    assert (reason.kind, reason.units) == ("turn", {"webhook_deliveries": 10}), "they do not wait for a worker"
    assert delivery.claim(context, dead[0], driver.owner()), "one dead endpoint has a place"
    assert plan.places(context) == 1
    assert delivery.send(context, driver.owner()).status is DeliveryStatus.DELIVERED
    assert len(receiver.at("/living")) == 2
    assert not delivery.send(context, driver.owner()).done, "all dead endpoints share one place"


@pytest.mark.both_databases
def test_deliveries_behind_others_of_their_endpoint_name_the_reason(
    context: Context, driver: Driver, receiver: Receiver
) -> None:
    endpoint_id = service.create(context, receiver.url()).endpoint.id
    for _ in range(3):
        driver.event()
    plan.due(context)
    for _ in range(webhooks_of(context.settings).per_endpoint):
        assert delivery.claim(context, endpoint_id, driver.owner())
    [reason] = [candidate for candidate in reasons(context, {}, None) if candidate.units.get("webhook_deliveries")]
    assert (reason.kind, reason.count) == ("turn", 1)
    assert "PER_ENDPOINT" in reason.words


def test_a_dead_endpoint_does_not_delay_others(context: Context, driver: Driver, receiver: Receiver) -> None:
    service.create(context, receiver.url("/dead"))
    for _ in range(2):
        driver.event()
    receiver.script(Reply(500), path="/dead")
    driver.run()
    service.create(context, receiver.url("/alive"))
    driver.event()
    driver.pass_time(days=1)
    plan.due(context)
    receiver.script(Reply(hang=True), path="/dead")
    with ThreadPoolExecutor(1) as pool:
        driver.event()
        alive = [delivery.send(context, driver.owner())]
        hanging = pool.submit(delivery.send, context, driver.owner())
        wait_until(lambda: len(receiver.at("/dead")) == 2, 60, "one is sent to the dead endpoint")
        assert plan.places(context) == 0
        assert not delivery.send(context, driver.owner()).done, "a failing endpoint has at most one delivery under way"
        plan.due(context)
        alive.append(delivery.send(context, driver.owner()))
        assert [delivered.status for delivered in alive] == [DeliveryStatus.DELIVERED] * 2
        assert hanging.result(30).status is DeliveryStatus.PENDING
    assert "did not answer" in (queries.attempts(context, 1)[-1].error or queries.attempts(context, 2)[-1].error or "")


def test_private_addresses_are_refused_unless_they_are_allowed(
    context: Context, driver: Driver, receiver: Receiver
) -> None:
    webhooks_of(context.settings).allow_private = False
    service.create(context, receiver.url())
    driver.event()
    driver.run()
    assert receiver.received == []
    assert driver.statuses() == ["failed"]
    assert "not public" in (queries.attempts(context, 1)[0].error or "")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a.example/",
        "https://",
        "https:///x",
        "javascript:alert(1)",
        "https://ann:pw@a.example/",
        "https://a.example/ x",
        "https://a.example/\x00",
        "https://a.example:99999/",
        "https://a.example/" + "x" * 2000,
    ],
)
def test_an_invalid_endpoint_is_refused(context: Context, url: str) -> None:
    with pytest.raises(UserError):
        service.create(context, url)
    assert queries.endpoints(context) == []


def test_unknown_types_and_too_many_endpoints_are_refused(context: Context) -> None:
    flows()
    with pytest.raises(UserError, match="document\\.\\*"):
        service.create(context, "https://a.example/", ["document.eaten"])
    service.create(context, "https://a.example/", ["document.*", "music_run.stopped"])
    webhooks_of(context.settings).max_endpoints = 1
    with pytest.raises(UserError, match="1 webhook endpoints already"):
        service.create(context, "https://a.example/")


def test_a_test_is_sent_independently_of_the_endpoints_types(
    context: Context, driver: Driver, receiver: Receiver
) -> None:
    created = service.create(context, receiver.url(), ["music_run.failed"])
    sent = service.test(context, created.endpoint.id)
    driver.run()
    (request,) = receiver.received
    assert request.verified(created.secret)["type"] == "webhook.test"
    assert request.id == f"test_{sent.id}"


def test_a_time_range_can_be_replayed_with_events_from_while_the_endpoint_was_disabled(
    context: Context, driver: Driver, receiver: Receiver
) -> None:
    began = context.db.now() - timedelta(minutes=1)
    created = service.create(context, receiver.url(), ["document.paused"]).endpoint
    driver.event()
    driver.run()
    service.change(context, created.id, active=False)
    for event in (DocumentEvent.PAUSE, DocumentEvent.CANCEL):
        driver.event(event)
    driver.run()
    service.change(context, created.id, active=True)
    driver.run()
    assert len(receiver.received) == 1
    assert service.replay_range(context, created.id, began) == 2
    driver.run()
    assert [request.id for request in receiver.received] == ["evt_1", "evt_1", "evt_2"]
    assert service.replay_range(context, created.id, began, began + timedelta(seconds=1)) == 0


def test_events_that_retention_deleted_before_their_fan_out_are_counted(
    context: Context, driver: Driver, receiver: Receiver
) -> None:
    service.create(context, receiver.url())
    for _ in range(4):
        driver.event()
    context.db.run(lambda session: session.execute(delete(EVENTS).where(EVENTS.c.seq <= 2)))
    driver.run()
    assert [request.id for request in receiver.received] == ["evt_3", "evt_4"]
    assert queries.endpoints(context)[0].missed == 2


def test_an_event_deleted_before_its_delivery_fails_the_delivery_and_not_the_endpoint(
    context: Context, driver: Driver, receiver: Receiver
) -> None:
    service.create(context, receiver.url())
    driver.event()
    plan.due(context)
    context.db.run(lambda session: session.execute(delete(EVENTS)))
    driver.run()
    assert driver.statuses() == ["failed"]
    assert queries.endpoints(context)[0].failures == 0


@pytest.mark.both_databases
def test_the_cursor_stays_while_very_many_deliveries_wait(context: Context, driver: Driver, receiver: Receiver) -> None:
    webhooks_of(context.settings).max_waiting = 2
    service.create(context, receiver.url())
    for _ in range(5):
        driver.event()
    plan.due(context)
    assert driver.statuses() == ["pending"] * 2
    assert [driver.run() for _ in range(3)] == [2, 2, 1]


def test_no_text_of_a_deleted_document_is_sent(context: Context, driver: Driver, receiver: Receiver) -> None:
    service.create(context, receiver.url())
    documents.remove(context, driver.event(filename="Dear Ann"))
    driver.run()
    assert [json.loads(request.body)["type"] for request in receiver.received] == [
        "document.paused",
        "document.deleted",
    ]
    assert b"Ann" not in b"".join(request.body for request in receiver.received)


@pytest.mark.both_databases
def test_a_message_keeps_its_body_when_its_document_is_deleted_between_attempts(
    context: Context, driver: Driver, receiver: Receiver
) -> None:
    service.create(context, receiver.url(), types=["document.paused"])
    receiver.script(Reply(500), Reply(200))
    document_id = driver.event(filename="Dear Ann")
    driver.run()
    documents.remove(context, document_id)
    context.db.run(lambda session: session.execute(delete(EVENTS)))
    driver.pass_time(days=1)
    driver.run()
    first, second = receiver.received
    assert (first.id, first.body) == (second.id, second.body)
    assert "Dear Ann" in json.loads(second.body)["data"]["filename"]
    with context.db.read() as session:
        assert session.execute(select(DELIVERIES.c.content)).scalars().all() == [None]


def test_deleting_an_endpoint_deletes_all_its_deliveries(context: Context, driver: Driver, receiver: Receiver) -> None:
    created = service.create(context, receiver.url()).endpoint
    driver.event()
    plan.due(context)
    unit = delivery.claim(context, created.id, driver.owner())
    assert unit is not None
    service.remove(context, created.id)
    assert not delivery._settle(context, unit, *delivery._try(context, unit)).done
    with context.db.read() as session:
        for table in (ENDPOINTS, DELIVERIES, ATTEMPTS):
            assert session.execute(select(func.count()).select_from(table)).scalar_one() == 0


@pytest.mark.both_databases
def test_ended_deliveries_are_deleted_after_their_retention(
    context: Context, driver: Driver, receiver: Receiver
) -> None:
    service.create(context, receiver.url())
    driver.event()
    driver.run()
    driver.event()
    plan.due(context)
    old = update(DELIVERIES).values(created_at=context.db.now() - timedelta(days=31))
    context.db.run(lambda session: session.execute(old))
    kind, _ = service.retained(context)
    assert (kind.due(context), kind.remove(context)) == (1, 1)
    assert driver.statuses() == ["pending"]


def test_a_flow_without_endpoints_is_at_rest_and_has_no_subscribers(context: Context, driver: Driver) -> None:
    from pipeline.flows.webhooks.flow import FLOW

    driver.event()
    assert FLOW.is_at_rest(context)
    assert FLOW.has_subscribers is not None
    assert not FLOW.has_subscribers(context)
