"""`penstock screenshots …`: additions, status, dead letters, deletion and capture."""

import json
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import update
from typer.testing import CliRunner

from pipeline.engine.errors import UnitError, UserError
from pipeline.flows.screenshots.frames import capture as capturing
from pipeline.flows.screenshots.frames.capture import Captured
from pipeline.flows.screenshots.frames.intake import Frame
from pipeline.flows.screenshots.models import BATCHES
from pipeline.interfaces.cli import output
from pipeline.interfaces.cli.main import app
from pipeline.settings import ScreenshotSettings
from pipeline.standalone import stack
from pipeline.storage.context import Context
from tasks import screenshots
from tests.integration.interfaces.screenshots.conftest import AT, NO_KEY, failing, penstock, shown
from tests.support.screens import batch_ready
from tests.support.screenshots import desk


def test_only_the_terminal_wraps_paragraphs_of_the_help(context: Context) -> None:
    for command in ("add", "watch", "capture", "search", "delete"):
        lines = penstock(command, "--help").output.partition("╭")[0].splitlines()[3:]
        paragraphs = [part.splitlines() for part in "\n".join(line.strip() for line in lines).split("\n\n")]
        for first in (line for part in paragraphs for line in part[:-1]):
            assert len(first) > 50 or first.startswith("penstock"), first


def test_frames_are_listed_before_their_analysis(context: Context, shots: list[Path]) -> None:
    assert "No frames." in penstock("frames").output
    penstock("add", *shots[:2], "--app", "Firefox", "--no-wait")
    lines = [line.split() for line in penstock("frames").output.splitlines()[1:]]
    assert [line[0] for line in lines if line and line[0].startswith("f")] == ["f2", "f1"]
    frames = json.loads(penstock("frames", "--app", "fire", "--limit", "1", "--json").output)
    assert [(frame["id"], frame["app"]) for frame in frames] == [(2, "Firefox")]
    assert "No frames." in penstock("frames", "--source", "screen:9").output
    assert "screen:ID or window:ID" in penstock("frames", "--source", "desk", code=2).output


def test_exclusions_are_added_listed_and_taken_back(context: Context, shots: list[Path]) -> None:
    assert "No exclusions." in penstock("exclusions").output
    penstock("exclusions", "add", "--app", "Signal", "--title", "*salary*")
    assert "Signal" in penstock("exclusions").output
    assert json.loads(penstock("exclusions", "--json").output)["titles"] == ["*salary*"]
    assert "excluded" in penstock("add", shots[0], "--app", "signal", "--no-wait").output
    assert "excluded" in penstock("rejected", "--reason", "excluded").output
    assert "No frame was rejected." in penstock("rejected", "--reason", "duplicate").output
    assert "choose from duplicate" in penstock("rejected", "--reason", "boredom", code=2).output
    assert "not excluded: Word" in str(penstock("exclusions", "remove", "--app", "Word", code=1).exception)
    penstock("exclusions", "remove", "--app", "SIGNAL")
    assert json.loads(penstock("exclusions", "--json").output)["apps"] == []
    assert penstock("exclusions", "add", code=2).output


def test_add_reports_the_outcome_of_each_file(context: Context, shots: list[Path], tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_text("no picture")
    copy = tmp_path / "again.png"
    copy.write_bytes(shots[0].read_bytes())
    os.utime(copy, (AT.timestamp() + 60, AT.timestamp() + 60))
    output = penstock("add", shots[0], shots[1], copy, tmp_path / "bad.png", "--no-wait", code=3).output
    assert "desk0.png → f1" in output
    assert "again.png: duplicate of f1 (0 of 256 bits differ, up to 10 count as the same)" in output
    assert "bad.png: refused: " in output
    assert "2 screenshots ingested, 1 duplicate, 1 refused." in output
    known = shown("add", shots[0], "--no-wait")["files"]
    assert [(entry["outcome"], entry["id"]) for entry in known] == [("known", 1)]
    assert screenshots.screenshot(1).ts == AT, "the time of a frame is the time of its file"


def test_add_refuses_pipes_and_follows_outside_links_only_by_name(
    context: Context, shots: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    os.mkfifo(folder / "pipe.png")
    (folder / "leaves.png").symlink_to(shots[0])
    assert "these folders hold no picture" in str(penstock("add", folder, "--no-wait", code=1).exception)
    output = penstock("add", folder / "pipe.png", folder / "leaves.png", "--no-wait", code=3).output
    assert "pipe.png: refused: is not a file" in output
    assert "leaves.png → f1" in output


def test_frames_name_their_original_files_even_after_a_move(
    context: Context, shots: list[Path], tmp_path: Path
) -> None:
    moved = tmp_path / "moved.png"
    shutil.copy2(shots[0], moved)  # keeps the file's time
    bad = tmp_path / "bad.png"
    bad.write_text("no picture")
    penstock("add", shots[0], bad, "--no-wait", code=3)
    assert shown("show", "f1")["original_path"] == str(shots[0])
    assert "bad.png: " in shown("rejected")[0]["detail"]
    shots[0].unlink()
    assert "already known as f1" in penstock("add", moved, "--no-wait").output
    assert str(moved) in penstock("show", "f1").output.replace("\n", "")


def test_add_refuses_paths_without_pictures(context: Context, tmp_path: Path) -> None:
    (refused,) = shown("add", tmp_path / "none.png", "--no-wait", code=1)["files"]
    assert refused["outcome"] == "refused"
    assert "none.png" in refused["error"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no picture"):
        CliRunner().invoke(app, ["screenshots", "add", str(tmp_path / "empty")], catch_exceptions=False)


def test_a_frame_added_with_a_time_has_that_time(context: Context, shots: list[Path]) -> None:
    penstock("add", shots[0], "--at", "2026-03-01T14:30", "--no-wait")
    assert screenshots.screenshot(1).ts == datetime(2026, 3, 1, 13, 30, tzinfo=UTC), (
        "the time zone of the settings is Berlin"
    )
    assert "2026-03-01 14:30:00" in penstock("show", "f1").output


def test_frames_of_a_source_that_is_switched_off_are_not_taken(context: Context, shots: list[Path]) -> None:
    assert "refused from now on" in penstock("sources", "deactivate", "screen:0").output
    assert "switched off" in penstock("add", shots[0], "--no-wait", code=1).output
    (source,) = shown("sources")
    assert (source["active"], source["frames"], source["rejected"]) == (False, 0, 1)
    assert "inactive" in penstock("rejected").output
    penstock("sources", "activate", "screen:0")
    penstock("add", shots[0], "--no-wait")
    assert "yes" in penstock("sources").output


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", ".", "--source", "camera:1"),
        ("watch", ".", "--source", "screen:a b"),
        ("sources", "activate", "0"),
        ("sources", "deactivate", "window:a/b"),
        ("rejected", "--source", "screen"),
    ],
)
def test_an_invalid_source_is_wrong_usage(context: Context, arguments: tuple[str, ...]) -> None:
    assert "is not a source: screen:ID" in " ".join(penstock(*arguments, code=2).output.replace("│", " ").split())


def test_a_source_without_frames_is_reported_as_unknown(context: Context, shots: list[Path]) -> None:
    penstock("add", shots[0], "--no-wait")
    assert "No frame ever came" not in penstock("sources", "deactivate", "screen:0").output
    assert "No frame ever came" in penstock("sources", "deactivate", "screen:99").output


def test_rejected_frames_are_listed_with_the_facts_of_their_rejection(context: Context, shots: list[Path]) -> None:
    penstock("add", shots[0], "--no-wait")
    penstock("add", shots[0], "--at", "2026-03-01T09:01Z", "--no-wait")
    (rejected,) = shown("rejected")
    assert (rejected["reason"], rejected["distance"], rejected["nearest_id"]) == ("duplicate", 0, 1)
    assert shown("rejected", "--source", "screen:9") == []


def test_status_counts_frames_and_batches_and_names_work_without_a_model(context: Context, shots: list[Path]) -> None:
    text = penstock("status").output
    assert "penstock screenshots add" in text
    assert "No vision model looked" not in text, "no frame waits for a model"
    assert "PENSTOCK_SCREENSHOTS__EMBEDDINGS_PROVIDER" in text
    penstock("add", *shots[:3], "--no-wait")
    status = shown("status")
    assert (status["screenshots"], status["buffered"], status["batches"]) == ({"pending": 3}, 3, {})
    assert 0 < status["next_batch_in_s"] <= 30
    penstock("add", *shots[3:], "--no-wait")
    status = shown("status")
    assert (status["batches"], status["buffered"], status["next_batch_in_s"]) == ({}, 5, 0), "a worker batches them"
    batch_ready(context)
    status = shown("status")
    assert (status["batches"], status["buffered"], status["pressure"]) == ({"pending": 1}, 0, 0)
    assert any("No vision model looked" in note for note in status["notes"])
    assert "not their meaning" in penstock("status").output


def test_dead_letters_have_reasons_and_are_replayed(
    context: Context, shots: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "No dead letters" in penstock("dead-letters").output
    penstock("add", *shots, "--no-wait")
    batch_ready(context)
    batch = screenshots.batches()[0]
    failing(context, NO_KEY)
    assert [(letter["kind"], letter["reason"]) for letter in shown("dead-letters")] == [("batch", "shard 1: no key")]
    assert re.search(rf"b{batch.id} +batch", penstock("dead-letters").output)
    assert shown("status")["dead_letters"] == {"batch": 1}
    assert "no key" in penstock("batches", "--failed").output
    with context.db.transaction() as session:
        session.execute(update(BATCHES).values(notes=json.dumps(["a long story " * 30])))
    monkeypatch.setattr(output.out, "width", 80)
    assert all(len(line) <= 80 for line in penstock("batches").output.splitlines())
    assert "no key" in penstock("batches").output
    assert "1 dead letter will be tried again" in penstock("replay", f"b{batch.id}").output
    assert screenshots.batches()[0].status == "pending"
    failing(context, NO_KEY)
    assert "1 dead letter will" in penstock("replay", "--all").output
    with pytest.raises(UserError, match="not dead letters: n7, b8"):
        CliRunner().invoke(app, ["screenshots", "replay", "n7", "batch:8"], catch_exceptions=False)


def test_failures_due_for_a_retry_are_shown_with_reason_and_time(context: Context, shots: list[Path]) -> None:
    penstock("add", *shots, "--no-wait")
    failing(context, UnitError("eye cannot be reached"))
    (retry,) = shown("status")["retries"]
    assert (retry["kind"], retry["count"], retry["reason"]) == ("batch", 1, "shard 1: eye cannot be reached")
    assert 0 < retry["next_in_s"] <= 15
    text = penstock("status").output
    assert re.search(r"1 batch waits for another try, in \d+ s: shard 1: eye cannot be reached", text)
    assert "will be tried again 1" in text
    assert "failed" not in text


def test_add_says_why_a_file_could_not_be_analysed(
    context: Context, shots: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    penstock("add", *shots, "--no-wait")
    failing(context, NO_KEY)
    monkeypatch.setattr(stack, "using_stack", lambda _: nullcontext(SimpleNamespace(ensure=bool, trouble=str)))
    (entry,) = shown("add", shots[0], code=1)["files"]
    assert (entry["outcome"], entry["status"], entry["error"]) == ("known", "failed_permanent", "shard 1: no key")
    assert "desk0.png: not analysed: shard 1: no key" in penstock("add", shots[0], code=1).output


def test_delete_shows_its_extent_and_asks(context: Context, analysed: list[int]) -> None:
    ask = ("delete", "--since", "2026-03-01T10:00", "--until", "2026-03-01T10:00:15")
    refused = penstock(*ask, stdin="n\n", code=1).output
    assert "2 screenshots with their files and texts, 2 nodes that rest on them" in refused
    assert len(shown("search", "bills")["hits"]) == 1
    assert "Deleted: 2 screenshots, 2 nodes" in penstock(*ask, stdin="y\n").output
    assert shown("search", "bills")["hits"] == []
    assert "No frames in that time" in penstock(*ask).output
    assert shown(*ask, "--yes") == {"screenshots": 0, "nodes": 0, "restored": 0}


WRONG: list[tuple[str, ...]] = [
    ("add",),
    ("search",),
    ("search", "x", "--since", "soon"),
    ("show", "x"),
    ("show", "shot:"),
    ("show", "1"),
    ("show", "shard:1"),
    ("replay",),
    ("replay", "7"),
    ("replay", "f7"),
    ("replay", "b7", "--kind", "merge"),
    ("replay", "4", "--all"),
    ("replay", "shard:4"),
    ("replay", "--all", "--kind", "shard"),
    ("delete",),
    ("delete", "--since", "2d"),
    ("nonsense",),
]


def test_wrong_usage_is_exit_code_2(context: Context) -> None:
    for arguments in WRONG:
        penstock(*arguments, code=2)


class Screens:
    """A capturer of two screens: it captures twice, one screen has not changed by then, and ends with Ctrl-C."""

    def __init__(self, rules: ScreenshotSettings) -> None:
        self.rules = rules
        self.captures = 0

    def __enter__(self) -> "Screens":
        return self

    def __exit__(self, *_: object) -> None:
        """Hold no resources."""

    def capture(self, sources: Sequence[str]) -> list[Captured]:
        self.captures += 1
        if self.captures > 2:
            raise KeyboardInterrupt
        front = "KeePassXC" if "*KeePass*" in self.rules.excluded_apps else "Firefox"
        frames = [Frame(f"screen:{n}", AT + timedelta(seconds=self.captures), front) for n in (1, 2)]
        pictures = [self.picture(0), self.picture(self.captures)]
        if front == "KeePassXC":
            pictures = [b"", b""]
        captured = [Captured(frame, data) for frame, data in zip(frames, pictures, strict=True)]
        return [screen for screen in captured if {screen.frame.source, "screen:*"} & {*sources}]

    def picture(self, seed: int) -> bytes:
        path = Path(os.environ["PENSTOCK_DATA_DIR"]) / "screen.png"
        return desk(path, seed=seed).read_bytes()


def test_capturing_goes_on_until_ctrl_c_and_counts(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capturing, "Capturer", Screens)
    text = penstock("capture", "--every", "0.2").output
    assert "3 screenshots ingested, 1 duplicate." in text
    assert [source["key"] for source in shown("sources")] == ["screen:1", "screen:2"]
    assert screenshots.screenshot(1).app == "Firefox"


def test_a_missing_window_is_reported_once(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capturing, "Capturer", Screens)
    text = penstock("capture", "--every", "0.2", "--monitor", "1", "--window", "Mail").output
    assert text.count("window:Mail is not there") == 1
    assert "1 screenshot ingested" in text
    assert [source["key"] for source in shown("sources")] == ["screen:1"]
    alone = CliRunner().invoke(app, ["screenshots", "capture", "--once", "--window", "Mail"])
    assert (alone.exit_code, str(alone.exception)) == (1, "no such source now: window:Mail")


def test_windows_excluded_on_the_command_line_are_not_captured_but_recorded(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capturing, "Capturer", Screens)
    output = penstock("capture", "--once", "--monitor", "2", "--exclude-app", "*KeePass*").output
    assert "0 screenshots ingested, 1 excluded." in output
    assert [(entry["source_key"], entry["reason"]) for entry in shown("rejected")] == [("screen:2", "excluded")]
