"""`penstock status` and `penstock doctor` cover every flow."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import insert
from structlog.testing import capture_logs
from typer.testing import CliRunner

from pipeline.engine.live_settings import SystemSetting
from pipeline.flows import FLOWS, flows
from pipeline.interfaces.cli.main import app
from pipeline.nodes import tokens
from pipeline.providers import queue_control
from pipeline.storage.context import Context
from tests.support.music import add_songs
from tests.support.node_state import NodeStateDriver


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_PROVIDERS__AI__BASE_URL": "http://127.0.0.1:9/v1", "PENSTOCK_PROVIDERS__AI__MODEL": "m"}


def shown(*arguments: str, code: int = 0) -> Any:
    with capture_logs():
        result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_status_has_the_figures_of_every_flow(context: Context) -> None:
    add_songs(context, 3)
    status = shown("status")
    assert {kind for flow in flows() for kind in flow.followed} <= set(status)
    assert set(status) >= {"documents", "pages", "last_hour", "queues", "workers", "data_dir"}
    assert status["songs"] == {"PENDING": 3}
    assert status["documents"] == {}
    text = CliRunner().invoke(app, ["status"]).output
    assert "PENDING 3" in text
    assert "song batches" in text


def test_doctor_names_every_flow_and_why_its_queues_are_closed(context: Context) -> None:
    queue_control.pause(context, "vision.ai", None, "invoice unpaid")
    with context.db.transaction() as session:
        row = {"key": "queue_concurrency", "value": "many", "updated_at": datetime.now(UTC)}
        session.execute(insert(SystemSetting).values(row))
    checks = {check["name"]: check for check in shown("doctor", code=1)}
    assert {f"flow {name}" for name in FLOWS} <= set(checks)
    assert checks["flow music"]["found"] == "0 songs, 0 song batches"
    assert (checks["queue vision.ai"]["result"], checks["setting queue_concurrency"]["result"]) == ("warn", "warn")
    assert "paused by an operator (invoice unpaid)" in checks["queue vision.ai"]["found"]


def test_doctor_checks_the_gateway_after_the_first_token(context: Context) -> None:
    assert not [check for check in shown("doctor", code=1) if check["name"] == "gateway"]
    tokens.create(context, "desk", tokens.TokenKind.NODE)
    assert {check["name"]: check["result"] for check in shown("doctor", code=1)}["gateway"] == "warn", (
        "no gateway is running"
    )
    state = NodeStateDriver(context)
    state.instance("a", nodes=1, sessions=2)
    state.node("n", "a")
    checks = {check["name"]: check for check in shown("doctor", code=1)}
    assert (checks["gateway"]["result"], checks["gateway"]["found"]) == ("ok", "1 instance, 1 node, 2 sessions")
