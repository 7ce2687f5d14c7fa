"""Intake accepts or rejects frames, and records rejections in the ledger."""

import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from PIL import Image, ImageDraw
from sqlalchemy import select, update

from pipeline.engine import live_settings as live
from pipeline.engine.errors import UserError
from pipeline.flows.screenshots import queries, service
from pipeline.flows.screenshots.frames import files, intake, retention
from pipeline.flows.screenshots.frames.intake import Frame, Intake
from pipeline.flows.screenshots.live_settings import live_settings
from pipeline.flows.screenshots.models import REJECTIONS, SHOTS, SOURCES
from pipeline.flows.screenshots.rules.duplicates import distance
from pipeline.reading.ocr import fingerprint
from pipeline.storage.context import Context
from tests.integration.screenshots.conftest import BEGIN, Hand, row_of, rows_of
from tests.integration.screenshots.test_intake import age, behind, stored_files
from tests.support.frames import TYPED, Desktop, draw, encoded, noise

EDITOR = Desktop(lines=12)


def take(context: Context, picture: Image.Image | bytes | Path, second: int = 0, **named: str) -> Intake:
    data = encoded(picture) if isinstance(picture, Image.Image) else picture
    source, at = named.pop("source", "screen:1"), BEGIN + timedelta(seconds=second)
    return intake.ingest(context, data, Frame(source, at, named.pop("app", ""), named.pop("window_title", "")))


def test_a_private_copy_of_a_frame_outlives_the_original(context: Context, hand: Hand) -> None:
    path = hand.file("one")
    data = path.read_bytes()
    intake = take(context, path)
    path.unlink()
    row = row_of(context, SHOTS, intake.shot_id or 0)
    stored = files.path_of(context.settings, row.file)
    assert intake.accepted
    assert (stored.read_bytes(), row.size_bytes, row.phash) == (data, len(data), fingerprint.read_frame(data).phash)
    if os.name == "posix":
        assert [stat.S_IMODE(path_or_folder.stat().st_mode) for path_or_folder in (stored, stored.parent)] == [
            0o600,
            0o700,
        ]


@pytest.mark.parametrize("name", ["..evil..png", "a\nb.png", "évènement 屏幕.PNG", "no-suffix"])
def test_names_of_stored_files_contain_no_name_of_the_users(context: Context, tmp_path: Path, name: str) -> None:
    path = tmp_path / "deep" / "down" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(encoded(noise("one")))
    assert take(context, path).accepted
    (stored,) = stored_files(context)
    assert Path(stored).suffix == ".png"
    assert Path(stored).stem.isalnum()


def test_the_same_capture_twice_is_one_row_and_one_file(context: Context, hand: Hand) -> None:
    first, second = hand.add("same", ts=BEGIN), hand.add("same", ts=BEGIN)
    assert (second.accepted, second.reason, second.shot_id) == (False, "known", first.shot_id)
    assert len(stored_files(context)) == 1
    assert queries.rejections(context) == []


def test_the_ledger_has_a_duplicates_distance_threshold_and_nearest_frame_and_no_file_stays(context: Context) -> None:
    first = take(context, draw(EDITOR))
    moved = [take(context, draw(EDITOR.but(clock="09:42", cursor=(1500, 800))), 1) for _ in range(2)]
    typed = take(context, draw(EDITOR.but(typed=TYPED)), 2)
    assert {(frame.accepted, frame.reason, frame.nearest_id) for frame in moved} == {
        (False, "duplicate", first.shot_id)
    }
    assert typed.accepted
    (row,) = rows_of(context, REJECTIONS)
    assert (row.distance, row.nearest_id, row.reason) == (moved[0].distance, first.shot_id, "duplicate")
    assert row.threshold == context.settings.screenshots.dedup_threshold
    assert len(row.sha256) == len(row.phash) == 64
    assert len(stored_files(context)) == 2


def test_the_ledger_has_the_wider_threshold_of_frames_rejected_under_pressure(context: Context) -> None:
    rules = context.settings.screenshots
    picture = noise("one").resize((640, 640), Image.Resampling.NEAREST)
    other = picture.copy()
    before = fingerprint.phash(picture)
    for row in range(0, 640, 10):
        ImageDraw.Draw(other).rectangle((0, row, 9, row + 9), fill="white")
        if distance(before, fingerprint.phash(other)) > rules.dedup_threshold:
            break
    bits = distance(before, fingerprint.phash(other))
    assert rules.dedup_threshold < bits <= rules.dedup_threshold_pressed
    take(context, picture)
    behind(context, 1)
    assert take(context, other, 1).reason == "duplicate"
    (row,) = rows_of(context, REJECTIONS)
    assert (row.threshold, row.distance) == (rules.dedup_threshold_pressed, bits)


def test_frames_like_old_frames_or_frames_of_other_sources_are_accepted(context: Context) -> None:
    take(context, draw(EDITOR))
    assert take(context, draw(EDITOR), 1, source="screen:2").accepted
    age(context, context.settings.screenshots.dedup_window_s + 1)
    assert take(context, draw(EDITOR), 2).accepted
    for number in range(context.settings.screenshots.dedup_frames):
        take(context, noise(f"{number}"), 3 + number)
    assert take(context, draw(EDITOR), 100).accepted


def test_recent_frames_are_the_latest_arrivals_when_the_clock_goes_back(context: Context) -> None:
    for number in range(context.settings.screenshots.dedup_frames):
        take(context, noise(f"{number}"), number)
    age(context, -7200)
    take(context, draw(EDITOR), -3600)
    assert take(context, draw(EDITOR), -7200).reason == "duplicate"


def test_an_inactive_source_is_refused_and_another_is_not(context: Context, hand: Hand) -> None:
    service.set_active(context, "window:7", active=False)
    assert hand.add(source="window:7").reason == "inactive"
    assert hand.add(source="window:8").accepted
    service.set_active(context, "window:7", active=True)
    assert hand.add(source="window:7").accepted
    assert len(stored_files(context)) == 2
    assert [row.reason for row in queries.rejections(context)] == ["inactive"]


@pytest.mark.parametrize(
    "source", ["", "screen", "screen:", "camera:1", "screen:../1", "screen:a b", "screen:" + "1" * 114]
)
def test_an_invalid_source_is_refused_before_the_picture_is_read(context: Context, hand: Hand, source: str) -> None:
    with pytest.raises(UserError, match="not a source") as error:
        take(context, hand.folder / "none.png", source=source)
    assert error.value.code == "bad_source"
    assert stored_files(context) == set()


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: b"", "not_an_image"),
        (lambda: b"%PDF-1.7\n", "not_an_image"),
        (lambda: encoded(noise("one"))[:2000], "corrupt"),
        (lambda: encoded(draw(), "JPEG")[:60_000], "corrupt"),
        (lambda: encoded(Image.new("1", (20_000, 20_000))), "too_many_pixels"),
    ],
    ids=["nothing", "PDF", "cut PNG", "cut JPEG", "huge"],
)
def test_an_invalid_picture_is_refused_and_the_ledger_has_the_reason(
    context: Context, make: Callable[[], bytes], code: str
) -> None:
    data = make()
    for _ in range(2):
        with pytest.raises(UserError, match="screen:1") as error:
            take(context, data)
        assert error.value.code == code
    (row,) = rows_of(context, REJECTIONS)
    assert row.reason == "refused"
    assert row.detail in str(error.value)
    assert stored_files(context) == set()


class TestSmallLimit:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {"PENSTOCK_SCREENSHOTS__MAX_IMAGE_MB": "1"}

    def test_a_picture_that_is_too_large_is_refused_unread(self, context: Context, tmp_path: Path) -> None:
        path = tmp_path / "large.png"
        path.write_bytes(encoded(noise("one")) + bytes(2**20))
        for picture in (path, path.read_bytes()):
            with pytest.raises(UserError, match="max_image_mb") as error:
                take(context, picture)
            assert error.value.code == "too_large"
        (row,) = rows_of(context, REJECTIONS)
        assert (row.reason, row.sha256) == ("refused", "")
        assert "1 MB" in row.detail


@pytest.mark.parametrize(("name", "code"), [("none.png", "not_found"), (".", "not_a_file"), ("a\0b.png", "io_error")])
def test_a_path_that_is_not_a_file_is_refused_by_name(context: Context, tmp_path: Path, name: str, code: str) -> None:
    with pytest.raises(UserError) as error:
        take(context, tmp_path / name)
    assert error.value.code == code
    assert queries.rejections(context) == []


def test_a_time_without_zone_is_refused(context: Context) -> None:
    with pytest.raises(UserError, match="zone"):
        intake.ingest(context, encoded(noise("one")), Frame("screen:1", datetime(2026, 3, 1)))  # noqa: DTZ001


def test_text_that_databases_refuse_is_replaced(context: Context) -> None:
    intake = take(context, noise("one"), app="edi\0tor", window_title="\ud800 Straße 屏幕\n" + "x" * 1000)
    row = queries.screenshot(context, intake.shot_id or 0)
    assert row.app == "edi tor"
    assert row.window_title.startswith("  Straße 屏幕 ")


class TestExclusions:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {
            "PENSTOCK_SCREENSHOTS__EXCLUDED_APPS": '["*keepass*"]',
            "PENSTOCK_SCREENSHOTS__EXCLUDED_TITLES": '["*Private Browsing*"]',
        }

    @pytest.mark.parametrize(("app", "title"), [("KeePassXC", "x"), ("firefox", "Bank — PRIVATE browsing")])
    def test_an_excluded_frame_leaves_only_a_row_in_the_ledger(self, context: Context, app: str, title: str) -> None:
        assert take(context, draw(), app=app, window_title=title).reason == "excluded"
        assert take(context, Path("never read.png"), 1, app=app, window_title=title).reason == "excluded"
        assert stored_files(context) == set()
        rows = rows_of(context, REJECTIONS)
        assert [(row.reason, row.sha256, row.phash, row.distance) for row in rows] == [("excluded", "", "", None)] * 2
        assert all(app not in str(row) and "browsing" not in str(row) for row in rows)

    def test_other_frames_are_accepted(self, context: Context) -> None:
        assert take(context, draw(), app="firefox", window_title="News").accepted

    def test_live_exclusions_add_to_those_of_the_settings(self, context: Context) -> None:
        exclusions = service.exclude(context, apps=["Signal", " signal", "*bank*"])
        assert (exclusions.apps, exclusions.titles, exclusions.fixed_apps) == (["Signal", "*bank*"], [], ["*keepass*"])
        for app in ("signal", "MyBank", "KeePassXC"):
            assert take(context, draw(), app=app).reason == "excluded"
        assert service.exclude(context, titles=["*salary*"]).apps == ["Signal", "*bank*"], "None keeps the values"
        assert take(context, draw(), app="firefox", window_title="Salary 2026").reason == "excluded"
        assert service.exclude(context, apps=[], titles=[]) == service.exclusions(context)
        assert take(context, draw(), app="KeePassXC").reason == "excluded"
        assert take(context, draw(), app="signal").accepted

    @pytest.mark.parametrize(
        ("pattern", "says"), [("*", "exclude everything"), ("a;b", "semicolon"), ("x" * 201, "200 characters")]
    )
    def test_an_invalid_pattern_is_refused(self, context: Context, pattern: str, says: str) -> None:
        with pytest.raises(UserError, match=says):
            service.exclude(context, apps=[pattern])
        assert service.exclusions(context).apps == []


def test_a_frame_that_becomes_new_after_the_prediction_has_its_file(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake.Candidate, "_seems_new", lambda *_: False)
    frame = take(context, noise("one"))
    assert frame.accepted
    assert stored_files(context) == {row_of(context, SHOTS, frame.shot_id or 0).file}


def test_a_frame_that_becomes_known_after_the_prediction_leaves_no_file(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(context, draw())
    monkeypatch.setattr(intake.Candidate, "_seems_new", lambda *_: True)
    assert take(context, draw()).reason == "known"
    assert take(context, draw(), 1).reason == "duplicate"
    assert len(stored_files(context)) == 1


def test_a_file_stays_if_the_commit_of_its_row_has_no_answer(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(*_: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(intake.Candidate, "_decide", cut_off)
    with pytest.raises(ConnectionError):
        take(context, noise("one"))
    assert len(stored_files(context)) == 1


def test_a_full_disk_is_a_plain_error_and_leaves_no_row(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        take(context, noise("one"))
    with context.db.read() as session:
        assert session.execute(select(SHOTS.c.id)).all() == []
    assert stored_files(context) == set()


def test_a_source_shows_its_last_frames_time_and_pressure(context: Context) -> None:
    behind(context, 2)
    take(context, noise("one"))
    with context.db.transaction() as session:
        row = session.execute(select(SOURCES)).one()
        assert row.pressure == 2
        session.execute(update(SOURCES).values(seen_at=BEGIN))
    take(context, noise("two"), 1)
    with context.db.read() as session:
        assert session.execute(select(SOURCES.c.seen_at)).scalar_one() > BEGIN


@pytest.mark.parametrize("apart_s", [0, 1])
def test_one_of_several_simultaneous_intakes_of_the_same_picture_is_accepted(context: Context, apart_s: int) -> None:
    barrier = threading.Barrier(4)
    data = encoded(draw(EDITOR))

    def add(number: int) -> Intake:
        barrier.wait(60)
        return take(context, data, number * apart_s)

    with ThreadPoolExecutor(4) as pool:
        intakes = list(pool.map(add, range(4)))
    assert sorted(taking.reason for taking in intakes) == ["", *["duplicate" if apart_s else "known"] * 3]
    assert len({taking.shot_id or taking.nearest_id for taking in intakes}) == 1
    assert len(stored_files(context)) == 1


def test_a_live_threshold_applies_from_the_next_frame_on(context: Context) -> None:
    assert take(context, draw(EDITOR)).threshold == 10
    known = live_settings(context.settings)
    context.db.run(lambda session: live.change(session, known, "screenshots.dedup_threshold", "0"))
    assert take(context, draw(EDITOR.but(seed=9)), 1).threshold == 0


def test_the_ledger_is_deleted_after_its_days(context: Context) -> None:
    now = datetime.now(UTC)
    for age_days in (1, 29, 31):
        with context.db.transaction() as tx:
            tx.now = now - timedelta(days=age_days)
            intake.note_rejection(tx, "screen:1", tx.now, "duplicate", sha256=str(age_days))
    assert retention.ledger(context).due(context) == 1
    assert retention.ledger(context).remove(context) == 1
    with context.db.read() as session:
        assert sorted(session.execute(select(REJECTIONS.c.sha256)).scalars()) == ["1", "29"]
