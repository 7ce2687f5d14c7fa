"""Runs of the pipeline: one is active at most. Every transaction on a run's batches locks the run first, so that
starts, claims, results and a user's commands come one after another, and exactly one sees the last batch settled.
"""

import json
import time
from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, and_, func, insert, select, update
from sqlalchemy.orm import Session

from pipeline.engine.claims import FREE
from pipeline.flows.music.models import BATCHES, RUNS, SONGS
from pipeline.flows.music.rules.prompts import chunks
from pipeline.flows.music.states import (
    OPEN,
    PIPELINE,
    BatchStatus,
    Mode,
    PipelineEvent,
    PipelineState,
    SongStatus,
    first_step,
)

ENDED: dict[str, Any] = {**FREE, "active": None, "next_run_at": None}


def lock(session: Session, run_id: str) -> Any | None:
    """The run's row, locked until the transaction ends; None if there is none."""
    return session.execute(select(RUNS).where(RUNS.c.id == run_id).with_for_update()).one_or_none()


def lock_active(session: Session) -> Any | None:
    """The active run's row, locked; None if the pipeline is idle."""
    return session.execute(select(RUNS).where(RUNS.c.active == 1).with_for_update()).one_or_none()


def move(session: Session, run: Any, event: PipelineEvent, now: datetime, **values: Any) -> None:
    """Move a run that the caller has locked. Raises `IllegalTransition`."""
    PIPELINE.target(PipelineState(run.status), event)
    values = {"launches": 0, "launch_due_at": None, "updated_at": now, **values}
    moved = PIPELINE.move(session, RUNS, event, RUNS.c.id == run.id, RUNS.c.status == run.status, **values)
    assert moved == 1, "the caller has not locked the run"


def end(
    session: Session, run: Any, event: PipelineEvent, outcome: str, now: datetime, error: str | None = None
) -> None:
    """The run is over: the next one may start."""
    move(session, run, event, now, **ENDED, outcome=outcome, error=error, finished_at=now)


def count_open(session: Session, run_id: str, *statuses: BatchStatus) -> int:
    """Batches of the run in these states; default: those that are not at their end."""
    query = select(func.count()).where(BATCHES.c.run_id == run_id, BATCHES.c.status.in_(statuses or OPEN))
    return session.execute(query).scalar_one()


def waiting_songs(mode: Mode, space: str) -> ColumnElement[bool]:
    """The songs that a run of this mode takes up. `space`: the vectors that are wanted."""
    here = and_(SONGS.c.missing_since.is_(None), SONGS.c.batch_id.is_(None))
    match mode:
        case Mode.FULL:
            return and_(here, SONGS.c.status == SongStatus.PENDING)
        case Mode.METADATA:
            return and_(here, SONGS.c.status == SongStatus.PENDING, SONGS.c.analysis_json.is_(None))
        case Mode.EMBEDDING:
            return and_(
                here, SONGS.c.status != SongStatus.PROCESSING, SONGS.c.vector_text != "", SONGS.c.vector_model != space
            )


def only_vectors(mode: Mode) -> ColumnElement[bool]:
    """Of the songs that a run takes up, those whose metadata is there: paid for in an earlier run."""
    return SONGS.c.vector_text != "" if mode is not Mode.METADATA else SONGS.c.id.is_(None)


def make_batches(session: Session, run: Any, songs: Sequence[Any], mode: Mode, size: int, now: datetime) -> int:
    """Put songs (rows with `id`) into new batches of the run, in the caller's transaction; how many batches."""
    ids = iter([song.id for song in songs])
    made = 0
    for count in chunks(len(songs), size):
        members = list(islice(ids, count))
        values = {
            "correlation_id": f"batch_{time.time_ns() // 1000}", "run_id": run.id, "mode": mode,
            "step": first_step(mode), "status": BatchStatus.PENDING, "song_ids": json.dumps(members), "songs": count,
            "created_at": now, "updated_at": now,
        }  # fmt: skip
        batch_id = session.execute(insert(BATCHES).values(**values).returning(BATCHES.c.id)).scalar_one()
        # A song that is in a batch cannot be put into another: that is why starting twice never asks for it twice.
        free = and_(SONGS.c.id.in_(members), SONGS.c.batch_id.is_(None))
        session.execute(update(SONGS).where(free).values(batch_id=batch_id, run_id=run.id, updated_at=now))
        made += 1
    return made


def left_over(session: Session, run: Any, limit: int) -> list[Any]:
    """Songs of the run that went back to pending: replies left them out."""
    back = and_(
        SONGS.c.run_id == run.id, SONGS.c.status == SongStatus.PENDING, SONGS.c.batch_id.is_(None),
        SONGS.c.missing_since.is_(None),
    )  # fmt: skip
    return list(session.execute(select(SONGS).where(back).order_by(SONGS.c.id).limit(limit)))
