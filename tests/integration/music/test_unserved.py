"""A run whose provider is removed ends with an error, and keeps paid results."""

from collections.abc import Iterator

import pytest

from pipeline.flows.music import plan, queries, service
from pipeline.flows.music.flow import FLOW
from pipeline.flows.music.states import Mode, Step
from pipeline.process import new_context
from pipeline.settings import get_settings
from pipeline.storage.context import Context
from tests.support.music import CHAT, Driver, add_songs, calls, states
from tests.support.provider_server import ProviderServer


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def without(context: Context, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    """The context of a worker that starts after music's provider was removed."""
    monkeypatch.setenv("PENSTOCK_MUSIC__PROVIDER", "")
    get_settings.cache_clear()
    context_without = new_context(get_settings())
    yield context_without
    context_without.db.dispose()
    context_without.redis.close()
    context_without.redis.connection_pool.disconnect()


def test_a_run_that_waits_for_metadata_ends_with_an_error_and_keeps_paid_results(
    driver: Driver, without: Context, provider: ProviderServer
) -> None:
    add_songs(driver.context, 20)
    run_id = driver.start()
    driver.run(run_id, launches=1)
    first = plan.plan(driver.context, run_id).batches[0]
    assert driver.step(first.id, first.mode, Step.METADATA).requeue
    assert list(FLOW.fail_unserved(driver.context)) == [], "its provider is configured"
    assert list(FLOW.fail_unserved(without)) == [run_id]
    run = queries.run(driver.context, run_id)
    assert (run.outcome, run.finished_at is not None) == ("failed", True)
    assert "PENSTOCK_MUSIC__PROVIDER" in (run.error or "")
    assert set(states(driver.context).values()) == {"PENDING"}
    assert list(FLOW.fail_unserved(without)) == []
    driver.run(driver.start())  # it is configured again
    assert set(states(driver.context).values()) == {"COMPLETED"}
    assert calls(provider, CHAT) == 2, "the first batch's metadata was paid for before"


def test_a_run_that_only_embeds_or_is_paused_continues(driver: Driver, without: Context) -> None:
    add_songs(driver.context, 10)
    run_id = driver.start()
    driver.run(run_id, launches=1)
    service.pause(driver.context)
    assert list(FLOW.fail_unserved(without)) == []
    service.resume(driver.context)
    driver.run(run_id)
    embedding_run = driver.start(Mode.EMBEDDING)
    driver.run(embedding_run, launches=1)
    assert list(FLOW.fail_unserved(without)) == []
