"""The screens of music: their content, their buttons, and the rights to press them."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import update
from starlette.testclient import TestClient

from pipeline.flows.music.models import BATCHES, SONGS
from pipeline.flows.music.states import PipelineState
from pipeline.interfaces.console.screens.music import MusicQuery, RunQuery, library, one_run
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.integration.interfaces.api.conftest import Connect
from tests.support import songs
from tests.support.music import Driver, add_run, add_songs, batch_rows, services
from tests.support.provider_server import ProviderServer
from tests.support.subsonic_server import SubsonicServer

MUSIC = "/console/music"
PAGE = {"accept": "text/html"}
BROWSER = {**PAGE, "origin": "http://127.0.0.1", "sec-fetch-site": "same-origin"}
HOSTILE = "<img src=x onerror=alert(1)>"


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
    prices = '{"writer": {"input": 100, "output": 100}}'
    return services(provider.base_url, server.url) | {"PENSTOCK_PROVIDERS__AI__PRICES": prices}


def page(client: TestClient, path: str = "", **query: Any) -> str:
    answer = client.get(f"{MUSIC}{path}", params=query, headers=PAGE)
    assert answer.status_code == 200, answer.text
    return answer.text


def press(client: TestClient, path: str, **fields: Any) -> str:
    """Return the page after a form, with its message."""
    answer = client.post(f"{MUSIC}/{path}", data=fields, headers={**BROWSER, "referer": f"http://127.0.0.1{MUSIC}"})
    assert answer.status_code == 200, answer.text
    return answer.text


def text(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_an_empty_library_says_how_to_begin(api: TestClient) -> None:
    assert "Read the library first" in page(api)
    assert "from your music library" in page(api, "/songs")
    assert "No songs yet" in page(api, "/search")
    message = press(api, "sync")
    assert "3 songs read: 3 new, 0 changed." in message
    assert "<b>240</b>" not in message
    assert text(page(api, "/songs")).count("not yet described") == 3


def test_a_run_is_estimated_before_it_starts_and_can_be_paused_resumed_and_stopped(
    api: TestClient, provider: ProviderServer
) -> None:
    estimate = page(api, "/start", limit="2", mode="metadata", failed="true")
    assert "about $0.1" in estimate
    assert re.search(r'name="limit" value="2"', estimate)
    assert page(api, "/start", limit="").count("<dt>Songs</dt>") == 1
    assert not provider.records
    assert "The run has started." in press(api, "runs", mode="metadata", limit="2", skip_sync="false", failed="true")
    assert "paused" in press(api, "pause")
    assert "Resume" in page(api)
    assert "The run continues." in press(api, "resume")
    refused = api.post(f"{MUSIC}/runs", data={"mode": "full"}, headers=BROWSER)
    assert refused.status_code == 409
    assert "The request failed" in refused.text
    assert "Paid results are kept" in press(api, "stop")
    assert "stopped" in page(api)


def test_a_run_shows_its_songs_batches_and_cost(api: TestClient, context: Context) -> None:
    add_songs(context, 25)
    driver = Driver(context)
    run = driver.start(limit=20)
    driver.run(run)
    shown = text(page(api, f"/runs/{run}"))
    assert "20 of 20 songs done 0 failed" in shown
    assert "spent in 2 calls" in shown
    assert "No batch matches" in page(api, f"/runs/{run}", status="FAILED")
    assert api.get(f"{MUSIC}/runs/abc", headers=PAGE).status_code == 404
    overview = text(page(api))
    assert "20 of 25" in overview
    assert text(page(api, "/songs", vector="false")).count("not yet described") == 5
    first = page(api, "/songs", q="song 3")
    song = re.search(rf'href="({MUSIC}/songs/\d+)"', first)
    assert song
    detail = text(api.get(song[1], headers=PAGE).text)
    assert "Song 3 Ann" in detail
    assert "Sound of Song 3." in detail
    assert detail.count("Similar songs") == 1
    assert len(re.findall(r'<li class="sheet">', api.get(song[1], headers=PAGE).text)) == 12
    results = page(api, "/search", q="sound of song 2")
    assert "best first by words and by mood" in results
    assert "Song 2" in results
    assert "No hits" in page(api, "/search", q="zzzz", limit=10) or "best first" in results
    assert set(library(context, MusicQuery())) == {"music-figures", "music-run"}
    assert set(one_run(context, RunQuery(run=run))) == {"music-run", "music-batches"}


def test_batches_are_paged_and_replies_are_for_administrators(connect: Connect, context: Context) -> None:
    run = add_run(context, PipelineState.RUNNING, songs=60)
    broken = update(BATCHES).where(BATCHES.c.id == 7).values(status="FAILED", reply=HOSTILE, error=HOSTILE)
    context.db.run(lambda session: session.execute(broken))
    reads, admin = connect(Scope.READ), connect(Scope.ADMIN)
    first = page(reads, f"/runs/{run}")
    following = re.search(r'href="([^"]+)" rel="next"', first)
    assert following
    rest = reads.get(following[1].replace("&amp;", "&"), headers=PAGE).text
    assert len(re.findall(r'<td class="num">\d+</td>\s*<td><span class="state', rest)) == 10
    assert HOSTILE not in first
    assert "<pre>" not in page(reads, f"/runs/{run}", status="FAILED")
    assert "<pre>&lt;img" in page(admin, f"/runs/{run}", status="FAILED")


def test_a_reader_has_no_buttons_that_would_be_refused(connect: Connect, context: Context) -> None:
    add_run(context, PipelineState.RUNNING, songs=1)
    reads = connect(Scope.READ)
    shown = page(reads)
    assert "Start a run" not in shown
    assert 'class="may-write"' not in shown


def test_texts_of_a_library_or_a_model_are_escaped(api: TestClient, context: Context) -> None:
    add_songs(context, 1)
    evil = {
        "title": HOSTILE,
        "artist": HOSTILE,
        "album": HOSTILE,
        "error": HOSTILE,
        "description": HOSTILE,
        "mood": HOSTILE,
        "genre": HOSTILE,
        "tags": f'["{HOSTILE}"]',
        "vector_text": HOSTILE,
        "analysis_json": f'{{"a": "</pre>{HOSTILE}"}}',
    }
    context.db.run(lambda session: session.execute(update(SONGS).values(**evil)))
    with context.db.read() as session:
        song = session.execute(SONGS.select()).one().id
    for path in ("/songs", f"/songs/{song}", "/search?q=song"):
        shown = api.get(f"{MUSIC}{path}", headers=PAGE).text
        assert "&lt;img src=x" in shown
        assert HOSTILE not in shown


class TestWithoutALibrary:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {}

    def test_the_page_says_what_to_set(self, api: TestClient) -> None:
        assert "PENSTOCK_MUSIC__FOLDER" in page(api)
        start = page(api, "/start")
        assert "These options cannot start a run" in start
        assert "<code>penstock music sync</code>" in start


def test_one_batch_is_retried_promoted_and_removed(api: TestClient, context: Context) -> None:
    run = add_run(context, PipelineState.PAUSED, songs=3)
    failed, waiting, removed = (row.id for row in batch_rows(context))
    context.db.run(
        lambda tx: (
            tx.execute(update(SONGS).where(SONGS.c.batch_id == failed).values(status="FAILED", batch_id=None)),
            tx.execute(update(BATCHES).where(BATCHES.c.id == failed).values(status="FAILED")),
            tx.execute(
                update(BATCHES).where(BATCHES.c.id == waiting).values(next_run_at=datetime(2100, 1, 1, tzinfo=UTC))
            ),
        )
    )
    shown = page(api, f"/runs/{run}")
    assert f"/music/batches/{failed}/retry" in shown
    assert f"/music/batches/{waiting}/promote" in shown
    assert f"/music/batches/{waiting}/retry" not in shown
    press(api, f"batches/{failed}/retry")
    press(api, f"batches/{waiting}/promote")
    press(api, f"batches/{removed}/remove")
    kept = {row.id: (row.status, row.next_run_at) for row in batch_rows(context)}
    assert kept == {failed: ("PENDING", None), waiting: ("PENDING", None)}
    at = "/api/v1/music/batches"
    assert api.post(f"{at}/{failed}/retry").status_code == 409
    assert api.post(f"{at}/{waiting}/promote").json()["status"] == "PENDING"
    assert api.delete(f"{at}/{waiting}").status_code == 204
    assert api.delete(f"{at}/{waiting}").status_code == 404
