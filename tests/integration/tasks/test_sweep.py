"""The sweep's tick: one process sweeps at a time, and a dead one does not block the others for long."""

import time
from types import SimpleNamespace

import pytest
from sqlalchemy import event

from pipeline.engine.leases import Leases
from pipeline.engine.presence import Presence
from pipeline.flows import flows
from pipeline.flows.documents.states import PageStatus
from pipeline.flows.flow import Flow
from pipeline.providers import gates
from pipeline.storage.context import Context
from tasks import maintenance
from tests.support.documents import insert_document
from tests.support.waiting import wait_until

PRESENCE_TTL_S = 0.5


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {
        "PENSTOCK_SWEEP_INTERVAL_S": "0.01",
        "PENSTOCK_PRESENCE_INTERVAL_S": "0.01",
        "PENSTOCK_PRESENCE_TTL_S": str(PRESENCE_TTL_S),
    }


def test_a_sweep_without_a_recorded_end_blocks_others_no_longer_than_a_silent_worker(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[int] = []
    with monkeypatch.context() as failover:

        def master_is_lost(*_: object) -> int:
            """Let the new master have the sweep's start without its end."""
            for name in ("acquire", "release"):
                failover.setattr(Leases, name, lambda *_: None)
            swept.append(1)
            return 0

        failover.setattr(maintenance, "_sweep", master_is_lost)
        start = time.monotonic()
        maintenance.sweep()
    assert swept == [1]
    monkeypatch.setattr(maintenance, "_sweep", lambda *_: swept.append(1) or 0)
    maintenance.sweep()
    in_time = time.monotonic() - start < PRESENCE_TTL_S
    assert swept == [1] or not in_time, "the first sweep may still be under way"
    wait_until(lambda: maintenance.sweep() or len(swept) >= 2, 60, "the next sweep")


@pytest.mark.parametrize(
    "settings_env",
    [
        {
            "PENSTOCK_PROVIDERS__FAKE__BASE_URL": "http://127.0.0.1:9",
            "PENSTOCK_PROVIDERS__FAKE__MODEL": "m",
            "PENSTOCK_PRESENCE_INTERVAL_S": "0.001",
        }
    ],
)
def test_slots_of_a_killed_worker_are_given_back_when_it_is_missed_twice(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "uuid4", lambda: SimpleNamespace(hex="the same sweeper"))
    [gate] = [candidate for candidate in gates.all_gates(context) if candidate.queue == "vision.fake"]
    gate.own.configure([], 2)
    gate.shared.configure([], 2)
    Presence(context.redis).renew("ai@here:1:abcdef", 600)
    assert gate.admit("ai@here:1:abcdef/living").granted
    assert gate.admit("ai@here:2:fedcba/killed").granted
    assert gate.stamp("ai@here:2:fedcba/killed").granted
    assert gate.admit("ai@here:1:abcdef/next").reason == "concurrency"
    maintenance.sweep()
    assert gate.workers() == {"ai@here:1:abcdef", "ai@here:2:fedcba"}, (
        "after one miss, the cause may be an emptied Redis"
    )
    maintenance.sweep()
    assert gate.workers() == {"ai@here:1:abcdef"}
    assert gate.admit("ai@here:1:abcdef/next").granted


def test_an_idle_sweep_queries_the_database_once_for_each_flow(context: Context) -> None:
    statements: list[str] = []
    event.listen(context.db.engine, "before_cursor_execute", lambda _c, _cursor, text, *_: statements.append(text))
    assert maintenance.sweep() == 0
    assert len([text for text in statements if not text.startswith("BEGIN")]) == len(flows())


def test_a_flow_is_swept_if_its_check_for_work_fails(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    insert_document(context, pages=[PageStatus.PENDING])

    def fail(*_: object) -> bool:
        raise ValueError

    monkeypatch.setattr(Flow, "is_at_rest", fail)
    assert maintenance.sweep() == 1
