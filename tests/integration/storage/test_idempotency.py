"""Claims of idempotent requests, on PostgreSQL: there, what a twin does is seen between two statements."""

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
def test_a_twin_that_is_released_just_then_leaves_the_request_to_who_asks(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = idempotency.begin(context, "owner", "key", "same", KEEP)
    assert isinstance(twin, idempotency.Begun)
    insert = insert_if_absent

    def then_released(*args: Any) -> None:
        monkeypatch.setattr(idempotency, "insert_if_absent", insert)
        insert(*args)
        idempotency.release(context, twin)

    monkeypatch.setattr(idempotency, "insert_if_absent", then_released)
    begun = idempotency.begin(context, "owner", "key", "same", KEEP)
    assert isinstance(begun, idempotency.Begun)
    with pytest.raises(idempotency.StillRunning):
        idempotency.begin(context, "owner", "key", "same", KEEP)
