from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency.thread import TaskPool

from tasks import panel


@pytest.fixture
def state() -> Any:
    grown: list[int] = []
    pool = TaskPool(2)
    yield SimpleNamespace(consumer=SimpleNamespace(pool=pool, _update_prefetch_count=grown.append, grown=grown))
    pool.executor.shutdown()


def test_a_pool_of_threads_grows_and_says_why_it_does_not_shrink(state: Any) -> None:
    assert panel._pool_grow(state, 2) == {"ok": "pool will grow"}
    pool = state.consumer.pool
    assert (pool.limit, pool.executor._max_workers, state.consumer.grown) == (4, 4, [2])
    assert "-c" in panel._pool_shrink(state)["error"]
