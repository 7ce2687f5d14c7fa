"""Songs come from a real Subsonic server, which may misbehave."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import pytest
from pydantic import SecretStr
from sqlalchemy import event, select, update

from pipeline.engine.errors import UserError
from pipeline.flows.music.library import sync
from pipeline.flows.music.library.songs import LibraryError, SongTags, SyncReport, flag_missing, store
from pipeline.flows.music.models import SONGS
from pipeline.settings import MusicSettings
from pipeline.storage.context import Context
from tests.support.subsonic_server import Fault, SubsonicServer, synthetic


@pytest.fixture
def server() -> Iterator[SubsonicServer]:
    with SubsonicServer(25) as server:
        yield server


@pytest.fixture
def library(context: Context, server: SubsonicServer) -> Context:
    """The context, with the server as its library and small pages."""
    context.settings.music = MusicSettings(
        server_url=server.url, user="ann", password=SecretStr("sesame"), page_size=10, timeout_s=5
    )
    return context


def rows(context: Context) -> dict[str, object]:
    with context.db.read() as session:
        return {row.server_id: row for row in session.execute(select(SONGS))}


def flagged(context: Context) -> set[str]:
    with context.db.read() as session:
        return set(session.execute(select(SONGS.c.server_id).where(SONGS.c.missing_since.is_not(None))).scalars())


def test_sync_reads_all_pages_and_a_second_one_changes_nothing(library: Context) -> None:
    assert sync.sync_libraries(library) == SyncReport(seen=25, added=25, complete=True)
    assert sync.sync_libraries(library) == SyncReport(seen=25, complete=True)
    row = rows(library)["s000003"]
    assert (row.title, row.artist, row.status) == ("Song 3", "Artist 3", "PENDING")  # type: ignore[attr-defined]


def test_password_is_in_no_request_and_each_call_has_its_own_salt(library: Context, server: SubsonicServer) -> None:
    sync.sync_libraries(library)
    assert not [request for request in server.requests if "sesame" in request]
    assert len({request.partition("&s=")[2][:16] for request in server.requests}) == len(server.requests)


def test_progress_is_reported_after_each_page(library: Context) -> None:
    reports: list[tuple[int, int | None]] = []
    sync.sync_libraries(library, lambda seen, total: reports.append((seen, total)))
    assert reports == [(10, 25), (20, 25), (25, 25)]


def test_missing_song_is_flagged_and_returns_with_all_its_columns(library: Context, server: SubsonicServer) -> None:
    sync.sync_libraries(library)
    server.library.hidden = {4}
    assert sync.sync_libraries(library).missing == 1
    assert flagged(library) == {"s000004"}
    server.library.hidden = set()
    assert sync.sync_libraries(library).returned == 1
    assert not flagged(library)


@pytest.mark.parametrize("left", [0, 12])
def test_most_songs_are_flagged_only_when_a_person_confirms(
    library: Context, server: SubsonicServer, left: int
) -> None:
    sync.sync_libraries(library)
    server.library.hidden = set(range(left, 25))
    report = sync.sync_libraries(library)
    assert (report.missing, report.complete, report.doubtful) == (0, False, True)
    assert f"{25 - left} of 25 songs are missing, so none is flagged" in report.note
    assert not flagged(library)
    assert sync.sync_libraries(library, accept_missing=True).missing == 25 - left
    assert sync.sync_libraries(library).complete, "flagged songs count no more"


@pytest.mark.parametrize("change", ["count", "scanning", "unknown"])
def test_a_possibly_incomplete_listing_flags_no_song(library: Context, server: SubsonicServer, change: str) -> None:
    sync.sync_libraries(library)
    server.library.hidden = {1, 2, 3}
    match change:
        case "count":
            server.library.count = 25
        case "scanning":
            server.library.scanning = True
        case "unknown":
            server.library.knows_count = False
    report = sync.sync_libraries(library)
    assert (report.missing, report.complete) == (0, False)
    assert "none is flagged" in report.note
    assert not flagged(library)


def test_a_truncated_page_flags_no_song(library: Context, server: SubsonicServer) -> None:
    sync.sync_libraries(library)
    server.faults.extend([None, Fault("cut")])
    report = sync.sync_libraries(library)
    assert report.missing == 0
    assert not flagged(library)


@pytest.mark.parametrize("by", ["path", "musicBrainzId"])
def test_songs_with_new_ids_are_relinked_and_keep_paid_results(
    library: Context, server: SubsonicServer, by: str
) -> None:
    sync.sync_libraries(library)
    with library.db.transaction() as session:
        session.execute(update(SONGS).values(status="COMPLETED", analysis_json="{}", description="paid"))
    other = {"path": "musicBrainzId", "musicBrainzId": "path"}[by]
    server.library.song = lambda number: synthetic(number) | {"id": f"new{number}", other: f"x{number}"}
    report = sync.sync_libraries(library)
    assert (report.relinked, report.added, report.missing) == (25, 0, 0)
    linked = rows(library)
    assert set(linked) == {f"new{number}" for number in range(25)}
    assert {row.description for row in linked.values()} == {"paid"}  # type: ignore[attr-defined]


def test_songs_with_new_ids_of_an_interrupted_sync_are_relinked(library: Context, server: SubsonicServer) -> None:
    sync.sync_libraries(library)
    server.library.song = lambda number: synthetic(number) | {"id": f"new{number}"}
    server.faults.extend([None, None, Fault("html")])
    with pytest.raises(LibraryError):
        sync.sync_libraries(library)
    report = sync.sync_libraries(library)
    assert (report.relinked, report.added, report.missing) == (25, 0, 0)
    assert set(rows(library)) == {f"new{number}" for number in range(25)}


def test_songs_with_paid_results_are_linked_first(library: Context, server: SubsonicServer) -> None:
    server.library.song = lambda number: synthetic(number) | {"musicBrainzId": "same"}
    server.library.total = 2
    sync.sync_libraries(library)
    with library.db.transaction() as session:
        paid = {"status": "COMPLETED", "analysis_json": "{}", "description": "paid", "analysed_at": datetime.now(UTC)}
        session.execute(update(SONGS).where(SONGS.c.server_id == "s000001").values(**paid))
    server.library.song = lambda number: synthetic(number) | {"id": "new", "path": "x", "musicBrainzId": "same"}
    server.library.total = 1
    assert sync.sync_libraries(library).relinked == 1
    assert rows(library)["new"].description == "paid"  # type: ignore[attr-defined]


@pytest.mark.both_databases
def test_a_library_whose_ids_all_changed_is_linked_by_few_statements(library: Context, server: SubsonicServer) -> None:
    library.settings.music = library.settings.music.model_copy(update={"page_size": 500})
    server.library.total = 3_000
    sync.sync_libraries(library)
    server.library.song = lambda number: synthetic(number) | {"id": f"new{number}"}
    statements: list[str] = []
    event.listen(library.db.engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    assert sync.sync_libraries(library).relinked == 3_000
    assert len(statements) < 150


def test_two_simultaneous_syncs_flag_no_listed_song(library: Context) -> None:
    """The first sync continues after the second has seen all songs."""
    first, second = datetime.now(UTC), datetime.now(UTC) + timedelta(seconds=1)
    page = [SongTags.of(f"s{n}", title=f"Song {n}") for n in range(5)]
    for started in (first, second, first):
        library.db.run(lambda session: store(session, "server", [s for s in page if s], started))  # noqa: B023
    for started in (second, first):
        flagged_now = library.db.run(lambda session: flag_missing(session, "server", started))  # noqa: B023
        assert flagged_now == 0


def test_two_copies_of_one_recording_stay_two_songs(library: Context, server: SubsonicServer) -> None:
    server.library.song = lambda number: synthetic(number) | {"musicBrainzId": "same"}
    assert sync.sync_libraries(library).added == 25
    assert sync.sync_libraries(library) == SyncReport(seen=25, complete=True)


FAULTS = [
    (Fault("html"), "not_subsonic", "web page"),
    (Fault("malformed"), "not_subsonic", "instead of the Subsonic API"),
    (Fault("status", status=502), "failing", "HTTP 502"),
    (Fault("status", status=302), "not_subsonic", "HTTP 302"),
    (Fault("error", code=40), "wrong_password", "wrong user or password"),
    (Fault("error", code=41), "token_auth", "token"),
    (Fault("error", code=30), "protocol", "too old"),
    (Fault("error", code=0), "server_error", "scripted"),
    (Fault("close"), "unreachable", "cannot be reached"),
]


@pytest.mark.parametrize(("fault", "code", "says"), FAULTS)
def test_an_error_of_the_server_is_reported_in_a_plain_sentence(
    library: Context, server: SubsonicServer, fault: Fault, code: str, says: str
) -> None:
    sync.sync_libraries(library)
    server.faults.extend([None, fault])
    with pytest.raises(LibraryError, match=says) as caught:
        sync.sync_libraries(library)
    assert caught.value.code == code
    assert "sesame" not in str(caught.value)
    assert "t=" not in str(caught.value)
    assert not flagged(library)


def test_wrong_password_is_an_error(library: Context, server: SubsonicServer) -> None:
    server.password = "other"
    with pytest.raises(LibraryError, match="PENSTOCK_MUSIC__PASSWORD"):
        sync.sync_libraries(library)


def test_a_request_to_a_hanging_server_times_out(library: Context, server: SubsonicServer) -> None:
    library.settings.music = library.settings.music.model_copy(update={"timeout_s": 0.3})
    server.faults.append(Fault("hang"))
    with pytest.raises(LibraryError, match=r"within 0\.3 s") as caught:
        sync.sync_libraries(library)
    assert caught.value.transient


def test_server_that_is_down_is_unreachable(library: Context) -> None:
    library.settings.music = library.settings.music.model_copy(update={"server_url": "http://127.0.0.1:9"})
    with pytest.raises(LibraryError, match="cannot be reached"):
        sync.sync_libraries(library)


def test_a_server_that_repeats_its_first_page_is_an_error(library: Context, server: SubsonicServer) -> None:
    server.library.pages = False
    with pytest.raises(LibraryError, match="again and again"):
        sync.sync_libraries(library)


def test_malformed_songs_never_stop_a_sync(library: Context, server: SubsonicServer) -> None:
    odd: list[dict[str, Any]] = [
        {"id": "a"},
        {"id": 5, "title": None, "path": "x/y.mp3"},
        {"id": "b", "title": "n\x00ul \ud800", "year": "1999"},
        {"id": "c" * 300, "title": "long id"},
        {"id": "d", "title": "t" * 5000, "path": "p" * 5000, "duration": -1},
        {"title": "no id"},
        {"id": "e", "isDir": True},
        {"id": "f", "title": "ok", "genre": ["list"]},
    ]
    server.library.song = lambda number: odd[number]
    server.library.total = len(odd)
    sync.sync_libraries(library)
    assert set(rows(library)) == {"a", "5", "b", "d", "f"}


def test_missing_library_is_an_error(context: Context) -> None:
    with pytest.raises(UserError, match="PENSTOCK_MUSIC__SERVER_URL"):
        sync.sync_libraries(context)


def test_preview_writes_nothing(library: Context, server: SubsonicServer) -> None:
    assert sync.preview(library) == 25
    assert rows(library) == {}


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
class TestLarge:
    @pytest.mark.rotating
    def test_a_hundred_thousand_songs_are_read_in_bounded_memory(
        self, library: Context, server: SubsonicServer
    ) -> None:
        library.settings.music = library.settings.music.model_copy(update={"page_size": 500})
        server.library.total = 5_000
        sync.sync_libraries(library)
        server.library.total = 100_000
        process = psutil.Process()
        before = process.memory_info().rss
        report = sync.sync_libraries(library)
        grown = process.memory_info().rss - before
        assert (report.seen, report.added, report.complete) == (100_000, 95_000, True)
        assert grown < 60_000_000
