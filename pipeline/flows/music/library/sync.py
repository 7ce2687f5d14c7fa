"""Syncs the rows with the libraries, page by page, so that memory does not grow with them."""

from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Union

import structlog

from pipeline.engine import losses
from pipeline.engine.errors import UserError
from pipeline.flows.music.library import songs
from pipeline.flows.music.library.folder import MusicFolder
from pipeline.flows.music.library.songs import LibraryError, SyncReport
from pipeline.storage.context import Context

if TYPE_CHECKING:
    from pipeline.flows.music.library.subsonic import SubsonicServer

log = structlog.get_logger(__name__)
Source = Union["SubsonicServer", MusicFolder]
OnPage = Callable[[int, int | None], None]
"""Called after each page with the number of songs so far, and the library's number of songs, if known."""


def sources(context: Context, close: ExitStack, folder: Path | None = None) -> list[Source]:
    """Return `folder` as a library, or the configured libraries. Raises `UserError` without any.

    `close` closes their connections.
    """
    settings = context.settings.music
    if folder is not None:
        return [MusicFolder(folder)]
    libraries: list[Source] = []
    if settings.server_url:
        from pipeline.flows.music.library.subsonic import SubsonicServer  # noqa: PLC0415  # a client of HTTP

        libraries.append(close.enter_context(SubsonicServer(settings)))
    if settings.folder:
        libraries.append(MusicFolder(settings.folder))
    if not libraries:
        raise UserError(
            "no music library is named: set PENSTOCK_MUSIC__SERVER_URL with PENSTOCK_MUSIC__USER and "
            "PENSTOCK_MUSIC__PASSWORD, or PENSTOCK_MUSIC__FOLDER",
            code="no_library",
        )
    return libraries


def sync_libraries(
    context: Context,
    on_page: OnPage = lambda seen, total: None,  # noqa: ARG005
    folder: Path | None = None,
    *,
    accept_missing: bool = False,
) -> SyncReport:
    """Sync the rows with all libraries, or only with `folder`, and return the sum of the figures.

    If the loss of songs is doubtful (`engine.losses`), flags none as missing, unless `accept_missing`.

    Raises `UserError` if one cannot be read: the pages before stay, its sync flags no song as missing, and libraries
    after it are not synced.
    """
    with ExitStack() as close:
        report = SyncReport(complete=True)
        for source in sources(context, close, folder):
            report.add(_sync(context, source, on_page, accept_missing=accept_missing))
    log.info("music.synced", **vars(report))
    return report


def _sync(context: Context, source: Source, on_page: OnPage, *, accept_missing: bool) -> SyncReport:
    started = context.db.now()
    before = source.count()
    report = SyncReport(complete=True)
    for page in source.songs():
        stored = context.db.run(partial(songs.store, library=source.name, songs=page, started=started))
        if stored.seen and stored.repeated == stored.seen:
            message = f"the music {source.name} lists the same songs again and again: it ignores the offset"
            raise LibraryError(message, code="bad_reply")
        report.add(stored)
        on_page(report.seen, before.count or None if before else None)
    after = source.count()
    report.relinked = _relink(context, source.name, started)
    # An earlier, interrupted sync may have added some of them.
    report.added = max(0, report.added - report.relinked)
    why = songs.why_incomplete(before, after, report)
    if source.unreadable:
        why = f"{source.unreadable} files or folders could not be read"
    _flag(context, source, started, report, why, accept_missing=accept_missing)
    return report


def _relink(context: Context, name: str, started: datetime) -> int:
    """Keep known songs under the new ids that the library lists for them, and return how many; window by window, since
    a rescan may change all ids."""
    linked = 0
    for by in ("path", "musicbrainz_id"):
        for paid in (True, False):
            with context.db.read() as session:
                windows = songs.windows(session, name, started)
            for ids in windows:
                link = partial(songs.relink, library=name, started=started, name=by, ids=ids, paid=paid)
                linked += context.db.run(link)
    return linked


def _flag(
    context: Context, source: Source, started: datetime, report: SyncReport, why: str, *, accept_missing: bool
) -> None:
    """Flag the missing songs, unless the listing is incomplete (`why`) or the loss is doubtful."""
    with context.db.read() as session:
        known, missing = songs.count_known(session, source.name, started)
    doubt = "" if why or accept_missing else losses.doubt(known, missing, "songs", "none is flagged as missing")
    report.complete, report.doubtful = not (why or doubt), bool(doubt)
    if why and missing:
        report.note = f"{missing} songs were not listed, but none is flagged as missing: {why}"
    else:
        report.note = doubt or ("" if report.seen else "the library lists no songs")
    if report.complete:
        report.missing = context.db.run(lambda tx: songs.flag_missing(tx, source.name, started))


def preview(context: Context) -> int:
    """Read the configured libraries completely, and return how many songs a sync would add. Writes nothing."""
    new = 0
    with ExitStack() as close:
        for source in sources(context, close):
            for page in source.songs():
                with context.db.read() as session:
                    new += songs.count_new(session, source.name, page)
    return new
