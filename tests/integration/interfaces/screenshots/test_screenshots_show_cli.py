"""`penstock screenshots search`, `timeline` and `show`."""

import os
import re
import sys
from pathlib import Path

import pytest
from sqlalchemy import update
from typer.testing import CliRunner

from pipeline.engine.errors import UserError
from pipeline.flows.screenshots.graph.models import EDGES
from pipeline.flows.screenshots.models import SHOTS
from pipeline.interfaces.cli.main import app
from pipeline.storage.context import Context
from tasks import screenshots
from tests.integration.interfaces.screenshots.conftest import penstock, shown


def test_search_says_how_much_is_indexed_and_that_vectors_are_lexical(context: Context, analysed: list[int]) -> None:
    text = penstock("search", "bills", "--since", "2026-02-28").output
    assert "Paying bills — three of March" in text
    assert "2026-03-01 10:00" in text, "times are in the time zone of the settings"
    assert "Indexed: 5 screenshots (0 waiting, 0 failed); vectors of 0 nodes (3 waiting, 0 failed)." in text
    assert "lexical only" in text
    results = shown("search", "数据库")
    assert [hit["node"]["id"] for hit in results["hits"]] == [analysed[2]]
    assert results["lexical"] is True
    assert shown("search", "bills", "--since", "2026-03-02")["hits"] == []
    assert shown("search", "bills", "--app", "Word")["hits"] == []
    assert shown("search", "bills", "--app", "firefox")["hits"] != []
    assert "Nothing found" in penstock("search", "zebra").output
    assert shown("search", "paying", "bills")["hits"] == shown("search", "paying bills")["hits"] != []


def test_timeline_goes_by_hour_and_thread(context: Context, analysed: list[int]) -> None:
    hours = shown("timeline")
    assert [(hour["begins_at"], len(hour["nodes"])) for hour in hours] == [("2026-03-01T10:00:00+01:00", 1)] * 2
    assert len(shown("timeline", "--derived")[0]["nodes"]) == 2
    assert len(shown("timeline", "--until", "2026-03-01T10:00:20")) == 1
    assert len(shown("timeline", "--thread", hours[1]["thread_id"])) == 1
    text = penstock("timeline").output
    assert text.count("2026-03-01 10:00") == 1, "each hour is one heading, with its threads below"
    assert "2026-03-01 10:00\n  Paying bills" in text
    assert "Nothing on record" in penstock("timeline", "--since", "2026-03-02").output


def test_names_of_edges_from_models_are_not_markup(context: Context, analysed: list[int]) -> None:
    with context.db.transaction() as session:
        session.execute(update(EDGES).values(type="[/bold][link=x]\x1b[2J"))
    shown_text = penstock("show", "n1").output
    assert "[/bold][link=x]" in shown_text
    assert "\x1b[2J" not in shown_text


def test_show_lists_the_calls_and_frames_of_a_node(context: Context, analysed: list[int]) -> None:
    text = penstock("show", f"n{analysed[0]}").output
    assert "vlm_analyze_shard: ai m, prompt abc123, attempt 2 → f1" in text
    assert "the vision model's segments as they stand" in text
    assert "derived from" in penstock("show", f"n{analysed[1]}").output
    detail = shown("show", f"n{analysed[0]}")
    assert (detail["node"]["title"], len(detail["screenshots"]), len(detail["calls"])) == ("Paying bills", 2, 1)
    frame = penstock("show", "f1").output
    for part in ("Firefox", "Invoices", "succeeded", "Bill 0 of March", "kept until"):
        assert part in frame
    assert shown("show", "f1")["status"] == "succeeded"
    for wrong in ("n99", "f99", "b99"):
        with pytest.raises(UserError, match="there is no"):
            CliRunner().invoke(app, ["screenshots", "show", wrong], catch_exceptions=False)


def test_ids_carry_their_kind(context: Context, analysed: list[int]) -> None:
    message = " ".join(penstock("show", "1", code=2).output.replace("│", " ").split())
    assert "'1' may be f1 (a frame), b1 (a batch) or n1 (a node)" in message
    assert shown("show", "F1") == shown("show", "shot:1") == shown("show", "f1")
    batch = penstock("show", "b1").output
    for part in ("b1 batch_", "f1, f2, f3, f4, f5", "succeeded", "attempts", "the vision model's segments"):
        assert part in batch
    assert shown("show", "b1")["total_attempts"] == 1
    assert re.search(r"^b1 ", penstock("batches").output, re.MULTILINE)
    assert f" n{analysed[0]}  Paying bills" in penstock("timeline").output
    assert re.search(rf"^n{analysed[0]} ", penstock("search", "bills").output, re.MULTILINE)


def test_pictures_are_opened(
    context: Context, analysed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewer = tmp_path / "bin" / ("open" if sys.platform == "darwin" else "xdg-open")
    viewer.parent.mkdir()
    seen, works = tmp_path / "opened", tmp_path / "works"
    viewer.write_text(f'#!/bin/sh\necho "$1" >> {seen}\ntest -e {works} || {{ echo no app >&2; exit 3; }}\n')
    viewer.chmod(0o755)
    monkeypatch.setenv("PATH", f"{viewer.parent}:{os.environ['PATH']}")
    path = screenshots.screenshot(1).path
    assert path is not None
    with pytest.raises(UserError, match=rf"\(no app\): open {path}"):
        CliRunner().invoke(app, ["screenshots", "show", "f1", "--open"], catch_exceptions=False)
    works.touch()
    for item_id in ("f1", "b1", f"n{analysed[0]}"):
        assert "Opened f1: " in penstock("show", item_id, "--open").output
    assert seen.read_text().splitlines() == [str(path)] * 4
    with context.db.transaction() as session:
        session.execute(update(SHOTS).values(storage_state="deleted"))
    with pytest.raises(UserError, match="no picture left: f1 deleted after its retention time"):
        CliRunner().invoke(app, ["screenshots", "show", "f1", "--open"], catch_exceptions=False)


class TestWithAProviderOfEmbeddings:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        ai = {"PENSTOCK_PROVIDERS__AI__BASE_URL": "http://127.0.0.1:9/v1", "PENSTOCK_PROVIDERS__AI__MODEL": "m"}
        return {**ai, "PENSTOCK_SCREENSHOTS__EMBEDDINGS_PROVIDER": "ai"}

    def test_while_the_provider_is_down_search_uses_words_and_says_so(
        self, context: Context, analysed: list[int]
    ) -> None:
        text = penstock("search", "bills").output
        assert "Paying bills" in text
        assert "Searched by words only, not by meaning: " in text
        results = shown("search", "bills")
        assert results["note"]
        assert (results["lexical"], len(results["hits"])) == (False, 1)
