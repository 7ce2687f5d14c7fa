"""Claims of idempotent requests on PostgreSQL, where a twin's change is visible between two statements."""

from datetime import timedelta
from typing import Any

import pytest

from pipeline.engine.tables import insert_if_absent
from pipeline.storage import idempotency
from pipeline.storage.context import Context
from tests.faults.flow import POSTGRESQL

pytestmark = pytest.mark.both_databases

KEEP = timedelta(hours=1)


@POSTGRESQL
def test_a_caller_claims_a_request_that_a_twin_releases_at_that_moment(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = idempotency.begin(context, "owner", "key", "same", KEEP)
    assert isinstance(twin, idempotency.KeyClaim)
    insert = insert_if_absent

    def then_released(*args: Any) -> None:
        monkeypatch.setattr(idempotency, "insert_if_absent", insert)
        insert(*args)
        idempotency.release(context, twin)

    monkeypatch.setattr(idempotency, "insert_if_absent", then_released)
    claim = idempotency.begin(context, "owner", "key", "same", KEEP)
    assert isinstance(claim, idempotency.KeyClaim)
    with pytest.raises(idempotency.StillRunning):
        idempotency.begin(context, "owner", "key", "same", KEEP)
