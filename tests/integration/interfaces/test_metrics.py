"""Metrics for Prometheus: correct, complete, described, and served while Redis or the database is away."""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import insert, text
from structlog.testing import capture_logs

from pipeline.engine.metric_family import Gauge, label
from pipeline.engine.presence import Presence
from pipeline.engine.traces import AiCall
from pipeline.flows.documents.states import PageStatus
from pipeline.interfaces.metrics.exposition import Exposition
from pipeline.interfaces.metrics.part import Part
from pipeline.nodes import tokens
from pipeline.nodes.gateway.metrics import Facts, dispatch_histogram
from pipeline.nodes.gateway.metrics import exposition as gateway_exposition
from pipeline.providers import call_totals, calls, gates, queue_control
from pipeline.storage.context import Context
from tasks.documents.canvas import TASKS
from tasks.maintenance import sweep
from tests.support.calls import call_row
from tests.support.documents import insert_document
from tests.support.node_state import NodeStateDriver
from tests.support.promql import expressions, metrics
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTED = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
PROVIDERS = {
    "p": {
        "base_url": "http://127.0.0.1:1/v1",
        "model": "m",
        "limits": "3/min",
        "daily_spend_cap": 5.0,
        "prices": {"*": {"input": 1e6}},
    },
    "q": {"base_url": "http://127.0.0.1:1/v1", "model": "m"},
}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_PROVIDERS": json.dumps(PROVIDERS)}


@pytest.fixture
def busy(context: Context) -> Context:
    """A context with work, calls, used limits, a pause, an open breaker, workers, a sweep and a node."""
    document = insert_document(context, pages=[PageStatus.PENDING, PageStatus.COMPLETED], provider="p")
    now = context.db.now()
    rows = [
        call_row("p", now, latency_ms=300, input_tokens=10, output_tokens=5, cost=0.25),
        call_row("p", now, latency_ms=900_000, input_tokens=1, cost=0.5),
        call_row("p", now, status="transient", latency_ms=50),
    ]
    gates.charge(context, "p", 0.75)
    context.db.run(lambda session: session.execute(insert(AiCall), rows))
    gates.sync(context)
    gate = gates.gate(context, "vision.p")
    assert gate.admit("holder").granted
    assert gate.stamp("holder").granted
    queue_control.pause(context, "vision.q", None)
    queue_control.open_breaker(context, "q:vision", 60, "test")
    sweep()
    Presence(context.redis).renew("cpu@host:1:abc", 60)
    Presence(context.redis).renew("celery:2:abc", 60)
    TASKS.launch(document)
    tokens.create(context, "desk", tokens.TokenKind.NODE)
    nodes = NodeStateDriver(context)
    nodes.instance("a", nodes=1, sessions=2)
    nodes.node("n", "a", slots=4, used=1)
    nodes.job("job", "a", node_id="n")
    return context


def families(context: Context) -> dict[str, Metric]:
    with closing(Exposition(context)) as exposition:
        content, _ = exposition.scrape()
    return {family.name: family for family in text_string_to_metric_families(content.decode())}


def samples(families: dict[str, Metric]) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families.values()
        for sample in family.samples
    }


def value(samples: Samples, name: str, /, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def test_metrics_of_a_busy_system_have_the_expected_values(busy: Context) -> None:
    metrics = samples(families(busy))
    assert value(metrics, "penstock_up", part="database") == value(metrics, "penstock_up", part="redis") == 1
    units = {"flow": "documents", "kind": "pages"}
    assert value(metrics, "penstock_units", state="PENDING", **units) == 1
    assert value(metrics, "penstock_units", state="COMPLETED", **units) == 1
    assert value(metrics, "penstock_units", state="FAILED", **units) == 0, "a state without rows has a sample"
    by = {"flow": "documents", "provider": "p", "capability": "vision"}
    assert value(metrics, "penstock_ai_calls_total", status="ok", **by) == 2
    assert value(metrics, "penstock_ai_calls_total", status="transient", **by) == 1
    assert value(metrics, "penstock_ai_tokens_total", direction="input", **by) == 11
    assert value(metrics, "penstock_ai_cost_total", **by) == 0.75
    took = {"provider": "p", "capability": "vision"}
    name = "penstock_ai_call_duration_seconds"
    assert value(metrics, f"{name}_bucket", le="0.25", **took) == 0, "the failed call was quick, and does not count"
    assert (
        value(metrics, f"{name}_bucket", le="0.5", **took) == value(metrics, f"{name}_bucket", le="320.0", **took) == 1
    )
    assert value(metrics, f"{name}_bucket", le="+Inf", **took) == value(metrics, f"{name}_count", **took) == 2
    assert value(metrics, f"{name}_sum", **took) == 900.3
    window = {"scope": "provider", "name": "p", "unit": "requests", "window_seconds": "60"}
    assert (
        value(metrics, "penstock_gate_window_used", **window),
        value(metrics, "penstock_gate_window_limit", **window),
    ) == (1, 3)
    assert value(metrics, "penstock_gate_in_flight", scope="queue", name="vision.p") == 1
    assert value(metrics, "penstock_gate_closed", queue="vision.q", reason="operator") == 1
    assert value(metrics, "penstock_gate_closed", queue="vision.p", reason="operator") == 0
    assert value(metrics, "penstock_breaker_state", provider="q", capability="vision", state="open") == 1
    assert value(metrics, "penstock_breaker_state", provider="p", capability="vision", state="closed") == 1
    assert value(metrics, "penstock_provider_spent_today", provider="p") == 0.75
    assert value(metrics, "penstock_provider_daily_spend_cap", provider="p") == 5
    assert value(metrics, "penstock_queue_messages", queue="vision.p") >= 1
    assert 0 < value(metrics, "penstock_queue_oldest_message_age_seconds", queue="vision.p") < 60
    workers = {role: value(metrics, "penstock_workers", role=role) for role in ("cpu", "ai", "control", "other")}
    assert workers == {"cpu": 1, "ai": 0, "control": 0, "other": 1}
    assert 0 <= value(metrics, "penstock_sweep_age_seconds") < 60
    assert value(metrics, "penstock_up", part="gateway") == value(metrics, "penstock_gateway_instances") == 1
    assert (value(metrics, "penstock_gateway_slots"), value(metrics, "penstock_gateway_slots_used")) == (4, 1)
    assert value(metrics, "penstock_gateway_nodes", state="connected") == 1
    assert value(metrics, "penstock_gateway_jobs", state="DISPATCHED") == 1
    assert value(metrics, "penstock_gateway_sessions") == 2
    for size in ("database_size", "redis_memory", "disk_free", "disk_size"):
        assert value(metrics, f"penstock_{size}_bytes") > 0
    assert value(metrics, "process_resident_memory_bytes") > 0


def test_counters_never_decrease_or_restart(busy: Context) -> None:
    """A new process of the API continues the counters, even after pruning and after the cursor has moved."""

    def counters() -> dict[Any, float]:
        counter_families = {
            family.name: family for family in families(busy).values() if family.name.startswith("penstock_ai_")
        }
        return samples(counter_families)

    before = counters()
    call_totals.advance(busy)
    assert counters() == before
    later = busy.db.now() - timedelta(days=200)
    busy.db.run(lambda session: session.execute(text("UPDATE ai_calls SET created_at = :at"), {"at": later}))
    assert calls.retention(busy).remove(busy) == 3
    assert counters() == before


class TestFiles:
    """Documentation, alerts and dashboard name only existing metrics."""

    @pytest.fixture
    def families(self, busy: Context) -> dict[str, Metric]:
        with closing(Exposition(busy)) as exposition:
            exposition.requests.count("GET", "/api/v1/documents/{id}", 200, 0.1)
            content, _ = exposition.scrape()
        facts = Facts(
            {("xadd", "ok"): 1, ("xadd", "error"): 0},
            nodes=1,
            sessions=1,
            inbox_pending=0,
            dispatch=dispatch_histogram(),
        )
        text = content.decode() + gateway_exposition(facts).decode()
        return {family.name: family for family in text_string_to_metric_families(text)}

    def test_every_metric_has_a_help_text_and_a_line_in_the_documentation(self, families: dict[str, Metric]) -> None:
        own = {name: of for name, of in families.items() if name.startswith("penstock_")}
        assert not [name for name, of in own.items() if not of.documentation.strip()]
        assert not [name for name, of in own.items() if of.type == "unknown"]
        names = {f"{name}_total" if of.type == "counter" else name for name, of in own.items()}
        assert set(DOCUMENTED.findall((ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8"))) == names

    def test_labels_are_never_ids(self, families: dict[str, Metric]) -> None:
        labels = {key for family in families.values() for sample in family.samples for key in sample.labels}
        assert labels <= {
            "part",
            "flow",
            "kind",
            "state",
            "provider",
            "capability",
            "status",
            "direction",
            "queue",
            "reason",
            "scope",
            "name",
            "unit",
            "window_seconds",
            "role",
            "method",
            "route",
            "le",
            "version",
            "python",
            "database",
            "op",
            "result",
            "implementation",
            "major",
            "minor",
            "patchlevel",
        }

    @pytest.fixture
    def queries(self) -> list[str]:
        """All expressions of the alert rules and the dashboard."""
        rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))
        dashboard = json.loads((ROOT / "deploy/grafana/penstock.json").read_text(encoding="utf-8"))
        alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
        return [*alerts, *expressions(dashboard)]

    def test_alerts_and_dashboard_name_metrics_and_labels_that_exist(
        self, families: dict[str, Metric], queries: list[str]
    ) -> None:
        labels: dict[str, set[str]] = {}
        for family in families.values():
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
        named = [each for query in queries for each in metrics(query)]
        assert len({name for name, _ in named}) > 25
        assert {name for name, _ in named} <= set(labels)
        # Prometheus itself adds `job` and `instance`.
        assert not [(name, chosen) for name, chosen in named if chosen - labels[name] - {"job", "instance"}]

    def test_label_values_in_queries_exist(self, families: dict[str, Metric], queries: list[str]) -> None:
        chosen = {
            (key, label_value)
            for query in queries
            for key, label_value in re.findall(r'(\w+)!?="([^"]+)"', query)
            if key not in {"job", "flow"}
        }
        known = {
            (key, label_value)
            for of in families.values()
            for each in of.samples
            for key, label_value in each.labels.items()
        }
        assert chosen - known <= {("status", "5xx")}

    def test_alerts_are_valid_prometheus_rules(self) -> None:
        rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))
        flat = [rule for group in rules["groups"] for rule in group["rules"]]
        assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for rule in flat)
        assert len({rule["alert"] for rule in flat}) == len(flat)
        for rule in flat:
            assert rule["expr"].count("(") == rule["expr"].count(")"), rule["alert"]
        config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
        assert all((ROOT / "deploy/prometheus" / name).exists() for name in config["rule_files"])
        assert {job["metrics_path"] for job in config["scrape_configs"]} == {"/metrics"}

    def test_the_dashboard_is_valid_for_grafana(self) -> None:
        dashboard = json.loads((ROOT / "deploy/grafana/penstock.json").read_text(encoding="utf-8"))
        panels = dashboard["panels"]
        assert [panel["title"] for panel in panels if panel["type"] == "row"] == [
            "Fleet",
            "Flows",
            "Providers",
            "Nodes",
            "API",
        ]
        assert len({panel["id"] for panel in panels}) == len(panels)
        for panel in panels:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
            assert panel["type"] == "row" or panel["targets"]


class TestAway:
    """Metrics of an unreachable source are missing, and all others are served in time."""

    def test_without_redis_the_database_is_served(self, context: Context, redis_server: RedisServer) -> None:
        def scraped() -> Samples:
            start = time.monotonic()
            content, _ = exposition.scrape()
            assert time.monotonic() - start < 20
            return samples({family.name: family for family in text_string_to_metric_families(content.decode())})

        with closing(Exposition(context, patience_s=0.3)) as exposition:
            redis_server.kill()
            metrics = scraped()
            assert value(metrics, "penstock_up", part="redis") == 0
            assert "penstock_queue_messages" not in {name for name, _ in metrics}
            wait_until(lambda: value(scraped(), "penstock_up", part="database"), 60, "the database is read")
            redis_server.start()
            wait_until(lambda: value(scraped(), "penstock_up", part="redis"), 60, "Redis is read again")

    def test_without_its_schema_redis_is_served(self, context: Context) -> None:
        context.db.run(lambda session: session.execute(text("DROP TABLE ai_call_totals")))
        metrics = samples(families(context))
        assert value(metrics, "penstock_up", part="database") == 0
        assert value(metrics, "penstock_up", part="redis") == 1
        assert value(metrics, "penstock_queue_messages", queue="cpu") == 0
        assert "penstock_units" not in {name for name, _ in metrics}


class TestPart:
    """A source has one read at a time, a short wait, and a rest after a slow read."""

    @pytest.fixture
    def proceed(self) -> Iterator[threading.Event]:
        event = threading.Event()
        yield event
        event.set()

    def test_a_hanging_read_is_neither_awaited_nor_repeated(self, proceed: threading.Event) -> None:
        reads: list[int] = []

        def read() -> list[Metric]:
            reads.append(1)
            proceed.wait(60)
            return [Gauge("penstock_x", "X.")]

        part = Part("slow", read)
        for _ in range(3):
            part.begin()
            assert part.families(0.01) is None
        assert len(reads) == 1
        proceed.set()
        assert part.families(10) is not None
        part.begin()
        assert part.families(0) is not None
        assert len(reads) == 1, "the last values are kept for a while"

    def test_closing_a_source_waits_for_its_read_and_ends_it(self, proceed: threading.Event) -> None:
        reads: list[int] = []

        def read() -> list[Metric]:
            reads.append(1)
            proceed.wait(60)
            raise OSError("the source is closed")

        part = Part("closed", read)
        part.begin()
        with capture_logs() as logs:
            part.close(0.01)
            proceed.set()
            part.close(10)
            part.begin()
        assert (part.families(0), len(reads), logs) == (None, 1, [])

    def test_a_source_that_raises_is_unavailable_and_read_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pipeline.interfaces.metrics.part.KEPT_S", 0)
        answers: list[list[Metric]] = []

        def read() -> list[Metric]:
            return answers[0]

        part = Part("broken", read)
        part.begin()
        assert part.families(10) is None
        answers.append([])
        part.begin()
        assert part.families(10) == []


def test_label_values_are_printable_and_short() -> None:
    assert label("a\x00b\nc") == "a\ufffdb\ufffdc"
    assert len(label("x" * 1000)) == 100
    assert label(7) == "7"
