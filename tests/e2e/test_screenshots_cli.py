"""`penstock screenshots` on the embedded stack: from pictures to a search, with exit codes for scripts."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli, environment, plain, provider_settings
from tests.support.leftovers import short_folder
from tests.support.provider_server import Fault, ProviderServer, Record
from tests.support.screenshots import desk

TITLES = {"Invoices": "Paying invoices", "Code": "Fixing the pool"}
FAST = {
    "PENSTOCK_SCREENSHOTS__BATCH_SIZE": "2",
    "PENSTOCK_SCREENSHOTS__BATCH_TIMEOUT_S": "1",
    "PENSTOCK_SCREENSHOTS__BACKOFF_S": "[0.1]",
    "PENSTOCK_SCREENSHOTS__JITTER_S": "0",
}
STAYS = {"PENSTOCK_STACK_LINGER_S": "300"}
"""Settings for commands that share one stack."""


def see(record: Record) -> Fault | None:
    """Answer a call about screenshots like a good vision model; return None for other calls."""
    if not record.image_sha256:
        return None
    request, _ = json.JSONDecoder().raw_decode(record.prompt[record.prompt.index('{\n "screenshots"') :])
    shown: list[dict[str, Any]] = request["screenshots"]
    index = {
        "segments": [
            {
                "screen_ids": [shot["screen_id"] for shot in shown],
                "event": {"title": TITLES.get(shown[0]["window_title"], "Something"), "summary": "seen by the model"},
                "merge_hint": {"decision": "NEW"},
            }
        ],
        "screenshots": [{"screenshot_id": shot["screenshot_id"], "ocr_text": "total 37"} for shot in shown],
    }
    return Fault("reply", status=200, text=json.dumps(index))


def _here(tmp_path: Path, **settings: str) -> Iterator[Cli]:
    folder = short_folder()
    cli = Cli(folder, tmp_path, environment(folder, **FAST, **settings))
    yield cli
    cli.kill_everything()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Cli]:
    """Runs commands on a data folder of the test's own, without any provider."""
    yield from _here(tmp_path)


@pytest.fixture
def model() -> Iterator[ProviderServer]:
    with ProviderServer(rule=see, api_key="secret-key") as server:
        yield server


@pytest.fixture
def seeing(model: ProviderServer, tmp_path: Path) -> Iterator[Cli]:
    """Runs commands with a vision model and embeddings."""
    names = {"PENSTOCK_SCREENSHOTS__VISION_PROVIDER": "ai", "PENSTOCK_SCREENSHOTS__EMBEDDINGS_PROVIDER": "ai"}
    yield from _here(tmp_path, **provider_settings(model.base_url), **names)


@pytest.fixture
def shots(tmp_path: Path) -> list[Path]:
    """Three pictures, a minute apart."""
    folder = tmp_path / "shots"
    folder.mkdir()
    paths = [
        desk(folder / f"desk{n}.png", "File Edit View Help", f"Invoice number {n}", f"Total {n * 37} EUR", seed=n)
        for n in range(3)
    ]
    for number, path in enumerate(paths):
        os.utime(path, (1_772_355_600 + 60 * number,) * 2)
    return paths


def test_words_on_a_screen_are_found_without_any_service(here: Cli, shots: list[Path]) -> None:
    here = here.using(**STAYS)
    done = here.run("screenshots", "add", "shots", "--app", "Firefox", "--title", "Invoices")
    assert (done.code, done.out) == (0, ""), done.err
    assert done.err.splitlines()[-1] == "3 screenshots ingested, 3 analysed."
    result = here.run("screenshots", "search", "total eur", "--json").json()
    assert result["hits"], result
    assert result["screenshots"] == {"done": 3, "waiting": 0, "failed": 0}
    assert result["lexical"] is True
    node = here.run("screenshots", "show", f"n{result['hits'][0]['node']['id']}")
    assert "no vision model looked" in node.out
    assert "→ f1" in node.out or "→ f3" in node.out
    assert "Total 37 EUR" in here.run("screenshots", "show", "f2").out
    status = here.run("screenshots", "status").out
    assert "No vision model looked at these screenshots" in status
    assert here.run("screenshots", "add", "shots").err.splitlines()[-1].endswith("3 analysed, 3 known.")


def test_some_refused_files_are_exit_code_3_and_the_json_says_which(here: Cli, shots: list[Path]) -> None:
    here = here.using(**STAYS)
    (shots[0].parent / "bad.png").write_text("no picture")
    shutil.copyfile(shots[0], shots[0].parent / "copy.png")
    done = here.run("screenshots", "add", "shots", "--json")
    assert done.code == 3
    outcomes = {Path(file["input"]).name: (file["outcome"], file["status"]) for file in done.json()["files"]}
    assert outcomes["desk0.png"] == ("accepted", "succeeded")
    assert outcomes["copy.png"] == ("duplicate", None)
    assert outcomes["bad.png"] == ("refused", None)
    assert here.run("screenshots", "add", "shots/bad.png").code == 1
    hours = here.run("screenshots", "timeline", "--json").json()
    titles = [node["title"] for hour in hours for node in hour["nodes"]]
    assert titles == [f"Invoice number {n}" for n in range(3)], "without the menu's text"


def test_a_models_description_is_found_by_embedded_words(seeing: Cli, model: ProviderServer, shots: list[Path]) -> None:
    code, written = seeing.terminal("screenshots", "add", *shots[:2], "--title", "Invoices")
    assert code == 0, plain(written)
    assert "2/2 screenshots" in plain(written)
    seeing.wait_until_gone()
    result = seeing.run("screenshots", "search", "paying", "--json").json()
    assert [hit["node"]["title"] for hit in result["hits"]] == ["Paying invoices"]
    assert (result["lexical"], result["note"]) == (False, "")
    detail = seeing.run("screenshots", "show", f"n{result['hits'][0]['node']['id']}", "--json").json()
    assert [(call["operation"], call["provider"]) for call in detail["calls"]] == [("vlm_analyze_shard", "ai")]
    model.stop()
    alone = seeing.run("screenshots", "search", "paying")
    assert alone.code == 0
    assert "Paying invoices" in alone.out
    assert "Searched by words only, not by meaning: " in alone.err


def test_frames_that_the_model_refuses_are_dead_letters_and_a_replay_analyses_them(
    seeing: Cli, model: ProviderServer, shots: list[Path]
) -> None:
    seeing = seeing.using(**STAYS)
    model.push(Fault("reply", status=400))
    done = seeing.run("screenshots", "add", *shots[:2], "--title", "Invoices")
    assert done.code == 1
    assert "2 could not be analysed" in done.err
    (letter,) = seeing.run("screenshots", "dead-letters", "--json").json()
    assert letter["kind"] == "batch"
    assert seeing.run("screenshots", "replay", "--all").code == 0
    repeated = seeing.run("screenshots", "add", *shots[:2])
    assert (repeated.code, repeated.err.splitlines()[-1]) == (0, "0 screenshots ingested, 2 analysed, 2 known.")


def test_the_same_command_continues_after_ctrl_c_without_loss(
    seeing: Cli, model: ProviderServer, shots: list[Path]
) -> None:
    model.push(Fault("hang"))
    waiting = seeing.start("screenshots", "add", *shots[:2])
    assert model.wait_for_calls(1, 90)
    waiting.interrupt()
    assert waiting.wait() == 130
    assert "run the same command again" in waiting.output
    assert model.server
    model.server.hang_up()  # no command waits for a time-out
    seeing.wait_until_gone()
    repeated = seeing.run("screenshots", "add", *shots[:2])
    assert repeated.code == 0, repeated.err
    seeing.wait_until_gone()
    known = seeing.using(PENSTOCK_STACK_LINGER_S="60").run("screenshots", "add", *shots[:2])
    assert known.err.splitlines()[-1].endswith("2 analysed, 2 known.")
    assert not seeing.processes(), "analysed frames start no stack"


def test_a_folder_is_watched_until_ctrl_c(here: Cli, shots: list[Path], tmp_path: Path) -> None:
    watching = here.start("screenshots", "watch", "shots", "--source", "screen:1", "--existing")
    watching.wait_for("f3")
    desk(shots[0].parent / "new.png", "A new one", seed=9)
    watching.wait_for("new.png → f4")
    (shots[0].parent / "note.txt").write_text("no picture")
    watching.interrupt()
    assert watching.wait() == 0
    assert "4 screenshots ingested." in watching.output
    (source,) = here.run("screenshots", "sources", "--json").json()
    assert (source["key"], source["frames"]) == ("screen:1", 4)


def test_capturing_without_a_display_gives_advice(here: Cli) -> None:
    done = here.using(DISPLAY=None, WAYLAND_DISPLAY=None).run("screenshots", "capture", "--once")
    assert done.code == 1
    assert "cannot capture the screens" in done.err
    assert not here.processes(), "the command starts no stack"
