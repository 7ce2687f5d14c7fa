"""`/api/v1/queues`, `/breakers` and `/settings`: an operator's actions on the fleet's gates."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from pipeline.interfaces.api.app import PREFIX
from pipeline.storage.api_keys import Scope
from tests.integration.interfaces.api.conftest import Connect
from tests.integration.interfaces.api.test_skeleton import problem

QUEUE, BREAKER, LIMITS = f"{PREFIX}/queues/vision.fake", f"{PREFIX}/breakers/fake:vision", "queue.vision.fake.limits"
SETTING = f"{PREFIX}/settings/{LIMITS}"


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {
        "PENSTOCK_PROVIDERS__FAKE__BASE_URL": "http://127.0.0.1:9",
        "PENSTOCK_PROVIDERS__FAKE__MODEL": "m",
        "PENSTOCK_PROVIDERS__FAKE__LIMITS": "100/min",
    }


def test_a_queue_is_paused_and_resumed_and_the_list_says_so(api: TestClient) -> None:
    listed = {queue["name"]: queue for queue in api.get(f"{PREFIX}/queues").json()["items"]}
    assert (listed["cpu"]["gate"], listed["cpu"]["in_flight"]) == ("none", None)
    gated = listed["vision.fake"]
    assert (gated["gate"], gated["provider"], gated["in_flight"]) == ("flowing", "fake", 0)
    (limit,) = gated["limits"]
    assert limit == {
        "limit": "100/min",
        "used": 0,
        "of": "fake",
        "most": 100,
        "unit": "requests",
        "window_s": 60,
        "next_in_s": None,
    }
    paused = api.post(f"{QUEUE}/pause", json={"seconds": 600, "reason": "maintenance"}).json()
    assert (paused["gate"], paused["closed_by"], paused["reason"]) == ("closed", "operator", "maintenance")
    assert 590 < paused["resumes_in_s"] <= 600
    assert api.get(QUEUE).json()["closed_by"] == "operator"
    assert api.post(f"{QUEUE}/resume").json()["gate"] == "flowing"
    for_ever = api.post(f"{QUEUE}/pause", params={"wait": 60}).json()  # no call is in flight, so this does not wait
    assert (for_ever["gate"], for_ever["resumes_in_s"]) == ("closed", None)


def test_a_breaker_is_opened_for_a_time_and_closed(api: TestClient) -> None:
    assert [breaker["state"] for breaker in api.get(f"{PREFIX}/breakers").json()["items"]] == ["closed"]
    opened = api.post(f"{BREAKER}/open", json={"seconds": 300, "reason": "invoice unpaid"}).json()
    assert (opened["name"], opened["state"], opened["reason"]) == ("fake:vision", "open", "invoice unpaid")
    assert 290 < opened["left_s"] <= 300
    assert api.get(QUEUE).json()["closed_by"] == "breaker"
    assert api.post(f"{BREAKER}/close").json()["state"] == "closed"
    assert api.get(QUEUE).json()["gate"] == "flowing"
    assert api.post(f"{BREAKER}/open").json()["left_s"] > 0, "for its own cool-down"


def test_a_breakers_history_says_when_and_why_it_opened_and_closed(api: TestClient) -> None:
    assert api.get(f"{BREAKER}/history").json()["items"] == []
    api.post(f"{BREAKER}/close")  # the breaker is closed already
    api.post(f"{BREAKER}/open", json={"seconds": 300, "reason": "invoice unpaid"})
    api.post(f"{BREAKER}/close")
    closed, opened = api.get(f"{BREAKER}/history").json()["items"]
    assert (opened["state"], opened["reason"], closed["state"], closed["reason"], closed["until"]) == (
        "open",
        "invoice unpaid",
        "closed",
        "by hand",
        None,
    )
    assert opened["at"] < closed["at"] < opened["until"]
    for _ in range(30):
        api.post(f"{BREAKER}/open", json={"seconds": 300})
    assert len(api.get(f"{BREAKER}/history").json()["items"]) == 20, "the history has a limit"
    problem(api.get(f"{PREFIX}/breakers/x:y/history"), 404, "unknown_breaker")


def test_a_live_setting_is_changed_and_returned_to_its_default(api: TestClient) -> None:
    keys = [setting["key"] for setting in api.get(f"{PREFIX}/settings").json()["items"]]
    assert LIMITS in keys
    assert api.put(SETTING, json={"value": "10/s"}).json()["value"] == "10/s"
    assert [limit["limit"] for limit in api.get(QUEUE).json()["limits"]] == ["10/s", "100/min"]
    assert api.put(f"{PREFIX}/settings/queue.vision.fake.concurrency", json={"value": 4}).json()["value"] == 4
    setting = api.delete(SETTING, params={"reason": "the rush is over"}).json()
    assert (setting["value"], setting["is_default"], setting["reason"]) == ("", True, "the rush is over")
    assert api.get(SETTING).json() == setting


def test_a_live_setting_has_its_author_reason_and_default(connect: Connect) -> None:
    api, cap = connect(Scope.ADMIN), f"{PREFIX}/settings/provider.fake.limits"
    untouched = api.get(cap).json()
    assert (untouched["changed_at"], untouched["changed_by"], untouched["default"]) == (None, "", "100/min")
    changed = api.put(cap, json={"value": "7/s", "reason": "invoices first"}).json()
    assert (changed["value"], changed["default"]) == ("7/s", "100/min")
    assert (changed["changed_by"], changed["reason"]) == ("test 0", "invoices first")
    assert changed["changed_at"]
    problem(api.put(cap, json={"value": "7/s", "reason": "a\x1bb"}), 422, "invalid")
    problem(api.delete(cap, params={"reason": "x" * 501}), 422, "invalid")


def test_unknown_names_are_404_and_the_answer_lists_the_known_ones(api: TestClient) -> None:
    for queue in ("nobody", "cpu"):
        assert "vision.fake" in problem(api.post(f"{PREFIX}/queues/{queue}/pause"), 404, "unknown_queue")
        problem(api.get(f"{PREFIX}/queues/{queue}"), 404, "unknown_queue")
    for action in ("open", "close"):
        assert "fake:vision" in problem(api.post(f"{PREFIX}/breakers/x:y/{action}"), 404, "unknown_breaker")
    problem(api.get(f"{PREFIX}/breakers/fake"), 404, "unknown_breaker")
    problem(api.get(f"{PREFIX}/settings/colour"), 404, "unknown_setting")
    problem(api.put(f"{PREFIX}/settings/colour", json={"value": "red"}), 404, "unknown_setting")
    problem(api.delete(f"{PREFIX}/settings/colour"), 404, "unknown_setting")


@pytest.mark.parametrize(
    "body", [{"seconds": 0}, {"seconds": -1}, {"seconds": 1e18}, {"reason": "a\x00b"}, {"reason": "x" * 501}, {"s": 1}]
)
def test_an_invalid_pause_is_refused_and_changes_nothing(api: TestClient, body: dict[str, Any]) -> None:
    problem(api.post(f"{QUEUE}/pause", json=body), 422, "invalid")
    assert api.get(QUEUE).json()["gate"] == "flowing"


def test_an_invalid_value_of_a_setting_is_refused(api: TestClient) -> None:
    assert "many" in problem(api.put(SETTING, json={"value": "many"}), 422, "bad_value")
    problem(api.put(SETTING, json={"value": ["10/s"]}), 422, "invalid")
    problem(api.put(f"{PREFIX}/settings/queue.vision.fake.concurrency", json={"value": "-1"}), 422, "bad_value")
    assert api.get(SETTING).json()["is_default"]
