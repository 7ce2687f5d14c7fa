"""Batches of songs go through their steps: a provider's faults cause no second payment and no loss."""

import json
from uuid import uuid4

import pytest
from sqlalchemy import select

from pipeline.engine import deliveries
from pipeline.engine.claims import Owner
from pipeline.engine.errors import UserError
from pipeline.engine.traces import AiCall
from pipeline.flows.music import batches as commands
from pipeline.flows.music import plan, queries, recovery, search
from pipeline.flows.music.states import BatchStatus, Mode, Step
from pipeline.flows.music.work.batch import claim
from pipeline.flows.music.work.step import StepWork
from pipeline.providers import gates, queue_control, spend
from pipeline.settings import ProviderProfile
from pipeline.storage.context import Context
from tests.support import songs
from tests.support.music import CHAT, EMBED, Driver, add_songs, batch_rows, calls, change, services, states
from tests.support.provider_server import Fault, ProviderServer, Record, default_vector


@pytest.mark.both_databases
def test_full_run_pays_two_calls_a_batch_and_every_song_has_its_own_vector(
    driver: Driver, provider: ProviderServer
) -> None:
    add_songs(driver.context, 25)
    driver.run(driver.start())
    assert (calls(provider, CHAT), calls(provider, EMBED)) == (3, 3)
    listed = queries.songs(driver.context)
    assert {song.status for song in listed} == {"COMPLETED"}
    assert listed[4].description == "Sound of Song 5.\n\n[Imagery] Image of Song 5."
    for song in (listed[0], listed[24]):
        hits = search.like_song(driver.context, str(song.id), 24).matches
        assert len(hits) == 24
        best = search._search(driver.context, song.vector_model, default_vector(song.vector_text), 1).matches[0]
        assert (best.song.id, best.score) == (song.id, pytest.approx(1.0, abs=1e-4))
    status = queries.status(driver.context)
    assert (status.pipeline_state, status.completed_jobs, status.total_songs, status.pending_songs) == (
        "idle",
        3,
        25,
        0,
    )
    with driver.context.db.read() as session:
        traced = session.execute(select(AiCall.capability, AiCall.status)).all()
    assert sorted(map(tuple, traced)) == [("embeddings", "ok")] * 3 + [("text", "ok")] * 3


def test_vectors_stay_with_their_songs_when_some_have_no_text(driver: Driver, provider: ProviderServer) -> None:
    def some_are_empty(record: Record) -> str:
        empty = {"vector_anchor": {}, "embedding_tags": {}}
        requested = songs.in_prompt(record)
        return json.dumps({"songs": [songs.analysis(s, **(empty if n % 2 else {})) for n, s in enumerate(requested)]})

    provider.script.answer = some_are_empty
    add_songs(driver.context, 10)
    driver.run(driver.start())
    listed = queries.songs(driver.context)
    assert [bool(song.vector_model) for song in listed] == [True, False] * 5
    for song in listed[::2]:
        best = search._search(driver.context, song.vector_model, default_vector(song.vector_text), 1).matches[0]
        assert best.song.id == song.id


@pytest.mark.usefixtures("others_succeed")
def test_failed_embedding_never_repays_metadata(driver: Driver, provider: ProviderServer) -> None:
    provider.script.rule = lambda record: Fault(status=500) if record.path == EMBED else None
    add_songs(driver.context, 10)
    run_id = driver.start()
    for _ in range(3):
        driver.run(run_id)
        driver.skip_waits()
    assert (calls(provider, CHAT), calls(provider, EMBED)) == (1, 3)
    assert set(states(driver.context).values()) == {"FAILED"}
    assert "after 3 attempts" in str(batch_rows(driver.context)[0].error)
    provider.script.rule = None
    gates.breaker(driver.context, "ai:embeddings").close()
    driver.run(driver.start(failed=True))
    assert (calls(provider, CHAT), calls(provider, EMBED)) == (1, 4)
    assert set(states(driver.context).values()) == {"COMPLETED"}


@pytest.mark.usefixtures("others_succeed")
def test_transient_errors_wait_five_and_ten_seconds(driver: Driver, provider: ProviderServer) -> None:
    provider.script.always = Fault(status=500)
    add_songs(driver.context, 1)
    run_id, waits = driver.start(), []
    for _ in range(2):
        driver.run(run_id)
        (row,) = batch_rows(driver.context)
        waits.append((row.next_run_at - row.updated_at).total_seconds())
        driver.skip_waits()
    assert waits == [pytest.approx(5, rel=0.21), pytest.approx(10, rel=0.21)]
    driver.run(run_id)
    (row,) = batch_rows(driver.context)
    assert (row.status, row.attempts) == ("FAILED", 3)


def test_rate_limit_releases_the_batch_without_an_attempt_and_shows_the_breaker(
    driver: Driver, provider: ProviderServer
) -> None:
    provider.push(Fault(status=429, headers={"Retry-After": "600"}))
    add_songs(driver.context, 10)
    run_id = driver.start()
    driver.run(run_id, launches=3)
    row = batch_rows(driver.context)[0]
    assert (row.status, row.attempts) == ("PENDING", 0)
    assert recovery.reflect_breakers(driver.context) == "ai:text: rate limit"
    status = queries.status(driver.context)
    assert (status.pipeline_state, status.is_paused) == ("breaker", True)
    driver.skip_waits()
    driver.run(run_id, launches=1)
    assert calls(provider, CHAT) == 1, "nothing is sent while the breaker is open"
    gates.breaker(driver.context, "ai:text").close()
    recovery.reflect_breakers(driver.context)
    assert queries.status(driver.context).pipeline_state == "running"
    driver.skip_waits()
    driver.run(run_id)
    assert set(states(driver.context).values()) == {"COMPLETED"}


def test_killed_worker_s_batch_resumes_at_its_step(driver: Driver, provider: ProviderServer) -> None:
    add_songs(driver.context, 10)
    run_id = driver.start()
    driver.run(run_id, launches=1)
    (batch,) = plan.plan(driver.context, run_id).batches
    assert driver.step(batch.id, batch.mode, Step.METADATA).requeue
    assert claim(driver.context, batch.id, (Step.EMBED,), Owner("dead", "r:0")) is not None
    driver.lose_worker("dead")
    driver.run(run_id)
    assert (calls(provider, CHAT), calls(provider, EMBED)) == (1, 1)
    assert set(states(driver.context).values()) == {"COMPLETED"}


def test_batch_that_kills_its_worker_three_times_fails(driver: Driver) -> None:
    add_songs(driver.context, 2)
    run_id = driver.start()
    driver.run(run_id, launches=1)
    for n in range(3):
        (batch,) = plan.plan(driver.context, run_id).batches
        assert claim(driver.context, batch.id, (Step.METADATA,), Owner("dead", f"{n}:0"))
        driver.lose_worker("dead")
    assert set(states(driver.context).values()) == {"FAILED"}
    assert not plan.plan(driver.context, run_id).batches
    assert queries.run(driver.context, run_id).outcome == "completed"


@pytest.mark.both_databases
def test_late_result_of_a_lost_claim_is_discarded_but_traced(driver: Driver, provider: ProviderServer) -> None:
    add_songs(driver.context, 5)
    run_id = driver.start()
    driver.run(run_id, launches=1)
    (batch,) = plan.plan(driver.context, run_id).batches

    def release_claim(record: Record) -> str:
        driver.lose_worker("slow")
        return songs.answer(record)

    provider.script.answer = release_claim
    assert not driver.step(batch.id, batch.mode, Step.METADATA, worker="slow").done
    assert batch_rows(driver.context)[0].analysis is None
    with driver.context.db.read() as session:
        assert len(session.execute(select(AiCall.id)).all()) == 1


def test_metadata_mode_then_embedding_mode_pays_each_once(driver: Driver, provider: ProviderServer) -> None:
    add_songs(driver.context, 10)
    driver.run(driver.start(Mode.METADATA))
    assert (calls(provider, CHAT), calls(provider, EMBED)) == (1, 0)
    assert set(states(driver.context).values()) == {"COMPLETED"}
    driver.run(driver.start(Mode.EMBEDDING))
    assert (calls(provider, CHAT), calls(provider, EMBED)) == (1, 1)
    driver.run(driver.start(Mode.EMBEDDING))
    assert calls(provider, EMBED) == 1
    assert set(states(driver.context).values()) == {"COMPLETED"}


def test_mood_search_asks_the_provider_through_the_gate(driver: Driver, provider: ProviderServer) -> None:
    add_songs(driver.context, 3)
    driver.run(driver.start())
    before = calls(provider, EMBED)
    result = search.for_words(driver.context, "calm night")
    assert (len(result.matches), result.lexical, result.searched) == (3, False, 3)
    assert calls(provider, EMBED) == before + 1
    queue_control.pause(driver.context, "embedding-only", None)
    with pytest.raises(UserError, match="operator"):
        search.for_words(driver.context, "calm night")


class TestWithoutEmbeddings:
    @pytest.fixture
    def settings_env(self, provider: ProviderServer) -> dict[str, str]:
        return services(provider.base_url)

    @pytest.fixture
    def driver(self, context: Context) -> Driver:
        change(context, "queue.metadata-generation.limits", "1000/s")
        return Driver(context)

    def test_search_by_words_finds_songs_and_is_marked_as_lexical(
        self, driver: Driver, provider: ProviderServer
    ) -> None:
        add_songs(driver.context, 5)
        driver.run(driver.start())
        result = search.for_words(driver.context, "image of song 4")
        assert result.lexical
        assert result.matches[0].song.title == "Song 4"
        assert (calls(provider, CHAT), calls(provider, EMBED)) == (1, 0)


def test_message_redelivered_during_its_call_pays_nothing(driver: Driver, provider: ProviderServer) -> None:
    add_songs(driver.context, 5)
    run_id = driver.start()
    driver.run(run_id, launches=1)
    (batch,) = plan.plan(driver.context, run_id).batches
    delivery = Owner("w", "one:")

    def perform(owner: Owner) -> bool:
        with deliveries.first(owner.request_id) as is_first:
            guarded = gates.guarded_call(driver.context, batch.queue, uuid4().hex)
            if not is_first:
                return False
            with StepWork(driver.context, batch.id, owner, guarded) as work:
                return bool(work.metadata().done)

    def redelivered(record: Record) -> str:
        assert not perform(delivery), "the same process has the delivery"
        elsewhere = Owner("another worker", "one:")
        assert claim(driver.context, batch.id, (Step.METADATA,), elsewhere) is None, (
            "the holder of the claim may be alive"
        )
        return songs.answer(record)

    provider.script.answer = redelivered
    assert perform(delivery)
    assert calls(provider, CHAT) == 1


def test_message_redelivered_after_its_process_died_resumes_at_once(driver: Driver, provider: ProviderServer) -> None:
    add_songs(driver.context, 5)
    run_id = driver.start()
    driver.run(run_id, launches=1)
    (batch,) = plan.plan(driver.context, run_id).batches
    owner = Owner("w", "one:")
    assert claim(driver.context, batch.id, (Step.METADATA,), owner)
    with StepWork(driver.context, batch.id, owner, gates.guarded_call(driver.context, batch.queue, "h")) as work:
        assert work.metadata().done
    assert calls(provider, CHAT) == 1


def test_each_trace_has_its_call_s_cost_so_that_a_cap_outlives_redis(driver: Driver, provider: ProviderServer) -> None:
    profile = driver.context.settings.providers["ai"]
    prices = {"*": {"input": 1000, "output": 2000}}
    priced = ProviderProfile(**profile.model_dump() | {"prices": prices, "api_key": "k"})
    driver.context.settings.providers["ai"] = priced
    add_songs(driver.context, 10)
    driver.run(driver.start())
    search.for_words(driver.context, "calm night")
    with driver.context.db.read() as session:
        traced = session.execute(select(AiCall)).scalars().all()
    assert len(traced) == 3
    for call in traced:
        assert call.cost == pytest.approx((call.input_tokens * 1000 + call.output_tokens * 2000) / 1e6)
        assert call.cost > 0
    assert spend.spent_today(driver.context, "ai", priced) == pytest.approx(sum(call.cost for call in traced))


def test_search_for_a_mood_pays_nothing_without_vectors_to_find(driver: Driver, provider: ProviderServer) -> None:
    add_songs(driver.context, 3)
    result = search.for_words(driver.context, "calm night")
    assert (result.matches, result.searched) == ([], 0)
    assert provider.records == []


def test_a_failed_batch_is_retried_alone_with_its_paid_results(driver: Driver, provider: ProviderServer) -> None:
    add_songs(driver.context, 20)
    provider.script.rule = lambda record: Fault(status=400) if record.path == EMBED else None
    driver.run(driver.start())
    provider.script.rule = None
    failed, other = batch_rows(driver.context)
    assert (failed.status, other.status) == ("FAILED", "FAILED")
    retried = commands.retry(driver.context, failed.id)
    assert (retried.status, retried.step, retried.attempts) == ("PENDING", Step.EMBED, 0)
    with pytest.raises(UserError, match="is PENDING"):
        commands.retry(driver.context, failed.id)
    commands.retry(driver.context, other.id)
    assert [row.run_id for row in batch_rows(driver.context)] == [retried.run_id] * 2, "it joins the active run"
    driver.run(retried.run_id)
    assert set(states(driver.context).values()) == {"COMPLETED"}
    assert calls(provider, CHAT) == 2, "metadata is not paid twice"
    assert queries.run(driver.context, retried.run_id).outcome == "completed"
    assert [batch.id for batch in queries.batches(driver.context, status=BatchStatus.COMPLETED)] == [
        other.id,
        failed.id,
    ]


def test_a_waiting_batch_is_promoted_or_removed_and_one_under_way_is_not(
    driver: Driver, provider: ProviderServer
) -> None:
    add_songs(driver.context, 20)
    provider.push(Fault(status=503))
    run_id = driver.start()
    driver.run(run_id, launches=2)
    waiting, second = batch_rows(driver.context)
    assert waiting.next_run_at is not None
    assert commands.promote(driver.context, waiting.id).next_run_at is None
    (batch,) = plan.plan(driver.context, run_id).batches
    assert claim(driver.context, batch.id, (Step.METADATA,), Owner("w", "r:0"))
    for act in (commands.remove, commands.promote, commands.retry):
        with pytest.raises(UserError, match="is PROCESSING"):
            act(driver.context, batch.id)
    driver.lose_worker("w")
    rest = ({waiting.id, second.id} - {batch.id}).pop()
    commands.remove(driver.context, rest)
    driver.run(run_id)
    assert [row.id for row in batch_rows(driver.context)] == [batch.id]
    assert sorted(states(driver.context).values()) == ["COMPLETED"] * 10 + ["PENDING"] * 10
    assert queries.run(driver.context, run_id).outcome == "completed"
    commands.remove(driver.context, batch.id)
    assert batch_rows(driver.context) == []
    with pytest.raises(UserError, match="there is no batch"):
        commands.remove(driver.context, batch.id)
