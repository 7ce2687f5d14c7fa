"""`/metrics`: its access and its formats, and that it counts requests by route without their parameters."""

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from pipeline.storage.api_keys import Scope
from tests.integration.interfaces.api.conftest import Connect

SECRET = "6f6e6c792d796f7521"


def requests(api: TestClient) -> dict[tuple[str, str, str], float]:
    """Return the number of requests by (method, route, class of status)."""
    return {
        (sample.labels["method"], sample.labels["route"], sample.labels["status"]): sample.value
        for family in text_string_to_metric_families(api.get("/metrics").text)
        for sample in family.samples
        if sample.name == "penstock_api_requests_total"
    }


@pytest.mark.parametrize("accept", ["application/openmetrics-text;version=abc", ";;=,", "a/b;" * 200])
def test_any_accept_header_gets_metrics(api: TestClient, accept: str) -> None:
    assert "penstock_up" in api.get("/metrics", headers={"accept": accept}).text


def test_metrics_need_a_key_only_beyond_this_machine(connect: Connect) -> None:
    answer = connect().get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'penstock_up{part="database"} 1.0' in answer.text
    assert connect(host="0.0.0.0").get("/metrics").status_code == 401
    assert connect(Scope.READ, host="0.0.0.0").get("/metrics").status_code == 200


def test_openmetrics_is_served_on_request(api: TestClient) -> None:
    answer = api.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_requests_are_counted_by_route_without_labels_from_callers(api: TestClient) -> None:
    api.get(f"/api/v1/documents/{SECRET}")
    api.get(f"/nowhere/{SECRET}?q={SECRET}")
    api.request(SECRET.upper(), "/healthz")
    api.get("/healthz")
    api.get("/healthz", headers={"host": "evil.example"})
    counts = requests(api)
    assert counts["GET", "/healthz", "2xx"] == 1
    assert counts["GET", "/api/v1/documents/{document_id}", "4xx"] == 1
    # A layer around the routes or the router refuses these.
    assert sum(count for (_, route, _), count in counts.items() if route == "other") >= 2
    assert {method for method, _, _ in counts} <= {"GET", "other"}
    text = api.get("/metrics").text
    assert SECRET not in text.lower()
    assert 'penstock_api_request_duration_seconds_count{method="GET",route="/healthz"} 1.0' in text
    assert "penstock_api_requests_in_progress 1.0" in text, "this one"
