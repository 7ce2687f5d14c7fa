"""Songs as their library lists them, and what a listing does to the rows: add, change, relink, flag as missing."""

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
    """A library cannot be listed. `transient`: it may pass by itself."""

    def __init__(self, message: str, *, code: str, transient: bool = False) -> None:
        super().__init__(message, code=code)
        self.transient = transient


@dataclass(frozen=True)
class Listing:
    """What a server says about its songs: how many there are, whether it is scanning now, when it last did."""

    count: int
    scanning: bool
    scanned_at: str


@dataclass(frozen=True)
class SongTags:
    """What a library knows about a song."""

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
    def of(cls, server_id: str, **found: Any) -> "SongTags | None":
        """From what was found, whatever types it has; None without a usable id."""
        server_id = clean(server_id)
        if not server_id or len(server_id) > MAX_ID:
            return None
        path = clean(found.get("path") or "")
        title = clean(found.get("title") or "") or path.rpartition("/")[2] or "(untitled)"
        return cls(
            server_id,
            title[:500],
            _cut(found.get("artist"), 500),
            _cut(found.get("album"), 500),
            _cut(found.get("genre"), 200),
            _whole(found.get("year")),
            _whole(found.get("duration_s")),
            # A path that was cut could be taken for another song's: better none.
            path if len(path) <= 600 else "",
            _cut(found.get("musicbrainz_id"), 64),
        )


def _cut(value: object, length: int) -> str:
    return clean(value or "")[:length]


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**31 else None


@dataclass
class SyncReport:
    """What a sync did."""

    __pydantic_config__ = VIEW
    seen: int = 0
    added: int = 0
    changed: int = 0
    returned: int = 0
    relinked: int = 0
    """Found again under another id."""
    missing: int = 0
    """Gone from the library; they are flagged, never deleted."""
    repeated: Annotated[int, HIDDEN] = 0
    complete: bool = False
    """It saw every song: only then are songs flagged as missing."""
    note: str = ""
    """Why it did not."""

    def add(self, other: "SyncReport") -> None:
        """Add another's figures, as if both were one sync."""
        for name, value in asdict(other).items():
            if type(value) is int:
                setattr(self, name, getattr(self, name) + value)
        self.complete = self.complete and other.complete
        self.note = "; ".join(filter(None, (self.note, other.note)))


_TAGS = tuple(name for name in SongTags.__dataclass_fields__ if name != "server_id")


def store(session: Session, library: str, songs: Iterable[SongTags], started: datetime) -> SyncReport:
    """Add and change the rows of one page, in the caller's transaction. `started`: when this sync began."""
    page = {song.server_id: song for song in songs}
    query = select(SONGS).where(SONGS.c.library == library, SONGS.c.server_id.in_(list(page)))
    known = {row.server_id: row for row in session.execute(query)}
    report = SyncReport(seen=len(page), complete=True)
    new, again, changed = [], [], []
    for server_id, song in page.items():
        row = known.get(server_id)
        if row is None:
            new.append(_new_row(library, song, started))
            continue
        report.repeated += row.seen_at == started
        report.returned += row.missing_since is not None
        again.append(row.id)
        if any(getattr(row, name) != getattr(song, name) for name in _TAGS):
            changed.append({"id": row.id, **{name: getattr(song, name) for name in _TAGS}, "updated_at": started})
    if new:
        session.execute(insert(SONGS), new)
    listed = SONGS.c.id.in_(again)
    session.execute(update(SONGS).where(listed, SONGS.c.missing_since.is_not(None)).values(missing_since=None))
    # Never backwards: a later sync, running at the same time, would think that it had not seen the song.
    session.execute(update(SONGS).where(listed, SONGS.c.seen_at < started).values(seen_at=started))
    if changed:
        session.execute(update(Song), changed)
    added = SONGS.c.library == library, SONGS.c.server_id.in_([row["server_id"] for row in new])
    fulltext.index(session, [*session.execute(select(SONGS.c.id).where(*added)).scalars(), *(c["id"] for c in changed)])
    report.added, report.changed = len(new), len(changed)
    return report


def count_new(session: Session, library: str, songs: Sequence[SongTags]) -> int:
    """How many of a page's songs are unknown: by id and, since a rescan changes ids, by path and MusicBrainz id."""
    page = {song.server_id: song for song in songs}
    here = SONGS.c.library == library
    known = set(session.execute(select(SONGS.c.server_id).where(here, SONGS.c.server_id.in_(list(page)))).scalars())
    unknown = [song for server_id, song in page.items() if server_id not in known]
    for name in ("path", "musicbrainz_id"):
        values = [value for song in unknown if (value := getattr(song, name))]
        found = set(session.execute(select(SONGS.c[name]).where(here, SONGS.c[name].in_(values))).scalars())
        unknown = [song for song in unknown if getattr(song, name) not in found]
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
    """Give songs that this sync did not see the ids of new songs with the same `name` (path or MusicBrainz id).

    Only after a listing that ran to its end: until then, an unseen song may still come. `ids`: a window of our ids, the
    old songs to look at. `paid`: those with metadata, or else those without, which come second. How many were linked.
    """
    key = SONGS.c[name]
    here, described = SONGS.c.library == library, SONGS.c.analysed_at.is_not(None)
    gone = and_(here, SONGS.c.seen_at < started, key != "", described if paid else ~described)
    window = SONGS.c.id.between(ids.start, ids.stop - 1)
    old = session.execute(select(SONGS.c.id, key).where(window, gone).order_by(SONGS.c.id)).all()
    if not old:
        return 0
    unused = and_(
        SONGS.c.status == SongStatus.PENDING,
        SONGS.c.batch_id.is_(None),
        SONGS.c.analysis_json.is_(None),
        SONGS.c.attempts == 0,
        SONGS.c.seen_at == started,
    )
    fitting = select(SONGS).where(here, key.in_([value for _, value in old]), unused).order_by(SONGS.c.id.desc())
    new: dict[str, list[Any]] = {}
    for row in session.execute(fitting):
        new.setdefault(getattr(row, name), []).append(row)
    pairs = [(old_id, new[value].pop()) for old_id, value in old if new.get(value)]
    if pairs:
        _take_over(session, pairs, started)
    return len(pairs)


def _take_over(session: Session, pairs: Sequence[tuple[int, Any]], started: datetime) -> None:
    """Give old songs the library's id and tags of their new rows, and delete those."""
    gone = [row.id for _, row in pairs]
    fulltext.FULL_TEXT.remove(session, gone)
    session.execute(delete(SONGS).where(SONGS.c.id.in_(gone)))
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
    """Windows of our ids that cover all songs which this sync did not see; none if it saw all."""
    unseen = and_(SONGS.c.library == library, SONGS.c.seen_at < started)
    low, high = session.execute(select(func.min(SONGS.c.id), func.max(SONGS.c.id)).where(unseen)).one()
    return [range(start, start + _WINDOW) for start in range(low, high + 1, _WINDOW)] if low is not None else []


def flag_missing(tx: Tx, library: str, started: datetime) -> int:
    """Flag songs that this complete listing did not have; how many are newly flagged. Nothing is deleted."""
    gone = and_(SONGS.c.library == library, SONGS.c.seen_at < started, SONGS.c.missing_since.is_(None))
    flagged = tx.execute(update(SONGS).where(gone).values(missing_since=tx.now, updated_at=tx.now))
    return cast("CursorResult[Any]", flagged).rowcount


def count_unseen(session: Session, library: str, started: datetime) -> int:
    """Songs that this sync did not see and that are not flagged as missing."""
    query = select(func.count()).where(
        SONGS.c.library == library, SONGS.c.missing_since.is_(None), SONGS.c.seen_at < started
    )
    return session.execute(query).scalar_one()


def why_incomplete(before: Listing | None, after: Listing | None, report: SyncReport) -> str:
    """Why a listing that ran to its end may still be incomplete; empty if it is complete."""
    if not report.seen:
        return "the listing was empty"
    if report.repeated:
        return f"the listing changed while it was read: {report.repeated} songs came twice"
    if before is None or after is None:
        return "the server does not say how many songs it has"
    if before.scanning or after.scanning or before != after:
        return "the server was scanning"
    if report.seen < after.count:
        return f"the server says that it has {after.count} songs, but listed {report.seen}"
    return ""
