"""Which frames make a batch, its key, its shards, and what it is told of the past.

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
    """An accepted frame. `ts_ms`: when it was captured, by its clock; `accepted_at`: when it came, by ours."""

    id: int
    ts_ms: int
    accepted_at: datetime
    phash: str = ""
    app_hint: str = ""
    window_title: str = ""


class HistoryThread(BaseModel):
    """A thread that new segments may belong to."""

    model_config = ConfigDict(extra="ignore")

    thread_id: str
    title: str = ""
    last_active_ms: int = 0


class HistorySegment(BaseModel):
    """An event of the last minutes that may still continue."""

    model_config = ConfigDict(extra="ignore")

    thread_id: str
    title: str
    summary: str = ""
    event_time_ms: int = 0


class HistoryPack(BaseModel):
    """What the model is told of the past. Rule: docs/sources/screenshots.md#history."""

    model_config = ConfigDict(extra="ignore")

    threads: list[HistoryThread] = Field(default_factory=list)
    segments: list[HistorySegment] = Field(default_factory=list)
    entities: list[str] = Field(default_factory=list)

    @property
    def thread_ids(self) -> list[str]:
        """The threads that a segment may be merged into, each once."""
        named = [*(thread.thread_id for thread in self.threads), *(segment.thread_id for segment in self.segments)]
        return list(dict.fromkeys(named))


def shot_of(row: Any) -> Shot:
    """The frame of a row."""
    ts_ms = int(row.ts.timestamp() * 1000)
    return Shot(row.id, ts_ms, row.created_at, row.phash, row.app, row.window_title)


def total_attempts(row: Any) -> int:
    """Attempts of a batch (its row) over its whole life: over both steps and replays.

    Rule: docs/sources/screenshots.md#events.

    Nodes are made in the attempt that analysed the frames. `attempts` begins anew there, so its first is not another.
    """
    return int(row.attempts_before) + max(int(row.attempts), 1 if row.started_at else 0)


def waited_ms(row: Any, now: datetime) -> int:
    """How long a batch (its row) has rested between attempts until now."""
    since = row.rests_since
    return int(row.waited_ms) + (max(0, _ms(now - since)) if since else 0)


def run_ms(row: Any, now: datetime) -> int:
    """How long a batch (its row) ran, from its begin to its end, or until now: waits for another attempt do not count.

    Rule: docs/sources/screenshots.md#events.
    """
    ended = row.finished_at or row.rests_since or now
    return max(0, _ms(ended - (row.started_at or ended)) - int(row.waited_ms))


def _ms(span: timedelta) -> int:
    return int(span.total_seconds() * 1000)


def is_source_key(text: str) -> bool:
    """Whether this names a source: `screen:ID` or `window:ID`, at most 120 characters.

    Rule: docs/sources/screenshots.md#intake.

    An ID has no colon, slash or blank: batches' keys contain it, and people type it.
    """
    return len(text) <= MAX_SOURCE_KEY and text.isprintable() and bool(_SOURCE_KEY.fullmatch(text))


def in_order(shots: Sequence[Shot]) -> list[Shot]:
    """By the time they were captured; those of the same time by arrival."""
    return sorted(shots, key=lambda shot: (shot.ts_ms, shot.id))


def due_at(accepted_at: datetime, timeout_s: float, now: datetime) -> datetime:
    """When a batch whose first frame came at `accepted_at` is ready, however small.

    By our clock, not by the frame's. If that time is further away than the time-out, our clock was set back: it is due
    now. Clocks of several machines that differ by less only change the wait.
    """
    wait = timedelta(seconds=timeout_s)
    return now if accepted_at > now + wait else accepted_at + wait


def ready(waiting: Sequence[Shot], size: int, timeout_s: float, now: datetime) -> list[list[Shot]]:
    """The batches that one source's waiting frames make now: full ones, and the rest once it is due.

    Frames are taken in order of arrival, so that one with a wrong time is not passed over for ever.
    """
    queue = sorted(waiting, key=lambda shot: shot.id)
    found = portions(queue, size)
    if found and len(found[-1]) < size and due_at(found[-1][0].accepted_at, timeout_s, now) > now:
        found.pop()
    return [in_order(batch) for batch in found]


def portions(items: Sequence[Item], size: int) -> list[list[Item]]:
    """`items` in runs of `size`; the last may be shorter: 12 frames by 5 are 5, 5 and 2.

    Rule: docs/sources/screenshots.md#shards.
    """
    return [list(items[start : start + size]) for start in range(0, len(items), size)]


def idempotency_key(source_key: str, shots: Sequence[Shot]) -> str:
    """`vlm_batch:SOURCE:FIRST-LAST:HASH`: the same for the same frames, in whatever order.

    The times are the earliest and the latest, even if the clock was set back between them.
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
    """The threads that were active last, open segments since then, entities mentioned last; newest first."""
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
