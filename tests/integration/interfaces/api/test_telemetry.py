"""Traces of requests to the API: they name the routes, and contain no text of callers."""

import sys
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from pipeline.engine import telemetry
from tests.integration.interfaces.api.conftest import Connect
from tests.support.collector import Collector

SECRET = "what-somebody-looked-for"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.endpoint)
        yield running
        telemetry.end()


def test_requests_are_traced_by_route_without_their_queries(connect: Connect, collector: Collector) -> None:
    api = connect()
    assert api.get(f"/healthz?q={SECRET}").status_code == 422
    telemetry.end()
    [span] = collector.named("GET /healthz")
    assert span["http.route"] == "/healthz"
    assert SECRET.encode() not in b"".join(collector.bodies)


def test_nothing_is_exported_unless_a_collector_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert telemetry.begin("test") is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert telemetry.begin("test") is None
    with telemetry.span("nothing", provider="p") as note:
        note(model="m")


def test_a_missing_telemetry_extra_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with capture_logs() as lines:
        assert telemetry.begin("test") is None
    assert [line["event"] for line in lines] == ["telemetry.not_installed"]
