"""Rules of batches: their frames, key, shards and history.

Rules: docs/sources/screenshots.md#batches.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

MAX_SOURCE_KEY = 120
_SOURCE_KEY = re.compile(r"(?:screen|window):[^\s:/\\]+")
Item = TypeVar("Item")


@dataclass(frozen=True)
class Shot:
    """An accepted frame. `ts_ms`: time of capture by the source's clock; `accepted_at`: time of arrival by ours."""

    id: int
    ts_ms: int
    accepted_at: datetime
    phash: str = ""
    app_hint: str = ""
    window_title: str = ""


class HistoryThread(BaseModel):
    """A thread that new segments may continue."""

    model_config = ConfigDict(extra="ignore")

    thread_id: str
    title: str = ""
    last_active_ms: int = 0


class HistorySegment(BaseModel):
    """A recent event that may still continue."""

    model_config = ConfigDict(extra="ignore")

    thread_id: str
    title: str
    summary: str = ""
    event_time_ms: int = 0


class HistoryPack(BaseModel):
    """The history in the prompt. Rule: docs/sources/screenshots.md#history."""

    model_config = ConfigDict(extra="ignore")

    threads: list[HistoryThread] = Field(default_factory=list)
    segments: list[HistorySegment] = Field(default_factory=list)
    entities: list[str] = Field(default_factory=list)

    @property
    def thread_ids(self) -> list[str]:
        """The distinct threads that a segment may continue."""
        named = [*(thread.thread_id for thread in self.threads), *(segment.thread_id for segment in self.segments)]
        return list(dict.fromkeys(named))


def shot_of(row: Any) -> Shot:
    """Convert a row to a frame."""
    ts_ms = int(row.ts.timestamp() * 1000)
    return Shot(row.id, ts_ms, row.created_at, row.phash, row.app, row.window_title)


def total_attempts(row: Any) -> int:
    """Count the attempts of a batch (its row) over both steps and all replays.

    Rule: docs/sources/screenshots.md#events.

    `attempts` restarts at the expansion, whose first attempt belongs to the attempt that finished the analysis.
    """
    return int(row.attempts_before) + max(int(row.attempts), 1 if row.started_at else 0)


def waited_ms(row: Any, now: datetime) -> int:
    """Return the sum in ms of a batch's (its row's) waits between a failed attempt and the next; a present wait counts
    up to `now`."""
    since = row.rests_since
    return int(row.waited_ms) + (max(0, _ms(now - since)) if since else 0)


def run_ms(row: Any, now: datetime) -> int:
    """Return the run time in ms of a batch (its row) until its end or now, without waits between attempts.

    Rule: docs/sources/screenshots.md#events.
    """
    ended = row.finished_at or row.rests_since or now
    return max(0, _ms(ended - (row.started_at or ended)) - int(row.waited_ms))


def _ms(span: timedelta) -> int:
    return int(span.total_seconds() * 1000)


def is_source_key(text: str) -> bool:
    """Whether the text names a source: `screen:ID` or `window:ID`, at most 120 characters.

    Rule: docs/sources/screenshots.md#intake.

    An id has no colon, slash or blank, because keys of batches contain it and people type it.
    """
    return len(text) <= MAX_SOURCE_KEY and text.isprintable() and bool(_SOURCE_KEY.fullmatch(text))


def in_order(shots: Sequence[Shot]) -> list[Shot]:
    """Sort frames by time of capture, then by arrival."""
    return sorted(shots, key=lambda shot: (shot.ts_ms, shot.id))


def due_at(accepted_at: datetime, timeout_s: float, now: datetime) -> datetime:
    """Return the time at which a batch is ready, however small, if its first frame arrived at `accepted_at`.

    Uses our clock, not the frame's. An arrival further in the future than the timeout means that our clock went back:
    the batch is due now. Smaller differences between machines' clocks only change the wait.
    """
    wait = timedelta(seconds=timeout_s)
    return now if accepted_at > now + wait else accepted_at + wait


def ready(waiting: Sequence[Shot], size: int, timeout_s: float, now: datetime) -> list[list[Shot]]:
    """Return the batches that a source's waiting frames make now: full batches, and the rest once it is due.

    Takes frames in the order of arrival, so that a frame with a wrong time does not wait forever.
    """
    queue = sorted(waiting, key=lambda shot: shot.id)
    batches = portions(queue, size)
    if batches and len(batches[-1]) < size and due_at(batches[-1][0].accepted_at, timeout_s, now) > now:
        batches.pop()
    return [in_order(batch) for batch in batches]


def portions(items: Sequence[Item], size: int) -> list[list[Item]]:
    """Split `items` into consecutive lists of `size`; the last may be shorter: 12 frames by 5 give 5, 5 and 2.

    Rule: docs/sources/screenshots.md#shards.
    """
    return [list(items[start : start + size]) for start in range(0, len(items), size)]


def idempotency_key(source_key: str, shots: Sequence[Shot]) -> str:
    """Return the key `vlm_batch:SOURCE:FIRST-LAST:HASH`, which does not depend on the order of the frames.

    The times are the earliest and the latest, even if the clock went back between them.
    """
    if not shots:
        raise ValueError("a batch has at least one frame")
    named = ",".join(f"{shot.id}/{shot.phash}" for shot in sorted(shots, key=lambda shot: shot.id))
    digest = hashlib.sha256(named.encode()).hexdigest()[:16]
    times = [shot.ts_ms for shot in shots]
    return f"vlm_batch:{source_key}:{min(times)}-{max(times)}:{digest}"


def history_pack(
    threads: Sequence[HistoryThread],
    segments: Sequence[HistorySegment],
    entities: Sequence[str],
    *,
    since_ms: int,
    max_threads: int,
    max_entities: int,
) -> HistoryPack:
    """Build the history: latest threads, segments from `since_ms` on, and latest entities, each newest first."""
    newest = sorted(threads, key=lambda thread: thread.last_active_ms, reverse=True)
    recent = [segment for segment in segments if segment.event_time_ms >= since_ms]
    names: dict[str, str] = {}
    for name in entities:
        if name.strip():
            names.setdefault(name.casefold(), name)
    return HistoryPack(
        threads=newest[:max_threads],
        segments=sorted(recent, key=lambda segment: segment.event_time_ms, reverse=True),
        entities=list(names.values())[:max_entities],
    )
