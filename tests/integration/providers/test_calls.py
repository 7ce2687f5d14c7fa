"""Views of calls to AI services: single calls and figures, in Python and at the terminal."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from pipeline.engine.traces import AiCall
from pipeline.interfaces.cli.main import app
from pipeline.providers.call_series import series
from pipeline.providers.calls import By, CallFilter, stats
from pipeline.storage.context import Context
from tasks import calls
from tests.support.calls import call_row

pytestmark = pytest.mark.both_databases

NOW = datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def recorded(context: Context) -> Context:
    """Twenty calls of `quick` (1 to 20 s, 1 to 20 ms), one that failed at once, and three of `slow` two days ago."""
    rows = [
        call_row("quick", NOW - timedelta(seconds=number), latency_ms=number, cost=0.5, input_tokens=10)
        for number in range(1, 21)
    ]
    rows.append(call_row("quick", NOW, status="rate_limited", error="429: slow down", latency_ms=9000, unit="7"))
    old = NOW - timedelta(days=2)
    rows += [call_row("slow", old, flow="music", capability="text", latency_ms=500, model="big")] * 3
    context.db.run(lambda session: session.execute(insert(AiCall), rows))
    return context


def penstock(*arguments: str, code: int = 0) -> Result:
    with capture_logs():
        result = CliRunner().invoke(app, ["calls", *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def shown(*arguments: str) -> Any:
    return json.loads(penstock(*arguments, "--json").stdout)


def test_figures_by_provider_count_failures_and_time_only_successes(recorded: Context) -> None:
    quick, slow = calls.stats("provider")
    assert (quick.group, quick.calls, quick.failed, quick.failure_rate) == ("quick", 21, 1, 0.0476)
    assert (quick.mean_ms, quick.p50_ms, quick.p95_ms) == (10.5, 10, 19)
    assert (quick.input_tokens, quick.cost) == (200, 10.0)
    assert (slow.group, slow.calls, slow.p50_ms, slow.p95_ms, slow.cost) == ("slow", 3, 500, 500, 0.0)
    total = calls.total()
    assert total
    assert (total.calls, total.failed, total.first_at, total.last_at) == (24, 1, slow.last_at, NOW)


def test_days_are_in_order_and_other_groups_by_size(recorded: Context) -> None:
    days = [row.group for row in calls.stats("day")]
    assert days == sorted(days)
    assert days[0] == str((NOW - timedelta(days=2)).date())
    assert [(row.group, row.calls) for row in calls.stats("model")] == [("small", 21), ("big", 3)]
    assert [(row.group, row.p50_ms) for row in calls.stats("status")] == [("ok", 12), ("rate_limited", None)]


def test_hours_are_in_order_and_written_with_their_zone(recorded: Context) -> None:
    hours = calls.stats("hour")
    assert [row.group for row in hours] == sorted(row.group for row in hours)
    assert sum(row.calls for row in hours) == 24
    first = datetime.fromisoformat(hours[0].group)
    assert first == (NOW - timedelta(days=2)).replace(minute=0, second=0, microsecond=0)


def test_a_series_counts_every_hour_and_model_and_its_percentiles_are_nearly_right(recorded: Context) -> None:
    which = CallFilter(since=NOW - timedelta(days=3), until=NOW + timedelta(seconds=1))
    measured = series(recorded, which, By.HOUR)
    assert len(measured.points) in {72, 73, 74}
    assert [point.group for point in measured.points] == sorted(point.group for point in measured.points)
    exact = {point.group: point for point in stats(recorded, which, By.HOUR)}
    for point in measured.points:
        known = exact.get(point.group)
        assert (point.calls, point.failed) == ((known.calls, known.failed) if known else (0, 0))
    assert [(point.provider, point.model) for point in measured.models] == [("quick", "small"), ("slow", "big")]
    assert measured.models[1].figures.p50_ms == pytest.approx(500, rel=0.2)
    assert (measured.total.calls, measured.total.failed, measured.total.cost) == (24, 1, 10.0)
    assert [point.calls for point in series(recorded, which, By.DAY).points if point.calls] in ([3, 21], [3, 20, 1])
    nobody = series(recorded, CallFilter(provider="nobody"), By.DAY)
    assert (nobody.models, nobody.total.calls, nobody.total.p50_ms) == ([], 0, None)


def test_each_filter_selects_its_calls(recorded: Context) -> None:
    assert [call.latency_ms for call in calls.list_calls(limit=3)] == [9000, 1, 2]
    counted = {
        "flow": len(calls.list_calls(flow="music")),
        "provider": len(calls.list_calls(provider="quick")),
        "model": len(calls.list_calls(model="big")),
        "capability": len(calls.list_calls(capability="vision")),
        "status": len(calls.list_calls(status="failed")),
        "kind": len(calls.list_calls(status="rate_limited")),
        "scope": len(calls.list_calls(scope_id="doc", provider="slow")),
        "since": len(calls.list_calls(since=NOW - timedelta(seconds=5))),
        "until": len(calls.list_calls(until=NOW - timedelta(days=1))),
    }
    assert counted == {
        "flow": 3,
        "provider": 21,
        "model": 3,
        "capability": 21,
        "status": 1,
        "kind": 1,
        "scope": 3,
        "since": 6,
        "until": 3,
    }
    assert calls.total(provider="nobody") is None


def test_the_command_lists_shows_and_sums_up(recorded: Context) -> None:
    listed = shown("list", "--status", "failed", "--since", "2h")
    assert [(call["status"], call["unit"]) for call in listed] == [("rate_limited", "7")]
    assert "429: slow down" in penstock("list", "--provider", "quick").output
    text = penstock("show", str(listed[0]["id"])).output
    assert all(words in text for words in ("documents: page_to_markdown (vision)", "doc 7", "rate_limited", "9,000 ms"))
    assert "there is no call 4711" in str(penstock("show", "4711", code=1).exception)
    figures = shown("stats", "--by", "flow")
    assert (figures["total"]["calls"], [group["group"] for group in figures["groups"]]) == (24, ["documents", "music"])
    table = penstock("stats").output
    assert "1 (4.8%)" in table
    assert table.splitlines()[-1].split()[:2] == ["all", "24"]


def test_empty_answers_say_why(recorded: Context) -> None:
    assert "On record are calls of quick (21), slow (3)" in penstock("list", "--provider", "nobody").output
    assert "No call matches" in penstock("stats", "--flow", "screenshots").output


def test_without_calls_the_commands_show_an_empty_result(context: Context) -> None:
    assert "No calls on record" in penstock("list").output
    assert shown("list") == []
    assert shown("stats") == {"by": "provider", "total": None, "groups": []}


def test_a_word_that_is_not_known_is_refused_and_help_teaches_by_example() -> None:
    refused = {
        "list --status broken": "'broken' is not one of ok, failed, permanent",
        "list --flow knitting": "'knitting' is not one of documents",
        "list --since soon": "'soon' is not a time",
    }
    for command, problem in refused.items():
        words = penstock(*command.split(), code=2).output.replace("│", " ").split()
        assert problem in " ".join(words)
    assert "penstock calls stats --since 1d" in penstock("--help").output
    assert all("penstock calls" in penstock(name, "--help").output for name in ("list", "stats"))
