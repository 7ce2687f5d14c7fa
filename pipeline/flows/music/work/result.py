"""Writes a batch's results to its songs. Rules: docs/sources/music.md#steps."""

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
"""The columns to clear on a batch whose results are saved. An unusable reply stays, for inspection."""


class Saved(NamedTuple):
    """The songs of a batch (ids), and the songs that got their metadata and their vectors from it."""

    mode: Mode
    songs: set[int]
    analysed: set[int]
    embedded: set[int]


def song_facts(session: Session, batch_id: int) -> list[SongFacts]:
    """Return the facts for the prompt about the songs that are in a batch now, in the order of their ids."""
    columns = [SONGS.c[name] for name in ("id", "server_id", "title", "artist", "genre")]
    rows = session.execute(select(*columns).where(SONGS.c.batch_id == batch_id).order_by(SONGS.c.id))
    return [SongFacts(*row) for row in rows]


def keep(tx: Tx, batch_id: int) -> Saved:
    """Write the batch's paid results to its songs, without changing their states.

    New metadata voids a song's old vector.
    """
    batch = tx.execute(select(BATCHES).where(BATCHES.c.id == batch_id)).one()
    songs = {song.id: song for song in song_facts(tx, batch_id)}
    analyses = {song_id: analysis for song_id, analysis in load(batch.analysis).items() if song_id in songs}
    if analyses:
        values = {
            "model": batch.analysis_model[:120],
            "analysed_at": tx.now,
            "attempts": 0,
            "updated_at": tx.now,
            "vector_model": "",  # the new text makes the old vector stale
        }
        rows = [{"id": key, **song_columns(analysis, songs[key]), **values} for key, analysis in analyses.items()]
        tx.execute(update(Song), rows)
        fulltext.index(tx, list(analyses))
    embedded = keep_vectors(tx, batch, songs.keys())
    return Saved(Mode(batch.mode), set(songs), set(analyses), embedded)


def save(tx: Tx, batch_id: int) -> None:
    """Complete the songs of a done batch; put back or fail those that the reply left out. Clears the batch's copy."""
    analyses = keep(tx, batch_id)
    done = analyses.songs if analyses.mode is Mode.EMBEDDING else analyses.analysed
    of_batch = SONGS.c.batch_id == batch_id
    SONG.move(tx, SONGS, SongEvent.DONE, of_batch, SONGS.c.id.in_(list(done)), error=None, updated_at=tx.now)
    # Songs that the reply left out become pending again, or fail after `MAX_LEFT_OUT` replies.
    out = (of_batch, SONGS.c.status == SongStatus.PROCESSING)
    attempts = SONGS.c.attempts + 1
    too_often = f"{LEFT_OUT} {MAX_LEFT_OUT} times"
    SONG.move(
        tx, SONGS, SongEvent.FAIL, *out, attempts >= MAX_LEFT_OUT, attempts=attempts, error=too_often, updated_at=tx.now
    )
    SONG.move(tx, SONGS, SongEvent.GIVE_BACK, *out, attempts=attempts, error=LEFT_OUT, updated_at=tx.now)
    _take_out(tx, of_batch)
    counts = {"saved": len(done), "left_out": len(analyses.songs) - len(done)}
    tx.execute(update(BATCHES).where(BATCHES.c.id == batch_id).values(**EMPTIED, **counts))


def fail_songs(tx: Tx, batch_id: int, error: str) -> None:
    """Fail the songs of a failed batch; they keep paid results."""
    keep(tx, batch_id)
    of_batch = SONGS.c.batch_id == batch_id
    SONG.move(tx, SONGS, SongEvent.FAIL, of_batch, error=error, updated_at=tx.now)
    _take_out(tx, of_batch)


def cancel_idle(tx: Tx, run_id: str) -> None:
    """Cancel the batches of an ended run, except those that a worker processes."""
    idle = and_(BATCHES.c.run_id == run_id, BATCHES.c.status.in_([BatchStatus.PENDING, BatchStatus.QUEUED]))
    cancel_unpaid(tx, idle)
    cancel(tx, list(tx.execute(select(BATCHES.c.id).where(idle)).scalars()))


def cancel_unpaid(tx: Tx, which: ColumnElement[bool]) -> None:
    """Cancel those matching batches that have no paid results, all in a few statements; their songs become free,
    PENDING, or COMPLETED again if only a new vector was due."""
    unpaid = and_(which, BATCHES.c.analysis.is_(None), BATCHES.c.vectors.is_(None))
    of_batches = SONGS.c.batch_id.in_(select(BATCHES.c.id).where(unpaid))
    embedding = SONGS.c.batch_id.in_(select(BATCHES.c.id).where(unpaid, BATCHES.c.mode == Mode.EMBEDDING))
    SONG.move(tx, SONGS, SongEvent.RESTORE, embedding, SONGS.c.vector_model != "", error=None, updated_at=tx.now)
    SONG.move(tx, SONGS, SongEvent.GIVE_BACK, of_batches, updated_at=tx.now)
    _take_out(tx, of_batches)
    BATCH.move(tx, BATCHES, BatchEvent.CANCEL, unpaid, **FREE, next_run_at=None, finished_at=tx.now, updated_at=tx.now)


def cancel(tx: Tx, batch_ids: Sequence[int]) -> None:
    """Cancel batches of an ended run: their songs keep paid results, and become free, COMPLETED or PENDING."""
    for batch_id in batch_ids:
        analyses = keep(tx, batch_id)
        of_batch = SONGS.c.batch_id == batch_id
        complete: ColumnElement[bool] = SONGS.c.id.in_(
            list(analyses.analysed if analyses.mode is Mode.METADATA else analyses.embedded)
        )
        if analyses.mode is Mode.EMBEDDING:
            complete = or_(complete, SONGS.c.vector_model != "")
        SONG.move(tx, SONGS, SongEvent.RESTORE, of_batch, complete, error=None, updated_at=tx.now)
        SONG.move(tx, SONGS, SongEvent.GIVE_BACK, of_batch, updated_at=tx.now)
        _take_out(tx, of_batch)
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
