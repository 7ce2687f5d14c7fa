"""Batches of songs go through their steps: nothing paid twice, nothing lost, whatever the provider answers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select, update

from pipeline.engine import live
from pipeline.engine.errors import UserError
from pipeline.engine.traces import AiCall
from pipeline.music import batches, estimating, launching, queries, recovery, search, service
from pipeline.music.models import BATCHES, SONGS
from pipeline.music.service import AlreadyRunning, StartOptions
from pipeline.music.states import Mode, Step
from pipeline.providers import gates
from pipeline.storage.context import Context
from tests.support import songs
from tests.support.music import Driver, add_songs
from tests.support.provider_server import Fault, ProviderServer, Record, default_vector

CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"


@pytest.fixture
def provider() -> Iterator[ProviderServer]:
    with ProviderServer(answer=songs.answer) as server:
        yield server


@pytest.fixture
def settings_env(provider: ProviderServer) -> dict[str, str]:
    return {
        "PENSTOCK_PROVIDERS__AI__BASE_URL": provider.base_url,
        "PENSTOCK_PROVIDERS__AI__API_KEY": "k",
        "PENSTOCK_PROVIDERS__AI__MODEL": "writer",
        "PENSTOCK_MUSIC__PROVIDER": "ai",
        "PENSTOCK_MUSIC__EMBEDDINGS_PROVIDER": "ai",
        "PENSTOCK_MUSIC__EMBEDDINGS_MODEL": "vectors",
        "PENSTOCK_MUSIC__SERVER_URL": "http://127.0.0.1:9",
        "PENSTOCK_MUSIC__USER": "ann",
    }


@pytest.fixture
def driver(context: Context) -> Driver:
    """A driver on a context without limits that tests would wait for."""
    for name in ("metadata-generation", "metadata-only", "embedding-only"):
        change(context, f"queue.{name}.limits", "1000/s")
    return Driver(context)


def change(context: Context, key: str, value: str) -> None:
    from datetime import UTC, datetime

    known = gates.known_settings(context.settings)
    context.db.run(lambda session: live.change(session, known, key, value, datetime.now(UTC)))
    gates.sync(context)


def calls(provider: ProviderServer, path: str) -> int:
    return sum(record.path == path for record in provider.records)


def states(context: Context) -> dict[str, str]:
    with context.db.read() as session:
        return {row.title: row.status for row in session.execute(select(SONGS).order_by(SONGS.c.id))}


def batch_rows(context: Context) -> list[Any]:
    with context.db.read() as session:
        return list(session.execute(select(BATCHES).order_by(BATCHES.c.id)))


def test_full_run_pays_two_calls_a_batch_and_every_song_has_its_own_vector(
    driver: Driver, provider: ProviderServer
) -> None:
    add_songs(driver.context, 25)
    driver.run(driver.start())
    assert (calls(provider, CHAT), calls(provider, EMBED)) == (3, 3)
    found = queries.songs(driver.context)
    assert {song.status for song in found} == {"COMPLETED"}
    assert found[4].description == "Sound of Song 5.\n\n[Imagery] Image of Song 5."
    for song in (found[0], found[24]):
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
        asked = songs.asked(record)
        return json.dumps({"songs": [songs.analysis(s, **(empty if n % 2 else {})) for n, s in enumerate(asked)]})

    provider.script.answer = some_are_empty
    add_songs(driver.context, 10)
    driver.run(driver.start())
    found = queries.songs(driver.context)
    assert [bool(song.vector_model) for song in found] == [True, False] * 5
    for song in found[::2]:
        best = search._search(driver.context, song.vector_model, default_vector(song.vector_text), 1).matches[0]
        assert best.song.id == song.id


def test_failed_embedding_never_pays_for_metadata_again(driver: Driver, provider: ProviderServer) -> None:
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


def test_transient_errors_wait_five_and_ten_seconds(driver: Driver, provider: ProviderServer) -> None:
    assert batches.policy(driver.context).backoff_s == (5.0, 10.0)
    assert batches.policy(driver.context).max_attempts == 3


def test_songs_missing_from_a_reply_go_back_and_fail_after_three_times(
    driver: Driver, provider: ProviderServer
) -> None:
    provider.script.answer = lambda record: songs.answer(record, leave_out=["Song 3"])
    add_songs(driver.context, 10)
    driver.run(driver.start())
    assert states(driver.context) == {f"Song {n}": "FAILED" if n == 3 else "COMPLETED" for n in range(1, 11)}
    assert calls(provider, CHAT) == 3
    assert "left the song out" in str(queries.song(driver.context, "Song 3").error)


def test_song_left_out_once_is_asked_for_again_in_the_same_run(driver: Driver, provider: ProviderServer) -> None:
    provider.push(Fault(status=200, text='{"songs": []}'))
    add_songs(driver.context, 10)
    driver.run(driver.start())
    assert set(states(driver.context).values()) == {"COMPLETED"}
    assert calls(provider, CHAT) == 2


def test_wrong_and_extra_ids_are_ignored_and_counted(driver: Driver, provider: ProviderServer) -> None:
    def with_extras(record: Record) -> str:
        asked = songs.asked(record)
        extra = [songs.analysis({"id": "nobody", "title": "?"}), songs.analysis(asked[0])]
        return json.dumps([*(songs.analysis(song) for song in asked), *extra])

    provider.script.answer = with_extras
    add_songs(driver.context, 10)
    driver.run(driver.start())
    assert set(states(driver.context).values()) == {"COMPLETED"}
    assert batch_rows(driver.context)[0].ignored == 2


def test_broken_reply_is_given_back_to_the_model_once_with_what_is_wrong(
    driver: Driver, provider: ProviderServer
) -> None:
    provider.push(Fault(status=200, text='{"songs": [{"id": "s1"}]}'))
    add_songs(driver.context, 10)
    driver.run(driver.start())
    assert set(states(driver.context).values()) == {"COMPLETED"}
    assert calls(provider, CHAT) == 2
    assert "vector_anchor: Field required" in provider.records[1].prompt


def test_reply_that_stays_broken_fails_the_batch_and_is_kept(driver: Driver, provider: ProviderServer) -> None:
    provider.script.answer = lambda _: "sorry, no"
    add_songs(driver.context, 10)
    driver.run(driver.start())
    assert set(states(driver.context).values()) == {"FAILED"}
    row = batch_rows(driver.context)[0]
    assert (row.status, row.reply) == ("FAILED", "sorry, no")
    assert "no JSON" in row.error
    assert calls(provider, CHAT) == 2


def test_reply_cut_at_the_token_limit_says_what_to_do(driver: Driver, provider: ProviderServer) -> None:
    provider.push(Fault("truncated", text='{"songs": ['))
    add_songs(driver.context, 5)
    driver.run(driver.start())
    assert "queue_batch_size" in str(batch_rows(driver.context)[0].error)
    assert calls(provider, CHAT) == 1


def test_rate_limit_releases_the_batch_without_an_attempt_and_shows_the_breaker(
    driver: Driver, provider: ProviderServer
) -> None:
    provider.push(Fault(status=429, headers={"Retry-After": "30"}))
    add_songs(driver.context, 10)
    run_id = driver.start()
    driver.run(run_id)
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
    (batch,) = launching.plan(driver.context, run_id).batches
    assert driver.step(batch.id, batch.mode, Step.METADATA).go_on
    from pipeline.engine.claims import Owner

    assert batches.claim(driver.context, batch.id, (Step.EMBED,), Owner("dead", "r:0")) is not None
    driver.lose_worker("dead")
    driver.run(run_id)
    assert (calls(provider, CHAT), calls(provider, EMBED)) == (1, 1)
    assert set(states(driver.context).values()) == {"COMPLETED"}


def test_batch_that_kills_its_worker_three_times_fails(driver: Driver) -> None:
    from pipeline.engine.claims import Owner

    add_songs(driver.context, 2)
    run_id = driver.start()
    driver.run(run_id, launches=1)
    for n in range(3):
        (batch,) = launching.plan(driver.context, run_id).batches
        assert batches.claim(driver.context, batch.id, (Step.METADATA,), Owner("dead", f"{n}:0"))
        driver.lose_worker("dead")
    assert set(states(driver.context).values()) == {"FAILED"}
    assert launching.plan(driver.context, run_id).ended


def test_late_result_of_a_lost_claim_is_discarded_but_traced(driver: Driver, provider: ProviderServer) -> None:
    add_songs(driver.context, 5)
    run_id = driver.start()
    driver.run(run_id, launches=1)
    (batch,) = launching.plan(driver.context, run_id).batches

    def taken_away(record: Record) -> str:
        driver.lose_worker("slow")
        return songs.answer(record)

    provider.script.answer = taken_away
    assert not driver.step(batch.id, batch.mode, Step.METADATA, worker="slow").held
    assert batch_rows(driver.context)[0].analysis is None
    with driver.context.db.read() as session:
        assert len(session.execute(select(AiCall.id)).all()) == 1


def test_second_start_is_refused_and_enqueues_no_song_twice(driver: Driver) -> None:
    add_songs(driver.context, 15)
    run_id = driver.start()
    with pytest.raises(AlreadyRunning):
        driver.start()
    driver.run(run_id, launches=1)
    with pytest.raises(AlreadyRunning):
        driver.start()
    members = [song for row in batch_rows(driver.context) for song in json.loads(row.song_ids)]
    assert sorted(members) == sorted(set(members))
    assert len(members) == 15


def test_pause_holds_resume_goes_on_and_stop_keeps_what_was_paid_for(driver: Driver, provider: ProviderServer) -> None:
    add_songs(driver.context, 20)
    run_id = driver.start()
    driver.run(run_id, launches=1)
    (batch,) = launching.plan(driver.context, run_id).batches
    assert driver.step(batch.id, batch.mode, Step.METADATA).go_on
    service.pause(driver.context)
    assert not driver.step(batch.id, batch.mode, Step.EMBED).held
    assert launching.plan(driver.context, run_id).batches == []
    assert queries.status(driver.context).is_paused
    service.resume(driver.context)
    assert [launch.step for launch in launching.plan(driver.context, run_id).batches] == [Step.EMBED]
    service.stop(driver.context)
    assert set(states(driver.context).values()) == {"PENDING"}
    assert queries.status(driver.context).pipeline_state == "idle"
    driver.run(driver.start())
    assert set(states(driver.context).values()) == {"COMPLETED"}
    assert calls(provider, CHAT) == 2, "the first batch's metadata was paid for before the stop"


def test_stop_while_a_call_is_under_way_keeps_its_result(driver: Driver, provider: ProviderServer) -> None:
    add_songs(driver.context, 5)
    run_id = driver.start()
    driver.run(run_id, launches=1)
    (batch,) = launching.plan(driver.context, run_id).batches

    def stopped_meanwhile(record: Record) -> str:
        service.stop(driver.context)
        return songs.answer(record)

    provider.script.answer = stopped_meanwhile
    assert not driver.step(batch.id, batch.mode, Step.METADATA).go_on
    found = queries.songs(driver.context)
    assert {song.status for song in found} == {"PENDING"}
    assert all(song.vector_text for song in found)
    driver.run(driver.start())
    assert (calls(provider, CHAT), calls(provider, EMBED)) == (1, 1)


def test_resume_without_a_pause_and_commands_when_idle_are_refused(driver: Driver) -> None:
    for act in (service.pause, service.resume, service.stop):
        with pytest.raises(UserError, match="idle"):
            act(driver.context)
    driver.start()
    with pytest.raises(UserError, match="not paused"):
        service.resume(driver.context)


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


def test_limit_takes_so_many_songs_and_no_more(driver: Driver) -> None:
    add_songs(driver.context, 30)
    driver.run(driver.start(limit=12))
    assert list(states(driver.context).values()).count("COMPLETED") == 12


def test_lanes_and_batch_size_follow_the_live_settings(driver: Driver) -> None:
    add_songs(driver.context, 30)
    change(driver.context, "queue_batch_size", "5")
    change(driver.context, "queue_concurrency", "3")
    run_id = driver.start()
    driver.run(run_id, launches=1)
    assert len(batch_rows(driver.context)) == 6
    assert len(launching.plan(driver.context, run_id).batches) == 3
    assert launching.plan(driver.context, run_id).batches == []


def test_lost_message_is_sent_again_when_its_queue_is_empty(driver: Driver) -> None:
    add_songs(driver.context, 5)
    run_id = driver.start()
    driver.run(run_id, launches=1)
    assert len(launching.plan(driver.context, run_id).batches) == 1
    driver.context.db.run(lambda session: session.execute(update(BATCHES).values(launch_due_at=None)))
    assert len(launching.plan(driver.context, run_id).batches) == 1
    driver.context.db.run(lambda session: session.execute(update(BATCHES).values(launch_due_at=None)))
    driver.context.redis.lpush("metadata-generation", "a message")
    assert launching.plan(driver.context, run_id).batches == []


@pytest.mark.parametrize("value", ["0", "-1", "x", "1000000000"])
def test_nonsense_limits_are_refused_and_change_nothing(driver: Driver, value: str) -> None:
    with pytest.raises(UserError):
        change(driver.context, "queue_rate_limit_max", value)


def test_metadata_queues_follow_the_rate_setting_unless_they_have_limits_of_their_own(context: Context) -> None:
    def limit(name: str) -> str:
        return str(gates.live_values(context)[f"queue.{name}.limits"].value)

    assert (limit("metadata-generation"), limit("metadata-only"), limit("embedding-only")) == (
        "2/min", "2/min", "10/min",
    )  # fmt: skip
    change(context, "queue_rate_limit_max", "7")
    change(context, "queue.metadata-only.limits", "3/s")
    assert (limit("metadata-generation"), limit("metadata-only")) == ("7/min", "3/s")
    window = gates.gate(context, gates.gated_queues(context.settings)["metadata-generation"]).look().windows[0]
    assert (window.window.limit, window.window.window_s) == (7, 60)


def test_dry_run_writes_nothing_and_says_calls_and_time(context: Context) -> None:
    add_songs(context, 45)
    found = estimating.estimate(context, StartOptions(skip_sync=True))
    assert (found.songs, found.batches, found.metadata_calls, found.embedding_calls) == (45, 5, 5, 5)
    assert (found.seconds, found.cost) == (120.0, None)
    assert queries.last_run(context) is None
    assert batch_rows(context) == []


def test_start_without_a_provider_is_refused(context: Context) -> None:
    context.settings.music = context.settings.music.model_copy(update={"provider": ""})
    with pytest.raises(UserError, match="PENSTOCK_MUSIC__PROVIDER"):
        service.start(context, StartOptions(skip_sync=True))


def test_run_whose_library_stays_unreachable_fails_after_three_tries(driver: Driver) -> None:
    run_id = service.start(driver.context, StartOptions()).id
    for _ in range(3):
        driver.run(run_id)
        from pipeline.music.models import RUNS

        driver.context.db.run(lambda session: session.execute(update(RUNS).values(next_run_at=None)))
    run = queries.last_run(driver.context)
    assert run is not None
    assert (run.outcome, run.status) == ("failed", "idle")
    assert "cannot be reached" in str(run.error)


def test_mood_search_asks_the_provider_through_the_gate(driver: Driver, provider: ProviderServer) -> None:
    add_songs(driver.context, 3)
    driver.run(driver.start())
    before = calls(provider, EMBED)
    found = search.for_mood(driver.context, "calm night")
    assert (len(found.matches), found.lexical, found.searched) == (3, False, 3)
    assert calls(provider, EMBED) == before + 1
    gates.pause(driver.context, "embedding-only", None)
    with pytest.raises(UserError, match="operator"):
        search.for_mood(driver.context, "calm night")


class TestWithoutEmbeddings:
    @pytest.fixture
    def settings_env(self, provider: ProviderServer) -> dict[str, str]:
        return {
            "PENSTOCK_PROVIDERS__AI__BASE_URL": provider.base_url,
            "PENSTOCK_PROVIDERS__AI__MODEL": "writer",
            "PENSTOCK_PROVIDERS__AI__API_KEY": "k",
            "PENSTOCK_MUSIC__PROVIDER": "ai",
        }

    @pytest.fixture
    def driver(self, context: Context) -> Driver:
        change(context, "queue.metadata-generation.limits", "1000/s")
        return Driver(context)

    def test_words_find_songs_and_it_says_that_they_are_words(self, driver: Driver, provider: ProviderServer) -> None:
        add_songs(driver.context, 5)
        driver.run(driver.start())
        found = search.for_mood(driver.context, "image of song 4")
        assert found.lexical
        assert found.matches[0].song.title == "Song 4"
        assert (calls(provider, CHAT), calls(provider, EMBED)) == (1, 0)
