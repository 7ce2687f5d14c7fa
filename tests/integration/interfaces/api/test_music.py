"""`/api/v1/music`: runs start, pause and end; songs are listed and searched; only administrators see a broken reply."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import update
from starlette.testclient import TestClient

from pipeline.flows.music.models import BATCHES
from pipeline.flows.music.states import PipelineState
from pipeline.interfaces.api.app import PREFIX
from pipeline.interfaces.http.pages import encode
from pipeline.storage.context import Context
from tests.integration.interfaces.api.test_skeleton import problem
from tests.support import songs
from tests.support.music import Driver, add_run, add_songs, services
from tests.support.provider_server import ProviderServer
from tests.support.subsonic_server import SubsonicServer

MUSIC = f"{PREFIX}/music"


@pytest.fixture
def provider() -> Iterator[ProviderServer]:
    with ProviderServer(answer=songs.answer) as server:
        yield server


@pytest.fixture
def server() -> Iterator[SubsonicServer]:
    with SubsonicServer(3) as server:
        yield server


@pytest.fixture
def settings_env(provider: ProviderServer, server: SubsonicServer) -> dict[str, str]:
    return services(provider.base_url, server.url)


def titles(response: Any) -> list[str]:
    return [song["title"] for song in response.json()["items"]]


def paged(api: TestClient, path: str, key: str, limit: int) -> list[Any]:
    """Return the values of `key` on all pages of a list."""
    seen, cursor = [], ""
    while cursor is not None:
        page = api.get(f"{MUSIC}/{path}", params={"limit": limit} | ({"cursor": cursor} if cursor else {})).json()
        assert len(page["items"]) <= limit
        seen += [item[key] for item in page["items"]]
        cursor = page["next_cursor"]
    return seen


@pytest.mark.both_databases
def test_lists_are_paged_without_gaps_and_filtered(api: TestClient, context: Context) -> None:
    run_id = add_run(context, PipelineState.RUNNING, songs=5)
    assert paged(api, "songs", "title", 2) == [f"Song {n}" for n in range(1, 6)]
    assert titles(api.get(f"{MUSIC}/songs", params={"q": "G 3"})) == ["Song 3"]
    assert titles(api.get(f"{MUSIC}/songs", params={"q": "%"})) == []
    assert titles(api.get(f"{MUSIC}/songs", params={"status": "FAILED"})) == []
    ids = paged(api, "batches", "id", 2)
    assert (len(ids), ids) == (5, sorted(ids, reverse=True))
    assert api.get(f"{MUSIC}/batches", params={"run_id": "ab"}).json()["items"] == []
    context.db.run(lambda session: session.execute(update(BATCHES).values(run_id=run_id)))
    assert api.post(f"{MUSIC}/stop").status_code == 200
    second = add_run(context, PipelineState.RUNNING)
    assert paged(api, "runs", "id", 1) == [second, run_id]


def test_a_run_is_started_once_paused_resumed_and_stopped(api: TestClient, context: Context) -> None:
    add_songs(context, 3)
    started = api.post(f"{MUSIC}/runs", json={"mode": "metadata", "skip_sync": True, "limit": 2})
    assert started.status_code == 202
    run = started.json()
    assert started.headers["location"] == f"{MUSIC}/runs/{run['id']}"
    assert started.headers["retry-after"]
    assert (run["mode"], run["song_limit"], run["outcome"]) == ("metadata", 2, None)
    assert run["id"] in problem(api.post(f"{MUSIC}/runs"), 409, "already_running")
    problem(api.post(f"{MUSIC}/resume"), 409, "illegal_state")
    assert api.post(f"{MUSIC}/pause").json()["status"] == "paused"
    waited = api.get(f"{MUSIC}/runs/{run['id']}", params={"wait": 30})
    assert waited.json()["status"] == "paused", "the request does not wait for a paused run"
    resumed = api.post(f"{MUSIC}/resume")
    assert (resumed.status_code, resumed.headers["location"]) == (202, started.headers["location"])
    assert api.post(f"{MUSIC}/stop").json()["outcome"] == "stopped"
    problem(api.post(f"{MUSIC}/stop"), 409, "idle")
    assert api.get(started.headers["location"]).json()["outcome"] == "stopped"


def test_status_sync_and_estimate_describe_the_library(api: TestClient, provider: ProviderServer) -> None:
    estimate = api.post(f"{MUSIC}/estimate").json()
    assert (estimate["songs"], estimate["new_songs"], estimate["cost"]) == (3, 3, None)
    assert api.get(f"{MUSIC}/status").json()["totalSongs"] == 0
    synced = api.post(f"{MUSIC}/sync").json()
    assert (synced["seen"], synced["added"], synced["complete"]) == (3, 3, True)
    status = api.get(f"{MUSIC}/status").json()
    assert (status["pendingSongs"], status["pipelineState"], status["run"]) == (3, "idle", None)
    assert not provider.records, "no call was paid"


def test_songs_are_searched_by_mood_and_by_similarity(api: TestClient, context: Context) -> None:
    add_songs(context, 4)
    assert api.get(f"{MUSIC}/search", params={"q": "night"}).json() == {
        "matches": [],
        "lexical": True,
        "searched": 0,
        "songs": 4,
        "any_word": False,
    }
    [first] = api.get(f"{MUSIC}/songs", params={"limit": 1}).json()["items"]
    problem(api.get(f"{MUSIC}/songs/{first['id']}/similar"), 422, "no_vector")
    driver = Driver(context)
    driver.run(driver.start())
    result = api.get(f"{MUSIC}/search", params={"q": "sound of song 2", "limit": 2}).json()
    assert (len(result["matches"]), result["searched"], result["lexical"]) == (2, 4, True)
    assert result["matches"][0]["song"]["title"] == "Song 2"
    like = api.get(f"{MUSIC}/songs/{first['id']}/similar", params={"limit": 3}).json()["matches"]
    assert first["id"] not in {match["song"]["id"] for match in like}
    song = api.get(f"{MUSIC}/songs/{first['id']}").json()
    assert (song["status"], song["analysis"]["id"]) == ("COMPLETED", song["server_id"])
    assert "path" not in song


def test_figures_of_a_run_are_its_songs_batches_and_calls(api: TestClient, context: Context) -> None:
    add_songs(context, 12)
    driver = Driver(context)
    run = driver.start(limit=10)
    driver.run(run)
    figures = api.get(f"{MUSIC}/runs/{run}/figures").json()
    assert (figures["songs"], figures["batches"], figures["delayed"]) == ({"COMPLETED": 10}, {"COMPLETED": 1}, 0)
    assert (figures["calls"], figures["failed_calls"]) == (1, 0)
    assert figures["output_tokens"] > 0
    assert api.get(f"{MUSIC}/status").json()["songsWithVector"] == 10
    assert len(titles(api.get(f"{MUSIC}/songs", params={"run_id": run}))) == 10
    assert titles(api.get(f"{MUSIC}/songs", params={"has_vector": False})) == ["Song 11", "Song 12"]
    problem(api.get(f"{MUSIC}/runs/abc/figures"), 404, "unknown_run")


def test_unknown_ids_are_404_even_if_a_song_has_that_title(api: TestClient, context: Context) -> None:
    add_songs(context, 1)
    for path in ("songs/999", "songs/999/similar"):
        assert "999" in problem(api.get(f"{MUSIC}/{path}"), 404, "unknown_song")
    problem(api.get(f"{MUSIC}/songs/s1"), 422, "invalid")
    problem(api.get(f"{MUSIC}/runs/abc"), 404, "unknown_run")
    problem(api.get(f"{MUSIC}/runs/nonsense"), 422, "invalid")


def test_invalid_music_requests_are_refused(api: TestClient) -> None:
    for body in ({"mode": "fast"}, {"limit": 0}, {"limits": 3}, {"limit": 10**30}):
        problem(api.post(f"{MUSIC}/runs", json=body), 422, "invalid")
    queries: tuple[dict[str, Any], ...]
    queries = ({"q": ""}, {"q": "a\x00"}, {"q": "x" * 501}, {"q": "a", "limit": 201}, {})
    for query in queries:
        problem(api.get(f"{MUSIC}/search", params=query), 422, "invalid")
    problem(api.get(f"{MUSIC}/search", params={"q": "  "}), 422, "empty_query")
    problem(api.get(f"{MUSIC}/songs", params={"cursor": encode("x")}), 400, "bad_cursor")
    assert api.get(f"{MUSIC}/status").json()["run"] is None
