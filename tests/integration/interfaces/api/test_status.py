"""`/api/v1/status` and `/workers`."""

import json

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from pipeline.engine.presence import Presence, sweep_ended
from pipeline.flows import FLOWS
from pipeline.interfaces.api.app import PREFIX
from pipeline.interfaces.cli.main import app as cli
from pipeline.providers import queue_control
from pipeline.standalone.doctor import checks
from pipeline.storage.context import Context
from tests.integration.interfaces.api.test_skeleton import problem
from tests.support.redis_server import RedisServer


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_PROVIDERS__FAKE__BASE_URL": "http://127.0.0.1:9", "PENSTOCK_PROVIDERS__FAKE__MODEL": "m"}


def test_the_status_covers_every_flow_and_the_fleet(api: TestClient, context: Context) -> None:
    facts = {"since_ms": 1795341600000, "slots": 4, "queues": ["cpu", "maintenance"]}
    Presence(context.redis).renew("cpu@desk:4242:1f09ab", 60, facts=facts)
    Presence(context.redis).renew("io@desk:4243:77aa01", 60)
    sweep_ended(context.redis)
    queue_control.pause(context, "vision.fake", None, "maintenance")
    status = api.get(f"{PREFIX}/status").json()
    assert tuple(status["counted"]) == FLOWS
    assert status["last_hour"]["finished"] == 0
    fleet = status["fleet"]
    assert (fleet["workers"], fleet["queues"]["vision.fake"], fleet["queues"]["cpu"]) == (2, 0, 0)
    assert fleet["closed"] == ["vision.fake is paused by an operator (maintenance)"]
    assert 0 <= fleet["last_sweep_s"] < 30
    [spending] = status["spending"]
    assert (spending["provider"], spending["today"], spending["cap"]) == ("fake", 0, 0)
    worker, silent = api.get(f"{PREFIX}/workers").json()["items"]
    assert 0 <= worker.pop("seen_s") < 30
    assert worker == {
        "id": "cpu@desk:4242:1f09ab",
        "name": "cpu@desk",
        "role": "cpu",
        "host": "desk",
        "process": 4242,
        "since": "2026-11-22T10:00:00Z",
        "slots": 4,
        "queues": ["cpu", "maintenance"],
        "busy": 0,
        "jobs": [],
    }
    assert (silent["role"], silent["since"], silent["slots"], silent["queues"]) == ("io", None, None, [])


def test_an_old_sweep_raises_an_alarm_in_every_interface(api: TestClient, context: Context) -> None:
    def problems() -> list[str]:
        in_api = api.get(f"{PREFIX}/status").json()["fleet"]["sweep_problem"]
        in_cli = CliRunner().invoke(cli, ["status", "--json"])
        [in_doctor] = [each.found for each in checks(context.settings, ["workers"]) if each.name == "sweeper"] or [""]
        return [in_api, json.loads(in_cli.stdout)["sweep_problem"], in_doctor]

    sweep_ended(context.redis)
    Presence(context.redis).renew("cpu@desk:4242:1f09ab", 600)
    assert problems() == ["", "", ""]
    context.redis.pexpire("penstock:sweep:ended", 7 * 24 * 3_600_000 - 3_600_000)
    assert ["The last sweep ended 1 h" in problem for problem in problems()] == [True] * 3, problems()
    context.redis.delete("penstock:sweep:ended")
    assert ["No sweep is on record" in problem for problem in problems()] == [True] * 3
    Presence(context.redis).leave("cpu@desk:4242:1f09ab")
    assert problems() == ["", "", ""], "without workers, their absence is the reason"


def test_while_redis_is_down_the_status_has_rows_without_workers(api: TestClient, redis_server: RedisServer) -> None:
    redis_server.kill()
    status = api.get(f"{PREFIX}/status").json()
    assert (tuple(status["counted"]), status["fleet"]) == (FLOWS, None)
    problem(api.get(f"{PREFIX}/workers"), 503, "offline")
