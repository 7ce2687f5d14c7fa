"""A process makes a few pictures ahead of their calls, and none of deleted frames."""

import pytest
from sqlalchemy import select

from pipeline.engine.errors import UnitError
from pipeline.flows.screenshots.frames import files
from pipeline.flows.screenshots.models import SHOTS
from pipeline.flows.screenshots.work import analysis, pictures, shard
from pipeline.flows.screenshots.work.pictures import Pictures
from pipeline.reading.ocr.screen_frames import jpeg_of
from pipeline.storage.context import Context
from tests.integration.screenshots.conftest import ME, Hand
from tests.support.waiting import wait_until

pytestmark = pytest.mark.both_databases


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_SCREENSHOTS__SHARD_SIZE": "2"}


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the files whose pictures are made."""
    names: list[str] = []

    def counted(path: object) -> bytes:
        names.append(str(path))
        return jpeg_of(path)  # type: ignore[arg-type]

    monkeypatch.setattr(pictures, "jpeg_of", counted)
    return names


def files_of(context: Context, shots: list[int]) -> list[str]:
    with context.db.read() as session:
        file_names = dict(session.execute(select(SHOTS.c.id, SHOTS.c.file)).all())
    return [str(files.path_of(context.settings, file_names[shot])) for shot in shots]


def ends(ahead: Pictures, context: Context) -> None:
    """Wait until the thread ends and drops its pictures, because no message follows."""
    ahead._keep_s = 0.05
    ahead.make_ahead(context)
    wait_until(lambda: ahead._thread is None, 60, "the thread ended")
    assert ahead._ready == {}


def test_pictures_of_waiting_shards_are_made_once_and_used(context: Context, hand: Hand, rendered: list[str]) -> None:
    batch, shots = hand.batch()
    analysis.claim(context, batch)
    assert shard.claim(context, batch, ME) is not None
    ahead = Pictures(keep_s=600)
    ahead.make_ahead(context)
    waiting = files_of(context, shots[2:])
    wait_until(lambda: len(ahead._ready) == 3, 60, "three pictures")
    assert sorted(rendered) == sorted(waiting), "without the claimed shard's pictures"
    path = files.path_of(context.settings, waiting[0].rpartition("/")[2])
    assert ahead.take(path) == jpeg_of(path)
    assert len(rendered) == 3
    assert ahead.take(path) == jpeg_of(path)
    assert len(rendered) == 4, "a used picture is dropped"
    ends(ahead, context)


def test_pictures_of_deleted_or_analysed_frames_are_dropped(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch()
    analysis.claim(context, batch)
    ahead = Pictures(keep_s=600)
    ahead.make_ahead(context)
    wait_until(lambda: len(ahead._ready) == 5, 60, "five pictures")
    deleted = files_of(context, shots)[4]
    files.discard(context.settings, [deleted.rpartition("/")[2]])
    assert shard.claim(context, batch, ME) is not None
    ahead.make_ahead(context)
    remaining = sorted(files_of(context, shots[2:4]))
    wait_until(lambda: sorted(map(str, ahead._ready)) == remaining, 60, "two pictures")
    with pytest.raises(UnitError, match="does not exist"):
        ahead.take(files.path_of(context.settings, deleted.rpartition("/")[2]))
    ends(ahead, context)


def test_pictures_stay_within_the_memory_limit(
    context: Context, hand: Hand, rendered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "MAX_BYTES", 1)
    batch, _ = hand.batch()
    analysis.claim(context, batch)
    ahead = Pictures(keep_s=600)
    ahead.make_ahead(context)
    wait_until(lambda: rendered, 60, "a picture")
    ends(ahead, context)
    assert len(rendered) == 1
