"""A dry run says calls, cost and time, and changes nothing."""

import json
from collections.abc import Callable

import pytest
from pydantic import SecretStr
from sqlalchemy import func, select

from pipeline.engine.traces import AiCall
from pipeline.flows.music import estimate, queries
from pipeline.flows.music.library import sync
from pipeline.flows.music.service import StartOptions
from pipeline.flows.music.states import Mode
from pipeline.settings import ProviderProfile
from pipeline.storage.context import Context
from tests.support import songs
from tests.support.music import EMBED, Driver, add_songs, batch_rows, calls
from tests.support.provider_server import ProviderServer
from tests.support.subsonic_server import SubsonicServer, synthetic


def test_dry_run_writes_nothing_and_estimates_calls_and_time(context: Context) -> None:
    add_songs(context, 45)
    estimated = estimate.estimate_run(context, StartOptions(skip_sync=True))
    assert (estimated.songs, estimated.batches, estimated.metadata_calls, estimated.embedding_calls) == (45, 5, 5, 5)
    assert (estimated.seconds, estimated.cost) == (120.0, None)
    assert queries.last_run(context) is None
    assert batch_rows(context) == []


@pytest.fixture
def prices(context: Context) -> Callable[[str], None]:
    """Set the provider's price list."""

    def change_to(text: str) -> None:
        profile = context.settings.providers["ai"]
        context.settings.providers["ai"] = ProviderProfile(**profile.model_dump() | {"prices": json.loads(text)})

    return change_to


def test_cost_follows_the_price_list_and_estimated_tokens(context: Context, prices: Callable[[str], None]) -> None:
    add_songs(context, 45)
    prices('{"writer": {"input": 1000000, "output": 2000000}, "vectors": {"input": 3000000}}')
    estimated = estimate.estimate_run(context, StartOptions(skip_sync=True))
    embedded = 45 * estimate.TEXT_TOKENS
    written = 45 * estimate.ANSWER_TOKENS
    assert estimated.output_tokens == written
    assert estimated.cost == pytest.approx(estimated.input_tokens - embedded + 2 * written + 3 * embedded)
    assert estimated.unpriced == []


def test_estimate_is_near_the_cost_of_the_run(
    driver: Driver, provider: ProviderServer, prices: Callable[[str], None]
) -> None:
    add_songs(driver.context, 40)
    # As long as models' texts: two or three sentences each.
    long = "A slow piece for piano and strings, recorded close, with a soft voice that comes late. " * 3
    texts = {"vector_anchor": {"acoustic_model": long, "semantic_push": long}}
    provider.script.answer = lambda r: json.dumps({"songs": [songs.analysis(s, **texts) for s in songs.in_prompt(r)]})
    prices('{"*": {"input": 1, "output": 4}}')
    estimated = estimate.estimate_run(driver.context, StartOptions(skip_sync=True))
    driver.run(driver.start())
    with driver.context.db.read() as session:
        paid = session.execute(select(func.sum(AiCall.cost))).scalar_one()
    assert estimated.cost is not None
    assert paid / 2 < estimated.cost < paid * 2


def test_models_without_a_price_are_named(context: Context, prices: Callable[[str], None]) -> None:
    add_songs(context, 5)
    estimated = estimate.estimate_run(context, StartOptions(skip_sync=True))
    assert (estimated.cost, estimated.unpriced) == (None, ["ai (vectors)", "ai (writer)"])
    prices('{"writer": {"input": 1}}')
    estimated = estimate.estimate_run(context, StartOptions(skip_sync=True))
    assert estimated.cost is not None
    assert estimated.unpriced == ["ai (vectors)"]


def test_the_cost_of_a_free_model_is_zero_and_not_unknown(context: Context, prices: Callable[[str], None]) -> None:
    add_songs(context, 5)
    prices('{"*": {}}')
    assert estimate.estimate_run(context, StartOptions(skip_sync=True)).cost == 0


@pytest.mark.parametrize(
    ("calls", "limits", "tokens", "least"),
    [
        (0, "2/min", 0, 0),
        (2, "2/min", 0, 0),
        (3, "2/min", 0, 60),
        (5, "", 0, 0),
        (9, "10/s, 4/min", 0, 120),
        (5, "1000 tokens/min", 5000, 240),
    ],
)
def test_time_follows_every_window(calls: int, limits: str, tokens: int, least: float) -> None:
    assert estimate.least_s(calls, limits, tokens) == least


def test_existing_texts_count_with_their_length_and_need_no_metadata(driver: Driver, provider: ProviderServer) -> None:
    add_songs(driver.context, 10)
    driver.run(driver.start(Mode.METADATA))
    estimated = estimate.estimate_run(driver.context, StartOptions(Mode.EMBEDDING, skip_sync=True))
    chars = sum(len(song.vector_text) for song in queries.songs(driver.context))
    assert (estimated.metadata_calls, estimated.embedding_calls, estimated.output_tokens) == (0, 1, 0)
    assert estimated.input_tokens == chars // 4
    assert calls(provider, EMBED) == 0


def test_songs_under_new_ids_are_not_counted_as_new(context: Context) -> None:
    with SubsonicServer(12) as server:
        context.settings.music = context.settings.music.model_copy(
            update={"server_url": server.url, "password": SecretStr("sesame")}
        )
        sync.sync_libraries(context)
        server.library.song = lambda number: synthetic(number) | {"id": f"new{number}"}
        server.library.total = 13
        assert estimate.estimate_run(context, StartOptions()).new_songs == 1
