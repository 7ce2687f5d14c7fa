"""Songs as libraries list them, and how a listing changes the rows: add, change, relink, flag as missing."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any, cast

from sqlalchemy import CursorResult, and_, delete, func, insert, select, update
from sqlalchemy.orm import Session

from pipeline.engine.errors import UserError
from pipeline.engine.transaction import Tx
from pipeline.engine.wire import HIDDEN, VIEW
from pipeline.flows.music import fulltext
from pipeline.flows.music.models import SONGS, Song
from pipeline.flows.music.states import SongStatus
from pipeline.providers.replies import clean

SERVER, FOLDER = "server", "folder"
_WINDOW = 500
MAX_ID = 255


class LibraryError(UserError):
    """A library cannot be listed. `transient`: a retry may succeed."""

    def __init__(self, message: str, *, code: str, transient: bool = False) -> None:
        super().__init__(message, code=code)
        self.transient = transient


@dataclass(frozen=True)
class Listing:
    """A server's statement about its songs: their number, whether it is scanning, and the time of its last scan."""

    count: int
    scanning: bool
    scanned_at: str


@dataclass(frozen=True)
class SongTags:
    """A library's tags of a song."""

    server_id: str
    title: str
    artist: str = ""
    album: str = ""
    genre: str = ""
    year: int | None = None
    duration_s: int | None = None
    path: str = ""
    musicbrainz_id: str = ""

    @classmethod
    def of(cls, server_id: str, **tags: Any) -> "SongTags | None":
        """Make valid tags from values of any type; None without a usable id."""
        server_id = clean(server_id)
        if not server_id or len(server_id) > MAX_ID:
            return None
        path = clean(tags.get("path") or "")
        title = clean(tags.get("title") or "") or path.rpartition("/")[2] or "(untitled)"
        return cls(
            server_id,
            title[:500],
            _cut(tags.get("artist"), 500),
            _cut(tags.get("album"), 500),
            _cut(tags.get("genre"), 200),
            _whole(tags.get("year")),
            _whole(tags.get("duration_s")),
            # A cut path could equal another song's, so drop a long one.
            path if len(path) <= 600 else "",
            _cut(tags.get("musicbrainz_id"), 64),
        )


def _cut(value: object, length: int) -> str:
    return clean(value or "")[:length]


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**31 else None


@dataclass
class SyncReport:
    """The figures of a sync."""

    __pydantic_config__ = VIEW
    seen: int = 0
    added: int = 0
    changed: int = 0
    returned: int = 0
    relinked: int = 0
    """Known songs that the library lists under another id."""
    missing: int = 0
    """Songs that the library no longer has; the sync flags them, but never deletes them."""
    repeated: Annotated[int, HIDDEN] = 0
    complete: bool = False
    """The sync saw every song; only then does it flag songs as missing."""
    note: str = ""
    """Why the sync is incomplete."""
    doubtful: bool = False
    """So many songs are missing that none is flagged. A sync with `accept_missing` flags them."""

    def add(self, other: "SyncReport") -> None:
        """Add the figures of another sync; complete only if both are."""
        for name, value in asdict(other).items():
            if type(value) is int:
                setattr(self, name, getattr(self, name) + value)
        self.complete = self.complete and other.complete
        self.doubtful = self.doubtful or other.doubtful
        self.note = "; ".join(filter(None, (self.note, other.note)))


_TAGS = tuple(name for name in SongTags.__dataclass_fields__ if name != "server_id")


def store(session: Session, library: str, songs: Iterable[SongTags], started: datetime) -> SyncReport:
    """Add or change the rows of one page of songs, in the caller's transaction; return the page's figures.

    `started`: the time at which this sync began, by which it marks the songs that it saw.
    """
    page = {song.server_id: song for song in songs}
    query = select(SONGS).where(SONGS.c.library == library, SONGS.c.server_id.in_(list(page)))
    known = {row.server_id: row for row in session.execute(query)}
    report = SyncReport(seen=len(page), complete=True)
    new, known_ids, changed = [], [], []
    for server_id, song in page.items():
        row = known.get(server_id)
        if row is None:
            new.append(_new_row(library, song, started))
            continue
        report.repeated += row.seen_at == started
        report.returned += row.missing_since is not None
        known_ids.append(row.id)
        if any(getattr(row, name) != getattr(song, name) for name in _TAGS):
            changed.append({"id": row.id, **{name: getattr(song, name) for name in _TAGS}, "updated_at": started})
    if new:
        session.execute(insert(SONGS), new)
    listed = SONGS.c.id.in_(known_ids)
    session.execute(update(SONGS).where(listed, SONGS.c.missing_since.is_not(None)).values(missing_since=None))
    # Only forwards: otherwise a later, simultaneous sync would take the song for unseen.
    session.execute(update(SONGS).where(listed, SONGS.c.seen_at < started).values(seen_at=started))
    if changed:
        session.execute(update(Song), changed)
    added = SONGS.c.library == library, SONGS.c.server_id.in_([row["server_id"] for row in new])
    fulltext.index(session, [*session.execute(select(SONGS.c.id).where(*added)).scalars(), *(c["id"] for c in changed)])
    report.added, report.changed = len(new), len(changed)
    return report


def count_new(session: Session, library: str, songs: Sequence[SongTags]) -> int:
    """Count the songs of a page of which neither the id nor, since a rescan changes ids, the path or the MusicBrainz id
    is known."""
    page = {song.server_id: song for song in songs}
    in_library = SONGS.c.library == library
    known = set(
        session.execute(select(SONGS.c.server_id).where(in_library, SONGS.c.server_id.in_(list(page)))).scalars()
    )
    unknown = [song for server_id, song in page.items() if server_id not in known]
    for name in ("path", "musicbrainz_id"):
        values = [value for song in unknown if (value := getattr(song, name))]
        stored = set(session.execute(select(SONGS.c[name]).where(in_library, SONGS.c[name].in_(values))).scalars())
        unknown = [song for song in unknown if getattr(song, name) not in stored]
    return len(unknown)


def _new_row(library: str, song: SongTags, now: datetime) -> dict[str, Any]:
    return {
        **asdict(song),
        "library": library,
        "status": SongStatus.PENDING,
        "seen_at": now,
        "created_at": now,
        "updated_at": now,
    }


def relink(session: Session, library: str, started: datetime, name: str, ids: range, *, paid: bool) -> int:
    """Give songs that this sync did not see the ids and tags of new songs with the same `name` (`path` or
    `musicbrainz_id`), and delete the rows of the new songs; return how many.

    Call it only after the end of a listing, since an unseen song may still appear before. `ids`: a window of our ids of
    old songs to check. `paid`: only songs with metadata, which come first, or only songs without.
    """
    key = SONGS.c[name]
    in_library, described = SONGS.c.library == library, SONGS.c.analysed_at.is_not(None)
    unseen = and_(in_library, SONGS.c.seen_at < started, key != "", described if paid else ~described)
    window = SONGS.c.id.between(ids.start, ids.stop - 1)
    old = session.execute(select(SONGS.c.id, key).where(window, unseen).order_by(SONGS.c.id)).all()
    if not old:
        return 0
    unused = and_(
        SONGS.c.status == SongStatus.PENDING,
        SONGS.c.batch_id.is_(None),
        SONGS.c.analysis_json.is_(None),
        SONGS.c.attempts == 0,
        SONGS.c.seen_at == started,
    )
    fitting = select(SONGS).where(in_library, key.in_([value for _, value in old]), unused).order_by(SONGS.c.id.desc())
    new: dict[str, list[Any]] = {}
    for row in session.execute(fitting):
        new.setdefault(getattr(row, name), []).append(row)
    pairs = [(old_id, new[value].pop()) for old_id, value in old if new.get(value)]
    if pairs:
        _take_over(session, pairs, started)
    return len(pairs)


def _take_over(session: Session, pairs: Sequence[tuple[int, Any]], started: datetime) -> None:
    """Copy the library's ids and tags from new rows to old songs, and delete the new rows."""
    replaced = [row.id for _, row in pairs]
    fulltext.FULL_TEXT.remove(session, replaced)
    session.execute(delete(SONGS).where(SONGS.c.id.in_(replaced)))
    fields = ("server_id", *_TAGS)
    session.execute(
        update(Song),
        [
            {
                "id": old_id,
                **{field: getattr(row, field) for field in fields},
                "seen_at": started,
                "missing_since": None,
                "updated_at": started,
            }
            for old_id, row in pairs
        ],
    )
    fulltext.index(session, [old_id for old_id, _ in pairs])


def windows(session: Session, library: str, started: datetime) -> list[range]:
    """Return ranges of our ids that together contain every song which this sync did not see; empty if it saw all."""
    unseen = and_(SONGS.c.library == library, SONGS.c.seen_at < started)
    low, high = session.execute(select(func.min(SONGS.c.id), func.max(SONGS.c.id)).where(unseen)).one()
    return [range(start, start + _WINDOW) for start in range(low, high + 1, _WINDOW)] if low is not None else []


def flag_missing(tx: Tx, library: str, started: datetime) -> int:
    """Flag the songs that this complete listing lacks; return how many were not flagged before. Deletes nothing."""
    missing = and_(SONGS.c.library == library, SONGS.c.seen_at < started, SONGS.c.missing_since.is_(None))
    flagged = tx.execute(update(SONGS).where(missing).values(missing_since=tx.now, updated_at=tx.now))
    return cast("CursorResult[Any]", flagged).rowcount


def count_known(session: Session, library: str, started: datetime) -> tuple[int, int]:
    """Count the unflagged songs from before this sync, and those of them that it did not see."""
    unseen = func.count().filter(SONGS.c.seen_at < started)
    query = select(func.count(), unseen).where(
        SONGS.c.library == library, SONGS.c.missing_since.is_(None), SONGS.c.created_at < started
    )
    known, missing = session.execute(query).one()
    return known, missing


def why_incomplete(before: Listing | None, after: Listing | None, report: SyncReport) -> str:
    """Return why a listing may be incomplete although it reached its end; empty if it is complete."""
    if report.repeated:
        return f"the listing changed while it was read: {report.repeated} songs came twice"
    if before is None or after is None:
        return "the server does not say how many songs it has"
    if before.scanning or after.scanning or before != after:
        return "the server was scanning"
    if report.seen < after.count:
        return f"the server says that it has {after.count} songs, but listed {report.seen}"
    return ""
