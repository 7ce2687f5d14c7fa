"""`penstock music` on the embedded stack: from a music server's songs to a search, with exit codes for scripts."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import songs
from tests.support.cli import Cli, environment, plain
from tests.support.leftovers import short_folder
from tests.support.music import CHAT, EMBED, calls, services
from tests.support.provider_server import Fault, ProviderServer
from tests.support.subsonic_server import SubsonicServer


@pytest.fixture
def writer() -> Iterator[ProviderServer]:
    with ProviderServer(answer=songs.answer) as server:
        yield server


@pytest.fixture
def server() -> Iterator[SubsonicServer]:
    with SubsonicServer(25) as server:
        yield server


@pytest.fixture
def here(writer: ProviderServer, server: SubsonicServer, tmp_path: Path) -> Iterator[Cli]:
    """Runs commands on a data folder of the test's own, without a stack so far and without limits that cause waits."""
    folder = short_folder()
    settings = services(writer.base_url, server.url) | {
        "PENSTOCK_PROVIDERS__AI__API_KEY": "k",
        "PENSTOCK_MUSIC__EMBEDDINGS_PROVIDER": "ai",
    }
    cli = Cli(folder, tmp_path, environment(folder, **settings))
    assert cli.run("settings", "set", "queue_rate_limit_max", "1000").code == 0
    yield cli
    cli.kill_everything()
    shutil.rmtree(folder, ignore_errors=True)


def test_start_and_wait_then_search_by_words_that_the_provider_embeds(here: Cli, writer: ProviderServer) -> None:
    done = here.run("music", "start", "--wait")
    assert (done.code, done.out) == (0, "")
    assert done.err.splitlines()[-1] == "Done: 25 songs of 25 are described."
    assert "3/3 batches" in done.err
    assert (calls(writer, CHAT), calls(writer, EMBED)) == (3, 3)
    here.wait_until_gone()
    result = here.run("music", "search", "calm night", "--json", "--limit", "5")
    assert result.code == 0, result.err
    assert len(result.json()["matches"]) == 5
    assert result.json()["lexical"] is False
    assert writer.records[-1].body["input"] == ["calm night"]
    assert calls(writer, EMBED) == 4
    like = here.run("music", "search", "--like", "Song 3", "--json")
    assert len(like.json()["matches"]) == 10
    assert calls(writer, EMBED) == 4, "a described song needs no call"


def test_bar_on_a_terminal_counts_batches(here: Cli) -> None:
    code, written = here.terminal("music", "start", "--wait", "--limit", "20")
    assert code == 0
    assert "2/2 batches" in plain(written)


def test_some_failed_songs_are_exit_code_3_with_advice(here: Cli, writer: ProviderServer) -> None:
    writer.script.answer = lambda record: songs.answer(record, leave_out=["Song 3"])
    done = here.run("music", "start", "--wait")
    assert done.code == 3
    assert "1 song failed" in done.err
    assert "penstock music start --failed" in done.err
    listed = here.run("music", "show", "--status", "failed", "--json").json()
    assert [song["title"] for song in listed] == ["Song 3"]


def test_a_library_that_refuses_is_exit_code_1_with_json(here: Cli, server: SubsonicServer) -> None:
    server.password = "another"
    done = here.run("music", "start", "--wait", "--json")
    assert done.code == 1
    assert "PENSTOCK_MUSIC__PASSWORD" in done.err
    assert done.json()["run"]["outcome"] == "failed"


def test_one_of_two_simultaneous_starts_is_refused(here: Cli) -> None:
    assert here.run("music", "sync").code == 0
    results = here.run_all([["music", "start", "--skip-sync"]] * 2)
    assert sorted(result.code for result in results) == [0, 1]
    (refused,) = [result for result in results if result.code]
    assert "the music pipeline is enqueuing (run " in refused.err
    assert "penstock music stop" in refused.err


def test_up_continues_a_run_after_ctrl_c(here: Cli, writer: ProviderServer) -> None:
    writer.push(Fault("hang"))
    waiting = here.start("music", "start", "--wait")
    assert writer.wait_for_calls(1, 90)
    waiting.interrupt()
    assert waiting.wait() == 130
    assert "penstock up" in waiting.output
    here.wait_until_gone()
    assert here.run("music", "status", "--json").json()["pipelineState"] == "running"
    up = here.start("up")
    assert writer.wait_for_calls(1 + 6, 90)
    up.interrupt()
    assert up.wait() == 0
    here.wait_until_gone()
