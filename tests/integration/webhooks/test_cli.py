"""`penstock webhooks …` as people use it."""

import json
from typing import Any

import pytest
from sqlalchemy import update
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from pipeline.flows.webhooks.models import DELIVERIES
from pipeline.flows.webhooks.states import DeliveryStatus
from pipeline.interfaces.cli.main import app
from pipeline.storage.context import Context
from tests.integration.webhooks.conftest import Driver
from tests.support.webhook_receiver import Receiver, Reply


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


def penstock(*arguments: str, code: int = 0) -> Result:
    with capture_logs():
        result = CliRunner().invoke(app, ["webhooks", *arguments])
    assert result.exit_code == code, result.output
    return result


def shown(*arguments: str) -> Any:
    return json.loads(penstock(*arguments, "--json").stdout)


def test_an_endpoint_is_created_tested_and_deleted(context: Context, driver: Driver, receiver: Receiver) -> None:
    created = shown("create", receiver.url(), "--type", "document.*")
    endpoint_id, secret = created["endpoint"]["id"], created["secret"]
    assert penstock("create", receiver.url("/two")).stdout.startswith("whsec_")
    assert [endpoint["url"] for endpoint in shown("list")] == [receiver.url(), receiver.url("/two")]
    assert "whsec_" not in penstock("list").output + penstock("list", "--json").output
    receiver.script(Reply(500, body=b"\x1b[31m[bold]oh"), Reply(200, body=b"\x1b[31m[bold]thanks"))
    test = shown("test", endpoint_id)
    driver.run()
    assert "failing" in penstock("list").output
    driver.pass_time(days=1)
    driver.run()
    assert receiver.received[-1].verified(secret)["type"] == "webhook.test"
    text = penstock("deliveries", str(test["id"])).output
    assert "\x1b[31m" not in text
    assert "[bold]thanks" in text
    assert "delivered" in penstock("deliveries", "--endpoint", endpoint_id).output
    assert shown("deliveries", "--status", "failed") == []
    assert penstock("deliveries", "--status", "eaten", code=2)
    penstock("delete", endpoint_id)
    assert len(shown("list")) == 1
    assert "no webhook endpoint" in str(penstock("test", endpoint_id, code=1).exception)


def test_deliveries_are_replayed_one_by_one_or_by_time(context: Context, driver: Driver, receiver: Receiver) -> None:
    endpoint_id = shown("create", receiver.url())["endpoint"]["id"]
    driver.event()
    driver.event()
    driver.run()
    assert "pending" in penstock("replay", "1").output
    driver.run()
    assert shown("replay", "--endpoint", endpoint_id, "--since", "1h") == {"replayed": 2}
    driver.run()
    assert [request.id for request in receiver.received] == ["evt_1", "evt_2", "evt_1", "evt_1", "evt_2"]
    context.db.run(lambda session: session.execute(update(DELIVERIES).values(status=DeliveryStatus.FAILED)))
    assert shown("replay", "--failed", "--endpoint", endpoint_id) == {"replayed": 2}
    assert shown("replay", "--failed") == {"replayed": 0}
    driver.run()
    penstock("replay", code=2)
    penstock("replay", "1", "--failed", code=2)
    penstock("replay", "--endpoint", endpoint_id, code=2)
    assert "disabled" in penstock("change", endpoint_id, "--disable").output
    assert "active" in penstock("change", endpoint_id, "--enable").output
