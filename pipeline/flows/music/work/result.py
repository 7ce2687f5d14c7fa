"""A batch's results on their way to its songs. Rules: docs/sources/music.md#steps."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, or_, select, update
from sqlalchemy.orm import Session

from pipeline.engine.claims import FREE
from pipeline.engine.transaction import Tx
from pipeline.flows.music import fulltext
from pipeline.flows.music.models import BATCHES, SONGS, Song
from pipeline.flows.music.rules.findings import song_columns
from pipeline.flows.music.rules.prompts import SongFacts
from pipeline.flows.music.rules.schemas import load
from pipeline.flows.music.states import BATCH, SONG, BatchEvent, BatchStatus, Mode, SongEvent, SongStatus
from pipeline.flows.music.vectors import keep_vectors

MAX_LEFT_OUT = 3
"""Replies that may leave a song out before it fails: as many as a job has attempts (docs/sources/music.md#batches)."""
LEFT_OUT = "the model left the song out of its reply, or answered about it in a wrong shape"
EMPTIED: dict[str, Any] = {"analysis": None, "vectors": None, "vector_ids": None}
"""Of a batch whose songs have everything. A useless reply stays, for inspection."""


class Kept(NamedTuple):
    """The songs of a batch (ids), and which of them have got their metadata and their vectors from it."""

    mode: Mode
    songs: set[int]
    analysed: set[int]
    embedded: set[int]


def song_facts(session: Session, batch_id: int) -> list[SongFacts]:
    """The songs of a batch, in their order."""
    columns = [SONGS.c[name] for name in ("id", "server_id", "title", "artist", "genre")]
    rows = session.execute(select(*columns).where(SONGS.c.batch_id == batch_id).order_by(SONGS.c.id))
    return [SongFacts(*row) for row in rows]


def keep(tx: Tx, batch_id: int) -> Kept:
    """Write what was paid for to the batch's songs. Their states stay as they are."""
    batch = tx.execute(select(BATCHES).where(BATCHES.c.id == batch_id)).one()
    songs = {song.id: song for song in song_facts(tx, batch_id)}
    analyses = {song_id: analysis for song_id, analysis in load(batch.analysis).items() if song_id in songs}
    if analyses:
        values = {
            "model": batch.analysis_model[:120],
            "analysed_at": tx.now,
            "attempts": 0,
            "updated_at": tx.now,
            "vector_model": "",  # a new text makes the vector of the old one stale
        }
        rows = [{"id": key, **song_columns(found, songs[key]), **values} for key, found in analyses.items()]
        tx.execute(update(Song), rows)
        fulltext.index(tx, list(analyses))
    embedded = keep_vectors(tx, batch, songs.keys())
    return Kept(Mode(batch.mode), set(songs), set(analyses), embedded)


def save(tx: Tx, batch_id: int) -> None:
    """Complete the songs of a batch that is done, or put them back. The batch counts them, and keeps no copy."""
    kept = keep(tx, batch_id)
    done = kept.songs if kept.mode is Mode.EMBEDDING else kept.analysed
    mine = SONGS.c.batch_id == batch_id
    SONG.move(tx, SONGS, SongEvent.DONE, mine, SONGS.c.id.in_(list(done)), error=None, updated_at=tx.now)
    # Songs that the reply left out are pending again, or fail when that has happened too often.
    out = (mine, SONGS.c.status == SongStatus.PROCESSING)
    again = SONGS.c.attempts + 1
    too_often = f"{LEFT_OUT} {MAX_LEFT_OUT} times"
    SONG.move(
        tx, SONGS, SongEvent.FAIL, *out, again >= MAX_LEFT_OUT, attempts=again, error=too_often, updated_at=tx.now
    )
    SONG.move(tx, SONGS, SongEvent.GIVE_BACK, *out, attempts=again, error=LEFT_OUT, updated_at=tx.now)
    _take_out(tx, mine)
    counts = {"saved": len(done), "left_out": len(kept.songs) - len(done)}
    tx.execute(update(BATCHES).where(BATCHES.c.id == batch_id).values(**EMPTIED, **counts))


def fail_songs(tx: Tx, batch_id: int, error: str) -> None:
    """Fail the songs of a failed batch; they keep what was paid for."""
    keep(tx, batch_id)
    mine = SONGS.c.batch_id == batch_id
    SONG.move(tx, SONGS, SongEvent.FAIL, mine, error=error, updated_at=tx.now)
    _take_out(tx, mine)


def cancel_idle(tx: Tx, run_id: str) -> None:
    """Cancel the batches of a run that has ended, but for those that somebody works on."""
    idle = and_(BATCHES.c.run_id == run_id, BATCHES.c.status.in_([BatchStatus.PENDING, BatchStatus.QUEUED]))
    cancel_unpaid(tx, idle)
    cancel(tx, list(tx.execute(select(BATCHES.c.id).where(idle)).scalars()))


def cancel_unpaid(tx: Tx, which: ColumnElement[bool]) -> None:
    """Cancel those of the batches that nothing was paid for: all at once, however many there are."""
    unpaid = and_(which, BATCHES.c.analysis.is_(None), BATCHES.c.vectors.is_(None))
    mine = SONGS.c.batch_id.in_(select(BATCHES.c.id).where(unpaid))
    embedding = SONGS.c.batch_id.in_(select(BATCHES.c.id).where(unpaid, BATCHES.c.mode == Mode.EMBEDDING))
    SONG.move(tx, SONGS, SongEvent.RESTORE, embedding, SONGS.c.vector_model != "", error=None, updated_at=tx.now)
    SONG.move(tx, SONGS, SongEvent.GIVE_BACK, mine, updated_at=tx.now)
    _take_out(tx, mine)
    BATCH.move(tx, BATCHES, BatchEvent.CANCEL, unpaid, **FREE, next_run_at=None, finished_at=tx.now, updated_at=tx.now)


def cancel(tx: Tx, batch_ids: Sequence[int]) -> None:
    """Cancel batches of a run that has ended: their songs are free again, and keep what was paid for."""
    for batch_id in batch_ids:
        kept = keep(tx, batch_id)
        mine = SONGS.c.batch_id == batch_id
        complete: ColumnElement[bool] = SONGS.c.id.in_(
            list(kept.analysed if kept.mode is Mode.METADATA else kept.embedded)
        )
        if kept.mode is Mode.EMBEDDING:
            complete = or_(complete, SONGS.c.vector_model != "")
        SONG.move(tx, SONGS, SongEvent.RESTORE, mine, complete, error=None, updated_at=tx.now)
        SONG.move(tx, SONGS, SongEvent.GIVE_BACK, mine, updated_at=tx.now)
        _take_out(tx, mine)
        BATCH.move(
            tx,
            BATCHES,
            BatchEvent.CANCEL,
            BATCHES.c.id == batch_id,
            **FREE,
            **EMPTIED,
            next_run_at=None,
            finished_at=tx.now,
            updated_at=tx.now,
        )


def _take_out(session: Session, songs: ColumnElement[bool]) -> None:
    session.execute(update(SONGS).where(songs).values(batch_id=None))
