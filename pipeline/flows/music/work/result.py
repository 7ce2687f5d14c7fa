"""Results on their way from a batch to its songs. Source 002, section 2.E, phase 4."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, or_, select, update
from sqlalchemy.orm import Session

from pipeline.engine import traces
from pipeline.engine.claims import FREE, Claim, held_by
from pipeline.flows.music import runs
from pipeline.flows.music.models import BATCHES, SONGS, Song
from pipeline.flows.music.rules.prompts import SongFacts, findings
from pipeline.flows.music.rules.schemas import Analysis, load
from pipeline.flows.music.states import BATCH, SONG, BatchEvent, Mode, SongEvent, SongStatus
from pipeline.storage import vectors
from pipeline.storage.vectors import Floats

KIND = "song"
FLOW = "music"
MAX_LEFT_OUT = 3
"""Replies that may leave a song out before it fails. As many as a job has attempts: 2.D."""
_EMPTIED: dict[str, Any] = {"analysis": None, "vectors": None, "vector_ids": None}
"""A batch whose songs have it all. A reply that was no use stays, for inspection."""
LEFT_OUT = "the model left the song out of its reply, or answered about it in a wrong shape"


def facts(session: Session, batch_id: int) -> list[SongFacts]:
    """What is known of a batch's songs, in their order."""
    columns = [SONGS.c[name] for name in ("id", "server_id", "title", "artist", "genre")]
    rows = session.execute(select(*columns).where(SONGS.c.batch_id == batch_id).order_by(SONGS.c.id))
    return [SongFacts(*row) for row in rows]


def texts(session: Session, batch_id: int) -> dict[int, str]:
    """What a batch's songs are embedded with, as their rows have it."""
    query = select(SONGS.c.id, SONGS.c.vector_text).where(SONGS.c.batch_id == batch_id).order_by(SONGS.c.id)
    return dict(session.execute(query).all())


def record_call(session: Session, run_id: str, batch_id: int, trace: dict[str, Any] | None) -> None:
    """Write the ledger of calls: also of those whose result is discarded, for they were paid for."""
    traces.record(session, FLOW, run_id, batch_id, trace)


def keep_analysis(session: Session, batch_id: int, now: datetime) -> set[int]:
    """Write a batch's paid metadata to its songs; their ids. States stay as they are."""
    row = session.execute(select(BATCHES).where(BATCHES.c.id == batch_id)).one()
    known = {song.id: song for song in facts(session, batch_id)}
    found = {song_id: analysis for song_id, analysis in load(row.analysis).items() if song_id in known}
    if found:
        session.execute(update(Song), [_analysed(known[key], value, row, now) for key, value in found.items()])
    return set(found)


def _analysed(song: SongFacts, analysis: Analysis, batch: Any, now: datetime) -> dict[str, Any]:
    # A new text makes the vector of the old one stale.
    return {
        "id": song.id, **findings(analysis, song).columns(), "model": batch.analysis_model[:120], "analysed_at": now,
        "vector_model": "", "attempts": 0, "updated_at": now,
    }  # fmt: skip


def stored_vectors(batch: Any) -> dict[int, Floats]:
    """A batch's paid vectors, each with the song that it is of."""
    ids: list[int] = json.loads(batch.vector_ids) if batch.vector_ids else []
    return dict(zip(ids, vectors.unpack(batch.vectors, len(ids)), strict=True)) if ids else {}


def _keep_vectors(session: Session, batch: Any, members: set[int], now: datetime) -> set[int]:
    """Write a batch's paid vectors to its songs; their ids."""
    found = {song_id: vector for song_id, vector in stored_vectors(batch).items() if song_id in members}
    vectors.upsert(session, KIND, batch.vector_model, found.items(), now)
    if found:
        session.execute(update(SONGS).where(SONGS.c.id.in_(list(found))).values(vector_model=batch.vector_model))
    return set(found)


def save(session: Session, batch_id: int, run_id: str, claim: Claim) -> bool:
    """The last step: songs get what was found, the batch is COMPLETED. False if its claim was taken away."""
    now = datetime.now(UTC)
    runs.lock(session, run_id)
    mine = (BATCHES.c.id == batch_id, held_by(BATCHES, claim))
    batch = session.execute(select(BATCHES).where(*mine)).one_or_none()
    if batch is None:
        return False
    members = {song.id for song in facts(session, batch_id)}
    done = members if batch.mode == Mode.EMBEDDING else keep_analysis(session, batch_id, now)
    _keep_vectors(session, batch, members, now)
    songs = SONGS.c.batch_id == batch_id
    SONG.move(session, SONGS, SongEvent.DONE, songs, SONGS.c.id.in_(list(done)), error=None, updated_at=now)
    _put_back(session, batch_id, now)
    session.execute(update(SONGS).where(songs).values(batch_id=None))
    BATCH.move(
        session, BATCHES, BatchEvent.DONE, *mine, **FREE, **_EMPTIED, error=None, saved=len(done),
        left_out=len(members) - len(done), finished_at=now, updated_at=now,
    )  # fmt: skip
    return True


def fail_songs(session: Session, batch_id: int, error: str, now: datetime) -> None:
    """The songs of a failed batch say why, and keep what was paid for."""
    batch = session.execute(select(BATCHES).where(BATCHES.c.id == batch_id)).one()
    members = {song.id for song in facts(session, batch_id)}
    keep_analysis(session, batch_id, now)
    _keep_vectors(session, batch, members, now)
    mine = SONGS.c.batch_id == batch_id
    SONG.move(session, SONGS, SongEvent.FAIL, mine, error=error, updated_at=now)
    session.execute(update(SONGS).where(mine).values(batch_id=None))


def _put_back(session: Session, batch_id: int, now: datetime) -> None:
    """Songs that the reply left out go back to pending, or fail when that happened too often."""
    out = (SONGS.c.batch_id == batch_id, SONGS.c.status == SongStatus.PROCESSING)
    again = SONGS.c.attempts + 1
    gave_up = f"{LEFT_OUT} {MAX_LEFT_OUT} times"
    SONG.move(
        session, SONGS, SongEvent.FAIL, *out, again >= MAX_LEFT_OUT, attempts=again, error=gave_up, updated_at=now
    )
    SONG.move(session, SONGS, SongEvent.GIVE_BACK, *out, attempts=again, error=LEFT_OUT, updated_at=now)


def release_unpaid(session: Session, which: ColumnElement[bool], now: datetime) -> None:
    """Take those of the batches off an ended run that nothing was paid for: all at once, however many there are."""
    unpaid = and_(which, BATCHES.c.analysis.is_(None), BATCHES.c.vectors.is_(None))
    mine = SONGS.c.batch_id.in_(select(BATCHES.c.id).where(unpaid))
    embedding = SONGS.c.batch_id.in_(select(BATCHES.c.id).where(unpaid, BATCHES.c.mode == Mode.EMBEDDING))
    SONG.move(
        session, SONGS, SongEvent.RESTORE, embedding, SONGS.c.vector_model != "", error=None, updated_at=now
    )  # fmt: skip
    SONG.move(session, SONGS, SongEvent.GIVE_BACK, mine, updated_at=now)
    session.execute(update(SONGS).where(mine).values(batch_id=None))
    BATCH.move(
        session, BATCHES, BatchEvent.CANCEL, unpaid, **FREE, next_run_at=None, finished_at=now, updated_at=now
    )  # fmt: skip


def release(session: Session, batch_ids: Sequence[int], now: datetime) -> None:
    """Take batches off a run that has ended: their songs are free again, and keep what was paid for."""
    for batch_id in batch_ids:
        batch = session.execute(select(BATCHES).where(BATCHES.c.id == batch_id)).one()
        members = {song.id for song in facts(session, batch_id)}
        analysed = keep_analysis(session, batch_id, now)
        embedded = _keep_vectors(session, batch, members, now)
        mine = SONGS.c.batch_id == batch_id
        has_all: ColumnElement[bool] = SONGS.c.id.in_(list(analysed if batch.mode == Mode.METADATA else embedded))
        if batch.mode == Mode.EMBEDDING:
            has_all = or_(has_all, SONGS.c.vector_model != "")
        SONG.move(session, SONGS, SongEvent.RESTORE, mine, has_all, error=None, updated_at=now)
        SONG.move(session, SONGS, SongEvent.GIVE_BACK, mine, updated_at=now)
        session.execute(update(SONGS).where(mine).values(batch_id=None))
        BATCH.move(
            session, BATCHES, BatchEvent.CANCEL, BATCHES.c.id == batch_id, **FREE, **_EMPTIED,
            next_run_at=None, finished_at=now, updated_at=now,
        )  # fmt: skip
