"""Songs: list, show, and search by words and mood."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from pipeline.engine.accounts import OverCap
from pipeline.engine.errors import PenstockError, UserError
from pipeline.flows.music.states import SongStatus
from pipeline.interfaces.console.fields import BLANK
from pipeline.interfaces.console.page import screen
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, reader
from pipeline.interfaces.http.fields import HexId, Line, RowId
from pipeline.interfaces.http.guard import check_same_site
from pipeline.interfaces.http.pages import Cursor
from pipeline.operations import music

router = APIRouter(prefix="/console/music", include_in_schema=False, dependencies=reader)
SONGS, SIMILAR = 50, 12
"""Songs on a page."""
SONG_CSS = {
    SongStatus.PENDING: "waiting",
    SongStatus.PROCESSING: "working",
    SongStatus.COMPLETED: "done",
    SongStatus.FAILED: "failed",
}
SONG_WORDS = {
    SongStatus.PENDING: "not yet described",
    SongStatus.PROCESSING: "being described",
    SongStatus.COMPLETED: "described",
    SongStatus.FAILED: "failed",
}
MaybeSong = Annotated[SongStatus | None, BLANK]
MaybeBool = Annotated[bool | None, BLANK]


def _length(seconds: int | None) -> str:
    """Return a length such as `3:07`; None gives a dash."""
    return "–" if seconds is None else f"{seconds // 60}:{seconds % 60:02}"


@router.get("/songs")
def list_songs(
    request: Request,
    caller: ByCaller,
    status: MaybeSong = None,
    vector: MaybeBool = None,
    q: Line = "",
    run: Annotated[HexId | None, BLANK] = None,
    cursor: Cursor = None,
) -> HTMLResponse:
    """Show the songs of the library, in the order of their addition."""
    (after,) = pages.decode(cursor, int) or (0,)
    rows = music.songs.by(
        caller, status=status, words=q, run_id=run or "", has_vector=vector, after=after, limit=SONGS + 1
    )
    page = pages.views(rows, SONGS, lambda song: (song.id,))
    filters = {"status": status, "vector": "" if vector is None else str(vector).lower(), "q": q, "run": run or ""}
    return screen(
        request,
        "music/songs.html",
        songs=page.items,
        next_cursor=page.next_cursor,
        filters=filters,
        first=not cursor,
        counts=music.status.by(caller),
        css=SONG_CSS,
        words=SONG_WORDS,
        length=_length,
    )


@router.get("/songs/{song_id}")
def show_song(request: Request, caller: ByCaller, song_id: RowId) -> HTMLResponse:
    """Show a song: its library data, its analysis, and similar songs."""
    song, similar = music.song_by_id.by(caller, song_id), []
    if song.vector_model:
        try:
            similar = music.similar.by(caller, str(song.id), SIMILAR).matches
        except UserError:
            similar = []  # its vector was deleted in between
    return screen(
        request, "music/song.html", song=song, similar=similar, css=SONG_CSS, words=SONG_WORDS, length=_length
    )


@router.get("/search")
def search(
    request: Request, caller: ByCaller, q: Line = "", limit: Annotated[int, Query(ge=1, le=200)] = 20
) -> HTMLResponse:
    """Search songs by words or mood. With an embeddings provider, that costs one small call."""
    result, refused = None, ""
    if q.strip():
        check_same_site(request)
        try:
            result = music.search.by(caller, q, limit)
        except OverCap:
            raise
        except PenstockError as error:
            refused = str(error)
    return screen(
        request,
        "music/search.html",
        q=q,
        limit=limit,
        result=result,
        refused=refused,
        counts=music.status.by(caller),
        provider=caller.context.settings.music.embeddings_provider,
    )
