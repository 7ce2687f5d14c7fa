"""Songs come from a folder of real audio files."""

import errno
import os
import wave
from pathlib import Path

import pytest
from mutagen.id3 import ID3, TALB, TCON, TDRC, TIT2, TPE1, UFID
from mutagen.wave import WAVE
from sqlalchemy import select

from pipeline.engine.errors import UserError
from pipeline.flows.music import queries
from pipeline.flows.music.library import sync
from pipeline.flows.music.library.songs import LibraryError
from pipeline.flows.music.models import SONGS
from pipeline.settings import MusicSettings
from pipeline.storage.context import Context


@pytest.fixture
def folder(context: Context, tmp_path: Path) -> Path:
    """A folder with one tagged song, as the library."""
    context.settings.music = MusicSettings(folder=tmp_path)
    song(tmp_path / "a" / "rain.wav", title="Rain", artist="Ann", mbid="mb-1")
    return tmp_path


def song(path: Path, *, title: str = "", artist: str = "", mbid: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"\0" * 16000)
    if title:
        audio = WAVE(path)
        audio.add_tags()
        tags = audio.tags
        assert isinstance(tags, ID3)
        for frame in (
            TIT2(text=title),
            TPE1(text=artist),
            TALB(text="Weather"),
            TCON(text=["Jazz", "Ambient"]),
            TDRC(text="1999-04-01"),
            UFID(owner="http://musicbrainz.org", data=mbid.encode()),
        ):
            tags.add(frame)
        audio.save()
    return path


def test_tags_are_read_and_a_file_without_tags_gets_its_name_as_title(context: Context, folder: Path) -> None:
    song(folder / "untagged.wav")
    (folder / "broken.mp3").write_bytes(b"not audio")
    (folder / "notes.txt").write_text("no song")
    sync.sync_libraries(context)
    with context.db.read() as session:
        songs = {row.title: row for row in session.execute(select(SONGS))}
    assert set(songs) == {"Rain", "untagged", "broken"}
    rain = songs["Rain"]
    assert (rain.artist, rain.album, rain.genre, rain.year) == ("Ann", "Weather", "Jazz, Ambient", 1999)
    assert (rain.duration_s, rain.musicbrainz_id, rain.path) == (1, "mb-1", "a/rain.wav")


def test_a_file_without_tags_is_found_by_its_title_alone_or_by_the_files_name(context: Context, folder: Path) -> None:
    (folder / "a" / "rain.wav").unlink()
    song(folder / "b" / "Anna Vale - Rain.wav")
    song(folder / "b" / "Anna Vale - Train.wav")
    sync.sync_libraries(context)
    for reference in ("Rain", "rain", "Anna Vale - Rain", "Anna Vale - Rain.wav", "b/Anna Vale - Rain.wav"):
        assert queries.song(context, reference).title == "Anna Vale - Rain", reference
    with pytest.raises(UserError, match="no song ain"):
        queries.song(context, "ain")


def test_pipes_and_links_out_of_the_folder_are_not_songs(
    context: Context, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    os.mkfifo(folder / "x.mp3")
    (folder / "device.mp3").symlink_to("/dev/zero")
    (folder / "private.wav").symlink_to(song(tmp_path_factory.mktemp("home") / "private.wav", title="Private"))
    (folder / "same.wav").symlink_to("a/rain.wav")
    report = sync.sync_libraries(context)
    assert (report.seen, report.complete) == (2, True)
    with context.db.read() as session:
        assert sorted(session.execute(select(SONGS.c.path)).scalars()) == ["a/rain.wav", "same.wav"]


def test_a_song_on_an_absent_disk_is_not_missing(
    context: Context, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sync.sync_libraries(context).seen == 1
    stat = Path.stat

    def away(path: Path, **options: bool) -> os.stat_result:
        if path.name == "rain.wav":
            raise OSError(errno.ESTALE, "stale file handle", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", away)
    report = sync.sync_libraries(context)
    assert (report.seen, report.missing, report.complete) == (0, 0, False)


def test_files_with_unreadable_tags_or_invalid_names_are_songs(context: Context, folder: Path) -> None:
    (folder / "lies.mp3").write_bytes(b"ID3\3\0\0\x7f\x7f\x7f\x7f")
    song(Path(os.fsdecode(os.fsencode(folder) + b"/not \xff text.wav")), title="Odd name")
    report = sync.sync_libraries(context)
    assert (report.seen, report.complete) == (3, True)
    with context.db.read() as session:
        assert set(session.execute(select(SONGS.c.title)).scalars()) == {"lies", "Odd name", "Rain"}


def test_file_that_was_moved_is_the_same_song(context: Context, folder: Path) -> None:
    sync.sync_libraries(context)
    (folder / "b").mkdir()
    (folder / "a" / "rain.wav").rename(folder / "b" / "rain.wav")
    report = sync.sync_libraries(context)
    assert (report.relinked, report.added, report.missing) == (1, 0, 0)


def test_missing_file_is_flagged_but_an_empty_folder_flags_nothing(context: Context, folder: Path) -> None:
    lost_file = song(folder / "gone.wav", title="Gone")
    sync.sync_libraries(context)
    lost_file.unlink()
    assert sync.sync_libraries(context).missing == 1
    (folder / "a" / "rain.wav").unlink()
    report = sync.sync_libraries(context)
    assert report.missing == 0
    assert report.doubtful


def test_missing_folder_is_an_error(context: Context, folder: Path) -> None:
    context.settings.music = MusicSettings(folder=folder / "nowhere")
    with pytest.raises(LibraryError, match="there is no folder"):
        sync.sync_libraries(context)
