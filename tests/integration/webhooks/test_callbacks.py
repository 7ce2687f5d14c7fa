"""Callbacks of docling-serve's requests: the messages about a task, delivered like webhooks."""

import json

import pytest
from sqlalchemy import select

from pipeline.engine.errors import UserError
from pipeline.flows.documents import service as documents
from pipeline.flows.documents.states import DocumentStatus
from pipeline.flows.webhooks import plan, queries, service
from pipeline.flows.webhooks.models import ENDPOINTS
from pipeline.flows.webhooks.rules.callback import Callback
from pipeline.flows.webhooks.settings import webhooks_of
from pipeline.flows.webhooks.work import delivery
from pipeline.operations import webhooks
from pipeline.operations.caller import Caller
from pipeline.operations.refusal import Refused
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.integration.webhooks.conftest import Driver
from tests.support.documents import insert_document
from tests.support.webhook_receiver import Receiver, Reply


class TestAllowed:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {"PENSTOCK_WEBHOOKS__ALLOW_PRIVATE": "true", "PENSTOCK_WEBHOOKS__CALLBACKS": "true"}

    def test_messages_follow_the_documents_to_the_end_of_the_task(
        self, context: Context, driver: Driver, receiver: Receiver
    ) -> None:
        done = insert_document(context, DocumentStatus.COMPLETED)
        later = insert_document(context, DocumentStatus.PROCESSING)
        task = Callback("task-1", {done: "a.pdf", later: "b.pdf"}, allow_partial=True)
        callbacks = [(receiver.url("/progress"), {"Authorization": "Bearer token"})]
        caller = Caller(context, scope=Scope.WRITE)
        webhooks.call_back.by(caller, callbacks, task)
        webhooks.call_back.by(caller, callbacks, task)  # a client that repeats its request
        driver.run()
        assert _kinds(receiver) == ["document_completed", "set_num_docs", "update_processed"]
        documents.cancel(context, later)
        receiver.script(Reply(503), path="/progress")
        driver.run()
        driver.pass_time(minutes=10)
        driver.run()
        messages = {json.loads(each.body)["progress"]["kind"]: json.loads(each.body) for each in receiver.received}
        assert messages["task_completed"] == {
            "task_id": "task-1",
            "progress": {"kind": "task_completed", "task_status": "success", "failure": None},
        }
        assert messages["update_processed"]["progress"] == {
            "kind": "update_processed",
            "num_processed": 2,
            "num_succeeded": 1,
            "num_partially_succeeded": 0,
            "num_failed": 1,
            "docs": [{"source": "b.pdf", "status": "failure", "error": "cancelled"}],
        }
        assert {each.headers["authorization"] for each in receiver.received} == {"Bearer token"}
        assert all("webhook-signature" not in each.headers for each in receiver.received)
        assert len({each.id for each in receiver.received}) == 6
        assert queries.endpoints(context) == []
        with context.db.read() as session:
            assert session.execute(select(ENDPOINTS.c.active, ENDPOINTS.c.disabled_because)).all() == [
                (False, "its task has ended")
            ]

    def test_bad_addresses_are_refused(self, context: Context) -> None:
        for url in ("file:///etc/passwd", "http://user:pw@example.com/"):
            with pytest.raises(UserError):
                service.create_callback(context, url, _task("t"), "a")

    def test_a_caller_has_at_most_half_of_the_callbacks(self, context: Context, receiver: Receiver) -> None:
        webhooks_of(context.settings).max_endpoints = 4
        for number in range(2):
            service.create_callback(context, receiver.url(), _task(str(number)), "attacker")
        with pytest.raises(UserError, match="half as many of yours"):
            service.create_callback(context, receiver.url(), _task("2"), "attacker")
        service.create_callback(context, receiver.url(), _task("2"), "other")

    def test_slow_callbacks_of_one_caller_delay_neither_webhooks_nor_other_callers(
        self, context: Context, driver: Driver, receiver: Receiver
    ) -> None:
        slow = [service.create_callback(context, receiver.url(), _task(str(n)), "attacker") for n in range(5)]
        under_way = [_claim(context, driver)]
        other = service.create_callback(context, receiver.url(), _task("6"), "other")
        under_way.append(_claim(context, driver))
        assert (under_way[0] in slow, under_way[1]) == (True, other)
        assert _claim(context, driver) is None, "the last of three places is for webhooks"
        webhook = service.create(context, receiver.url()).endpoint.id
        driver.event()
        plan.due(context)
        assert _claim(context, driver) == webhook


def _task(task_id: str) -> Callback:
    return Callback(task_id, {"0" * 16: "a.pdf"}, allow_partial=True)


def _claim(context: Context, driver: Driver) -> str | None:
    """Claim the delivery whose turn it is, as a worker does; return its endpoint."""
    with context.db.read() as session:
        turns = [row.id for row in delivery.ready(session)]
    unit = next(filter(None, (delivery.claim(context, each, driver.owner()) for each in turns)), None)
    return unit.endpoint_id if unit else None


def test_callbacks_need_the_setting(context: Context, receiver: Receiver) -> None:
    task = Callback("task-1", {"0123456789abcdef": "a.pdf"}, allow_partial=True)
    with pytest.raises(Refused, match="PENSTOCK_WEBHOOKS__CALLBACKS"):
        webhooks.call_back.by(Caller(context, scope=Scope.WRITE), [(receiver.url(), {})], task)


def _kinds(receiver: Receiver) -> list[str]:
    return sorted(json.loads(each.body)["progress"]["kind"] for each in receiver.received)
