"""The sweep's tick: one sweeps at a time, and none keeps the others away for long."""

import pytest

from pipeline.engine.leases import Leases
from pipeline.storage.context import Context
from tasks import maintenance
from tests.support.waiting import wait_until

PRESENCE_TTL_S = 0.5


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_SWEEP_INTERVAL_S": "0.01", "PENSTOCK_PRESENCE_TTL_S": str(PRESENCE_TTL_S)}


def test_a_sweep_whose_end_is_lost_keeps_others_away_no_longer_than_a_silent_worker(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[int] = []
    monkeypatch.setattr(maintenance, "_sweep", lambda *_: swept.append(1) or 0)
    with monkeypatch.context() as failover:
        # As after a failover: the new master has the beginning of the sweep, and not its end.
        failover.setattr(Leases, "release", lambda *_: None)
        maintenance.sweep()
    assert swept == [1]
    maintenance.sweep()
    assert swept == [1], "another one is under way, for all that anybody knows"
    wait_until(lambda: maintenance.sweep() or len(swept) == 2, 10, "the next sweep")
