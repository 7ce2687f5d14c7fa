"""Smaller pictures of frames and the places of their words are made once, and deleted with the frame."""

import os
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from pipeline.engine.errors import UserError
from pipeline.flows.screenshots import deletion, queries
from pipeline.flows.screenshots.frames import files, intake, renditions
from pipeline.flows.screenshots.frames.files import Kind
from pipeline.flows.screenshots.frames.intake import Frame
from pipeline.flows.screenshots.rules.headings import Box, SeenLine
from pipeline.storage.context import Context
from tests.integration.screenshots.conftest import BEGIN, Hand, draft
from tests.support.screenshots import desk


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def shot(context: Context, tmp_path: Path) -> int:
    """Make a frame with a readable line."""
    path = desk(tmp_path / "desk.png", "Invoice 4711 of March")
    ingested = intake.ingest(context, path, Frame("screen:1", BEGIN, "Firefox", "Invoices"))
    assert ingested.shot_id is not None
    return ingested.shot_id


def folder(context: Context) -> list[str]:
    there = context.settings.screenshot_dir / "renditions"
    return sorted(path.name.partition(".png.")[2] for path in there.iterdir()) if there.is_dir() else []


def test_a_smaller_picture_is_made_once_and_kept_beside_the_frame(
    context: Context, shot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert renditions.find(context, shot, Kind.SMALL).content is None
    small = renditions.make(context, shot, Kind.SMALL)
    assert Image.open(BytesIO(small)).size == (480, 270)
    large = Image.open(BytesIO(renditions.make(context, shot, Kind.LARGE)))
    assert (large.format, large.size) == ("JPEG", (1280, 720)), "small pictures are not enlarged"
    monkeypatch.setattr(renditions, "jpeg_of", None)
    rendition = renditions.find(context, shot, Kind.SMALL)
    assert rendition.content == renditions.make(context, shot, Kind.SMALL) == small
    assert rendition.name != renditions.find(context, shot, Kind.LARGE).name
    [stored] = (context.settings.screenshot_dir / "renditions").glob("*small.jpg")
    assert (stored.stat().st_mode & 0o777, stored.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_searched_words_have_their_places_on_the_picture(context: Context, shot: int) -> None:
    text = renditions.make(context, shot, Kind.TEXT)
    [line] = [line for line in renditions.lines_in(text, "invoice march") if "Invoice" in line.text]
    assert [word.text for word in line.words] == ["Invoice", "March"]
    first, last = line.words
    # The line starts at pixel 60 of 1280, 40 of 720.
    assert first.left == pytest.approx(60 / 1280, abs=0.02)
    assert line.left <= first.left < first.right < last.left < last.right <= line.right + 0.01
    assert first.top < 60 / 720 < first.bottom
    assert not [word for line in renditions.lines_in(text, "april") for word in line.words]


def test_text_recognised_for_the_analysis_is_not_recognised_twice(
    context: Context, shot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = queries.screenshot(context, shot).path
    assert file is not None
    renditions.keep(context.settings, file.name, [SeenLine("数据库 pool", Box(0.1, 0.1, 0.3, 0.12)), SeenLine("?")])
    monkeypatch.setattr(renditions, "lines_of", None)
    [line] = renditions.lines_in(renditions.make(context, shot, Kind.TEXT), "pool")
    assert (line.text, line.left, [word.text for word in line.words]) == ("数据库 pool", 0.1, ["pool"])


def test_deleting_a_frame_deletes_its_renditions(context: Context, hand: Hand, shot: int) -> None:
    for kind in (Kind.SMALL, Kind.TEXT):
        renditions.make(context, shot, kind)
    other = hand.add("another", ts=BEGIN.replace(hour=20)).shot_id
    assert other is not None
    renditions.make(context, other, Kind.SMALL)
    assert folder(context) == ["small.jpg", "small.jpg", "text.json"]
    deletion.forget(context, BEGIN, BEGIN.replace(hour=12))
    assert folder(context) == ["small.jpg"]
    for kind in Kind:
        with pytest.raises(UserError, match="there is no screenshot"):
            renditions.make(context, shot, kind)
    path = queries.screenshot(context, other).path
    assert path is not None
    files.discard(context.settings, [path.name])
    with pytest.raises(UserError, match="is deleted"):
        renditions.make(context, other, Kind.SMALL)


def test_a_picture_made_during_the_deletion_of_its_frame_does_not_stay(context: Context, shot: int) -> None:
    path = queries.screenshot(context, shot).path
    assert path is not None
    path.unlink()
    files.keep_rendition(context.settings, path.name, Kind.SMALL, b"late")
    assert folder(context) == []


def test_clean_up_removes_renditions_without_a_frame_and_keeps_the_rest(context: Context, shot: int) -> None:
    renditions.make(context, shot, Kind.SMALL)
    there = context.settings.screenshot_dir / "renditions"
    for name in ("gone.png.text.json", "incoming-half"):
        (there / name).write_bytes(b"")
        os.utime(there / name, (0, 0))
    os.utime(there, (0, 0))
    os.utime(next(there.glob("*small.jpg")), (0, 0))
    assert files.remove_orphans(context) == 2
    assert [path.name.partition(".png.")[2] for path in there.iterdir()] == ["small.jpg"]


def test_an_unreadable_picture_is_a_plain_error(context: Context, shot: int) -> None:
    path = queries.screenshot(context, shot).path
    assert path is not None
    path.write_bytes(b"damaged meanwhile")
    with pytest.raises(UserError, match=f"cannot show screenshot {shot} now: ") as caught:
        renditions.make(context, shot, Kind.SMALL)
    assert caught.value.code == "no_picture"


def test_frames_are_listed_with_the_nodes_that_rest_on_them(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch(app="Terminal")
    node_ids = hand.analyse(batch, [draft("Both", shots[:3]), draft("One", shots[2:3])])
    assert [shot.id for shot in queries.screenshots(context, limit=2)] == shots[:2:-1]
    newest = queries.screenshots(context, limit=1)[0]
    before = (newest.ts, newest.id)
    assert [shot.id for shot in queries.screenshots(context, before=before, app="term", source="screen:1")] == (
        shots[3::-1]
    )
    assert queries.screenshots(context, app="Firefox") == queries.screenshots(context, until=BEGIN) == []
    assert [node.title for node in queries.nodes_of(context, shots[2])] == ["Both", "One"]
    by_node = queries.frames_of(context, node_ids, each=2)
    assert {node: (shown.total, [frame.id for frame in shown.frames]) for node, shown in by_node.items()} == {
        node_ids[0]: (3, shots[:2]),
        node_ids[1]: (1, shots[2:3]),
    }
    middle = queries.screenshot(context, shots[2])
    assert queries.neighbours(context, middle) == (shots[1], shots[3])
    assert queries.neighbours(context, queries.screenshot(context, shots[0])) == (None, shots[1])
    assert queries.apps(context) == ["Terminal"]
    assert sorted(queries.nodes_by_id(context, [*node_ids, 999])) == sorted(node_ids)
    assert sorted(queries.screenshots_by_id(context, [shots[0], 999])) == [shots[0]]
