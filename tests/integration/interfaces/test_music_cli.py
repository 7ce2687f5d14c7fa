"""`penstock music …`."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from pipeline.engine.errors import UserError
from pipeline.flows.music.states import PipelineState
from pipeline.interfaces.cli.main import app
from pipeline.storage.context import Context
from tests.support.music import add_run, add_songs, batch_rows, services
from tests.support.subsonic_server import SubsonicServer


@pytest.fixture
def server() -> Iterator[SubsonicServer]:
    with SubsonicServer(12) as server:
        yield server


@pytest.fixture
def settings_env(server: SubsonicServer) -> dict[str, str]:
    return services("http://127.0.0.1:9/v1", server.url)


def penstock(*arguments: str, code: int = 0) -> Result:
    with capture_logs():
        result = CliRunner().invoke(app, ["music", *arguments])
    assert result.exit_code == code, result.output
    return result


def shown(*arguments: str) -> object:
    return json.loads(penstock(*arguments, "--json").stdout)


def test_sync_reports_and_status_has_the_contract(context: Context) -> None:
    assert shown("sync")["added"] == 12  # type: ignore[index]
    assert "12 songs: 0 new" in penstock("sync").output
    status = shown("status")
    assert isinstance(status, dict)
    assert set(status) >= {
        "isPaused",
        "isWorkerRunning",
        "activeJobs",
        "waitingJobs",
        "completedJobs",
        "failedJobs",
        "delayedJobs",
        "pendingSongs",
        "totalSongs",
        "pipelineState",
    }
    assert (status["pendingSongs"], status["totalSongs"], status["pipelineState"]) == (12, 12, "idle")
    assert "PENDING 12" in penstock("status").output


def test_dry_run_counts_songs_that_are_not_synced_yet_and_changes_nothing(context: Context) -> None:
    estimate = shown("start", "--dry-run")
    assert isinstance(estimate, dict)
    assert (estimate["songs"], estimate["new_songs"], estimate["batches"], estimate["metadata_calls"]) == (12, 12, 2, 2)
    assert shown("status")["totalSongs"] == 0  # type: ignore[index]
    assert "unknown: no prices" in penstock("start", "--dry-run").output


def test_start_pause_resume_stop(context: Context) -> None:
    add_songs(context, 12)
    assert shown("start", "--skip-sync")["status"] == "enqueuing"  # type: ignore[index]
    with pytest.raises(UserError, match="penstock music stop"):
        CliRunner().invoke(app, ["music", "start", "--skip-sync"], catch_exceptions=False)
    assert "paused" in penstock("pause").output
    assert shown("status")["isPaused"]  # type: ignore[index]
    assert "enqueuing" in penstock("resume").output
    assert shown("stop")["outcome"] == "stopped"  # type: ignore[index]


def test_runs_are_listed_and_shown_with_what_they_cost(context: Context) -> None:
    assert "penstock music start" in penstock("runs").output
    add_songs(context, 3)
    run = json.loads(penstock("start", "--skip-sync", "--json").stdout)["id"]
    penstock("stop")
    assert "stopped" in penstock("runs").output
    assert "stopped" in penstock("runs", run[:6]).output
    shown_run = json.loads(penstock("runs", run, "--json").stdout)
    assert (shown_run["outcome"], shown_run["figures"]["calls"], shown_run["figures"]["cost"]) == ("stopped", 0, 0)


def test_show_takes_a_number_an_id_or_a_title(context: Context) -> None:
    penstock("sync")
    for reference in ("3", "s000002", "Song 2", "artist 2 - song 2"):
        assert shown("show", reference)["title"] == "Song 2"  # type: ignore[index]
    assert "Song 2" in penstock("show", "3").output
    assert len(shown("show")) == 12  # type: ignore[arg-type]
    assert shown("show", "--status", "failed") == []
    assert shown("show", "--batches") == []
    for wrong in ("no such song", "%", "99999999999999999999"):
        with pytest.raises(UserError, match="there is no song"):
            CliRunner().invoke(app, ["music", "show", wrong], catch_exceptions=False)


@pytest.mark.parametrize(
    "arguments",
    [("start", "--mode", "all"), ("search",), ("search", "x", "--like", "y"), ("show", "--status", "x"), ("nonsense",)],
)
def test_wrong_usage_is_exit_code_2(context: Context, arguments: tuple[str, ...]) -> None:
    penstock(*arguments, code=2)


def test_search_before_the_first_run_says_what_to_do(context: Context) -> None:
    assert "penstock music sync" in penstock("search", "calm").output
    add_songs(context, 2)
    output = penstock("search", "song 2").output
    assert "penstock music start" in output
    assert "Ann - Song 2" in output
    assert "Ann - Song 1" not in output
    assert shown("search", "calm")["lexical"] is True  # type: ignore[index]


class TestWithoutProvider:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {}

    def test_sync_and_search_name_the_next_command_and_a_song_without_tags_is_named_by_its_file(
        self, context: Context, tmp_path: Path
    ) -> None:
        folder = tmp_path / "songs"
        folder.mkdir()
        (folder / "Rain Dogs.mp3").write_bytes(b"no tags")
        assert "1 song: 1 new" in (output := penstock("sync", "--folder", str(folder)).output)
        assert "penstock music search" in output
        results = penstock("search", "dogs")
        assert "says what it takes" in results.output, "`start` would be refused"
        assert "  Rain Dogs" in results.stdout
        assert "- Rain Dogs" not in results.stdout + penstock("show").stdout


def test_one_batch_is_promoted_and_removed(context: Context) -> None:
    add_run(context, PipelineState.PAUSED, songs=1)
    (row,) = batch_rows(context)
    with pytest.raises(UserError, match="is PENDING"):
        app(["music", "batch", "retry", str(row.id)], standalone_mode=False)
    assert '"status": "PENDING"' in penstock("batch", "promote", str(row.id), "--json").stdout
    assert "is removed" in penstock("batch", "remove", str(row.id)).output
    assert "No batches." in penstock("show", "--batches").output
