"""`/api/v1/calls`: filters, pages and figures; only administrators see the models' texts."""

from datetime import timedelta

import pytest
from sqlalchemy import insert
from starlette.testclient import TestClient

from pipeline.interfaces.api.app import PREFIX
from pipeline.interfaces.http.pages import encode
from pipeline.providers.calls import CALLS
from pipeline.storage.context import Context
from tests.integration.interfaces.api.test_skeleton import problem

LIST, STATS = f"{PREFIX}/calls", f"{PREFIX}/calls/stats"


def make(context: Context, *errors: str) -> None:
    """Record a call of the documents flow for each status, in pairs at equal times, two seconds apart."""
    now = context.db.now()
    rows = [
        {
            "created_at": now + timedelta(seconds=number // 2),
            "flow": "documents",
            "scope_id": f"doc{number % 2}",
            "unit": str(number),
            "capability": "vision",
            "operation": "page",
            "provider": "fake",
            "model": "m",
            "status": status,
            "error": None if status == "ok" else "it failed",
            "latency_ms": 100,
            "input_tokens": 10,
            "output_tokens": 5,
            "cost": 0.5,
            "preview": "what the model said",
        }
        for number, status in enumerate(errors)
    ]
    context.db.run(lambda session: session.execute(insert(CALLS), rows))


@pytest.mark.both_databases
def test_pages_of_calls_are_newest_first_even_at_equal_times(api: TestClient, context: Context) -> None:
    make(context, *["ok"] * 5)
    seen, cursor = [], None
    for _ in range(3):
        page = api.get(LIST, params={"limit": 2, "cursor": cursor} if cursor else {"limit": 2}).json()
        seen += [call["unit"] for call in page["items"]]
        cursor = page["next_cursor"]
    assert (seen, cursor) == (["4", "3", "2", "1", "0"], None)


@pytest.mark.both_databases
def test_calls_are_filtered_and_summed_up(api: TestClient, context: Context) -> None:
    make(context, "ok", "ok", "rate_limited", "permanent")
    failed = api.get(LIST, params={"status": "failed", "flow": "documents"}).json()["items"]
    assert [(call["unit"], call["error"]) for call in failed] == [("3", "it failed"), ("2", "it failed")]
    assert [call["unit"] for call in api.get(LIST, params={"scope_id": "doc1"}).json()["items"]] == ["3", "1"]
    later = (context.db.now() + timedelta(hours=1)).isoformat()
    assert api.get(LIST, params={"since": later}).json()["items"] == []
    stats = api.get(STATS, params={"by": "status"}).json()
    assert (stats["total"]["calls"], stats["total"]["failed"], stats["total"]["cost"]) == (4, 2, 2.0)
    assert {group["group"]: group["calls"] for group in stats["groups"]} == {"ok": 2, "permanent": 1, "rate_limited": 1}
    assert api.get(STATS, params={"provider": "other"}).json() == {"by": "provider", "total": None, "groups": []}


def test_an_unknown_call_is_404(api: TestClient) -> None:
    assert "17" in problem(api.get(f"{LIST}/17"), 404, "unknown_call")
    problem(api.get(f"{LIST}/0"), 422, "invalid")
    problem(api.get(f"{LIST}/{2**63}"), 422, "invalid")


@pytest.mark.parametrize(
    "query",
    [
        {"flow": "fishing"},
        {"status": "bad"},
        {"capability": "smell"},
        {"since": "yesterday"},
        {"since": "2026-11-22T10:00:00"},
        {"since": "0001-01-01T00:00:00+14:00"},
        {"limit": 201},
        {"until": "9999-12-31T23:59:59-14:00"},
        {"provider": "a'b"},
        {"scope_id": "x" * 65},
    ],
)
def test_an_invalid_filter_is_refused(api: TestClient, query: dict[str, str]) -> None:
    for path in (LIST, STATS) if "limit" not in query else (LIST,):
        assert f"query.{next(iter(query))}" in problem(api.get(path, params=query), 422, "invalid")


def test_ranges_and_cursors_are_checked(api: TestClient) -> None:
    ends = {"since": "2026-11-22T10:00:00Z", "until": "2026-11-22T11:00:00+02:00"}
    problem(api.get(LIST, params=ends), 422, "bad_range")
    for cursor in (
        "junk",
        encode("a", 1),
        encode("0001-01-01T00:00:00+14:00", 1),
        encode("2026-11-22T10:00:00", 1),
    ):
        problem(api.get(LIST, params={"cursor": cursor}), 400, "bad_cursor")
    problem(api.get(STATS, params={"by": "colour"}), 422, "invalid")
