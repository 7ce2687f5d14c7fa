"""Bringing the rows in step with the libraries: page by page, so that memory does not grow with them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import structlog

from pipeline.engine.errors import UserError
from pipeline.flows.music.library import songs as library
from pipeline.flows.music.library.folder import MusicFolder
from pipeline.flows.music.library.songs import FOLDER, SERVER, LibraryError, Listing, SongTags, SyncReport
from pipeline.flows.music.library.subsonic import SubsonicServer
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
OnPage = Callable[[int, int | None], None]
"""Called after each page with the songs seen so far, and how many there are, if the library says."""


@dataclass
class Source:
    """A library that is open: its songs, how many it says it has, and what could not be read."""

    name: str
    songs: Callable[[], Iterator[list[SongTags]]]
    count: Callable[[], Listing | None]
    unreadable: Callable[[], int] = lambda: 0


def sources(context: Context, close: ExitStack, folder: Path | None = None) -> list[Source]:
    """`folder`, or the libraries that are configured. Raises `UserError` if there is none."""
    settings = context.settings.music
    if folder is not None:
        return [_folder(MusicFolder(folder))]
    found = []
    if settings.server_url:
        server = close.enter_context(SubsonicServer(settings))
        found.append(Source(SERVER, server.songs, server.count))
    if settings.folder:
        found.append(_folder(MusicFolder(settings.folder)))
    if not found:
        raise UserError(
            "no music library is named: set PENSTOCK_MUSIC__SERVER_URL with PENSTOCK_MUSIC__USER and "
            "PENSTOCK_MUSIC__PASSWORD, or PENSTOCK_MUSIC__FOLDER", code="no_library",
        )  # fmt: skip
    return found


def _folder(folder: MusicFolder) -> Source:
    # What the walk saw is all there is, unless something could not be read.
    return Source(FOLDER, folder.songs, lambda: Listing(0, scanning=False, scanned_at=""), lambda: folder.unreadable)


def sync(
    context: Context,
    on_page: OnPage = lambda seen, total: None,  # noqa: ARG005
    folder: Path | None = None,
) -> SyncReport:
    """Read all libraries, or `folder` alone.

    Raises `UserError` when one cannot be read: what came until then is kept, and nothing is flagged.
    """
    with ExitStack() as close:
        report = SyncReport(complete=True)
        for source in sources(context, close, folder):
            report.add(_sync(context, source, on_page))
    log.info("music.synced", **vars(report))
    return report


def _sync(context: Context, source: Source, on_page: OnPage) -> SyncReport:
    started = datetime.now(UTC)
    before = source.count()
    report = SyncReport(complete=True)
    for page in source.songs():
        stored = _store(context, source.name, page, started)
        if stored.seen and stored.repeated == stored.seen:
            message = f"the music {source.name} gives the same songs again and again: it does not page its listing"
            raise LibraryError(message, code="bad_reply")
        report.add(stored)
        on_page(report.seen, before.count or None if before else None)
    after = source.count()
    report.relinked = _relink(context, source.name, started)
    # A sync that was broken off before may have added some of them.
    report.added = max(0, report.added - report.relinked)
    why = library.why_incomplete(before, after, report)
    if source.unreadable():
        why = f"{source.unreadable()} files or folders could not be read"
    report.complete = not why
    _flag(context, source, started, report, why)
    return report


def _relink(context: Context, name: str, started: datetime) -> int:
    """Link songs again that came under other ids; some at a time, for after a rescan that may be all of them."""
    linked = 0
    for by in ("path", "musicbrainz_id"):
        for paid in (True, False):
            with context.db.read() as session:
                windows = library.windows(session, name, started)
            for ids in windows:
                link = partial(library.relink, library=name, started=started, name=by, ids=ids, paid=paid)
                linked += context.db.run(link)
    return linked


def _flag(context: Context, source: Source, started: datetime, report: SyncReport, why: str) -> None:
    if not why:
        now = datetime.now(UTC)
        report.missing = context.db.run(lambda session: library.flag_missing(session, source.name, started, now))
        return
    with context.db.read() as session:
        unseen = library.count_unseen(session, source.name, started)
    if unseen or not report.seen:
        report.note = f"{unseen} songs were not listed, but none is flagged as missing: {why}"


def _store(context: Context, name: str, page: list[SongTags], started: datetime) -> SyncReport:
    return context.db.run(lambda session: library.store(session, name, page, started))


def preview(context: Context) -> int:
    """How many songs a sync would add. Writes nothing."""
    new = 0
    with ExitStack() as close:
        for source in sources(context, close):
            for page in source.songs():
                with context.db.read() as session:
                    new += library.count_new(session, source.name, page)
    return new
