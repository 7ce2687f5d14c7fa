"""Behind an open breaker the profile's fallback writes the metadata, if it can."""

from collections.abc import Iterator

import pytest
from pydantic import ValidationError
from sqlalchemy import select

from pipeline.engine.errors import UserError
from pipeline.engine.traces import AiCall
from pipeline.flows.music import plan, queries, recovery, service
from pipeline.flows.music.models import SONGS
from pipeline.flows.music.service import StartOptions
from pipeline.flows.music.states import Step
from pipeline.providers import gates
from pipeline.settings import Settings
from pipeline.storage.context import Context
from tasks.music.canvas import TASKS
from tests.support import songs
from tests.support.music import CHAT, EMBED, Driver, add_songs, batch_rows, calls, states
from tests.support.provider_server import Fault, ProviderServer

OTHERS = "vision.other"


@pytest.fixture
def other() -> Iterator[ProviderServer]:
    with ProviderServer(answer=songs.answer) as server:
        yield server


@pytest.fixture
def settings_env(settings_env: dict[str, str], other: ProviderServer) -> dict[str, str]:
    return settings_env | {
        "PENSTOCK_PROVIDERS__AI__FALLBACK": "other",
        "PENSTOCK_PROVIDERS__OTHER__BASE_URL": other.base_url,
        "PENSTOCK_PROVIDERS__OTHER__API_KEY": "k",
        "PENSTOCK_PROVIDERS__OTHER__MODEL": "second",
    }


def open_breaker(context: Context, name: str) -> None:
    gates.breaker(context, name).open(600, "by hand")


def test_batches_go_to_the_fallback_by_its_own_model_and_vectors_stay_with_their_provider(
    driver: Driver, provider: ProviderServer, other: ProviderServer
) -> None:
    add_songs(driver.context, 20)
    open_breaker(driver.context, "ai:text")
    driver.run(driver.start())
    assert set(states(driver.context).values()) == {"COMPLETED"}
    assert (calls(provider, CHAT), calls(provider, EMBED)) == (0, 2)
    assert (calls(other, CHAT), calls(other, EMBED)) == (2, 0)
    with driver.context.db.read() as session:
        traced = session.execute(select(AiCall.provider, AiCall.model, AiCall.capability).distinct()).all()
        models = session.execute(select(SONGS.c.model, SONGS.c.vector_model).distinct()).all()
    assert sorted(map(tuple, traced)) == [("ai", "vectors", "embeddings"), ("other", "second", "text")]
    assert [tuple(row) for row in models] == [("second", "ai:vectors")]


def test_message_that_waits_behind_the_breaker_is_sent_to_the_fallback_at_once(
    driver: Driver, provider: ProviderServer, other: ProviderServer
) -> None:
    add_songs(driver.context, 10)
    run_id = driver.start()
    driver.run(run_id, launches=1)
    (sent,) = plan.plan(driver.context, run_id).batches
    assert sent.queue == "metadata-generation"
    assert [TASKS.launch(run_id), TASKS.launch(run_id)] == [1, 0]
    open_breaker(driver.context, "ai:text")
    (resent,) = plan.plan(driver.context, run_id).batches
    assert (resent.id, resent.queue) == (sent.id, OTHERS)
    assert [TASKS.launch(run_id), TASKS.launch(run_id)] == [1, 0], "once"
    assert driver.context.redis.llen(OTHERS) == 1
    driver.chain(resent)
    # The breaker has closed, and the message that waited behind it arrives without work to do.
    gates.breaker(driver.context, "ai:text").close()
    assert not driver.step(sent.id, sent.mode, Step.METADATA, queue=sent.queue).done
    driver.run(run_id)
    assert (calls(provider, CHAT), calls(other, CHAT)) == (0, 1)
    assert set(states(driver.context).values()) == {"COMPLETED"}


def test_run_that_meets_a_rate_limit_continues_with_the_fallback_and_says_so(
    driver: Driver, provider: ProviderServer, other: ProviderServer
) -> None:
    provider.push(Fault(status=429, headers={"Retry-After": "300"}))
    add_songs(driver.context, 10)
    run_id = driver.start()
    driver.run(run_id, launches=2)
    recovery.reflect_breakers(driver.context)
    status = queries.status(driver.context)
    assert (status.pipeline_state, status.is_paused, status.stand_in) == ("running", False, "other")
    assert status.contract()["standIn"] == "other"
    driver.skip_waits()
    driver.run(run_id)
    assert set(states(driver.context).values()) == {"COMPLETED"}
    assert (calls(provider, CHAT), calls(other, CHAT)) == (1, 1)


def test_fallback_whose_breaker_is_open_too_is_left_alone(
    driver: Driver, provider: ProviderServer, other: ProviderServer
) -> None:
    add_songs(driver.context, 10)
    open_breaker(driver.context, "ai:text")
    run_id = driver.start()
    driver.run(run_id, launches=1)
    (sent,) = plan.plan(driver.context, run_id).batches
    assert sent.queue == OTHERS
    open_breaker(driver.context, "other:vision")
    (back,) = plan.plan(driver.context, run_id).batches
    assert back.queue == "metadata-generation"
    recovery.reflect_breakers(driver.context)
    assert queries.status(driver.context).pipeline_state == "breaker"
    driver.chain(back)
    assert (calls(provider, CHAT), calls(other, CHAT)) == (0, 0)
    assert batch_rows(driver.context)[0].attempts == 0


def test_broken_reply_of_the_provider_may_be_repaired_by_the_fallback(
    driver: Driver, provider: ProviderServer, other: ProviderServer
) -> None:
    add_songs(driver.context, 10)
    run_id = driver.start()
    driver.run(run_id, launches=1)
    (batch,) = plan.plan(driver.context, run_id).batches
    provider.script.answer = lambda _: "sorry"
    driver.step(batch.id, batch.mode, Step.METADATA)
    open_breaker(driver.context, "ai:text")
    driver.run(run_id)
    assert set(states(driver.context).values()) == {"COMPLETED"}
    assert (calls(provider, CHAT), calls(other, CHAT)) == (1, 1)


def test_fallback_without_a_model_is_refused_at_the_start(context: Context) -> None:
    profile = context.settings.providers["other"]
    context.settings.providers["other"] = profile.model_copy(update={"model": ""})
    with pytest.raises(UserError, match="PENSTOCK_PROVIDERS__OTHER__MODEL"):
        service.start(context, StartOptions(skip_sync=True))


def test_unknown_fallback_is_an_invalid_setting() -> None:
    with pytest.raises(ValidationError, match="falls back to 'nobody'"):
        Settings(providers={"ai": {"fallback": "nobody"}})


class TestLocal:
    @pytest.fixture
    def settings_env(self, settings_env: dict[str, str]) -> dict[str, str]:
        return settings_env | {"PENSTOCK_PROVIDERS__AI__FALLBACK": "local"}

    def test_run_waits_if_only_local_conversion_is_left(
        self, driver: Driver, provider: ProviderServer, other: ProviderServer
    ) -> None:
        add_songs(driver.context, 10)
        open_breaker(driver.context, "ai:text")
        run_id = driver.start()
        driver.run(run_id, launches=3)
        recovery.reflect_breakers(driver.context)
        assert queries.status(driver.context).pipeline_state == "breaker"
        assert (calls(provider, CHAT), calls(other, CHAT)) == (0, 0)
        gates.breaker(driver.context, "ai:text").close()
        driver.skip_waits()
        driver.run(run_id)
        assert set(states(driver.context).values()) == {"COMPLETED"}
