"""What callers see: plain typed objects, detached from the database."""

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pipeline.engine.views import plain, view_of
from pipeline.flows.music.states import BatchStatus, Mode, PipelineState, SongStatus, Step
from pipeline.providers.queue_views import Holdup


@dataclass(frozen=True)
class SongView:
    """A song, and what was found out about it."""

    id: int
    library: str
    server_id: str
    title: str
    artist: str
    album: str
    genre: str
    year: int | None
    duration_s: int | None
    path: str
    musicbrainz_id: str
    status: SongStatus
    error: str | None
    missing_since: datetime | None
    description: str
    tags: list[str]
    mood: str
    is_instrumental: bool | None
    energy_level: float | None
    analysis: dict[str, Any] | None
    vector_text: str
    model: str
    vector_model: str
    analysed_at: datetime | None
    updated_at: datetime


@dataclass(frozen=True)
class BatchView:
    """A batch of songs. `reply`: what the model said, if that was of no use."""

    id: int
    correlation_id: str
    run_id: str
    mode: Mode
    step: Step
    status: BatchStatus
    song_ids: list[int]
    attempts: int
    retry_count: int
    saved: int
    left_out: int
    ignored: int
    error: str | None
    reply: str | None
    next_run_at: datetime | None
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True)
class RunView:
    """A run of the pipeline. `outcome`: `completed`, `stopped`, `failed`; None while it is active."""

    id: str
    status: PipelineState
    mode: Mode
    song_limit: int | None
    enqueued: int
    outcome: str | None
    error: str | None
    sync_report: dict[str, Any] | None
    created_at: datetime
    finished_at: datetime | None

    @property
    def settled(self) -> bool:
        """It has ended or is paused, so it is not worth waiting for any longer."""
        return self.outcome is not None or self.status is PipelineState.PAUSED


@dataclass(frozen=True)
class RunFigures:
    """How far a run is, and what it cost. A song counts for the run that took it up last.

    Batches that are done are kept for a while only; calls, too: see docs/operations.md.
    """

    run_id: str
    songs: dict[str, int]
    """How many are in which state."""
    batches: dict[str, int]
    delayed: int
    """Batches that wait for a retry."""
    calls: int
    failed_calls: int
    input_tokens: int
    output_tokens: int
    cost: float
    """By the providers' price lists."""


@dataclass(frozen=True)
class RunSums:
    """What a run came to: its songs by state, and what its calls cost."""

    songs: dict[str, int]
    cost: float


@dataclass(frozen=True)
class MusicStatus:
    """Figures of the active run, or of the last one. Delayed: batches that wait for a retry. Source 002, section 6."""

    is_paused: bool
    is_worker_running: bool
    active_jobs: int
    waiting_jobs: int
    completed_jobs: int
    failed_jobs: int
    delayed_jobs: int
    pending_songs: int
    total_songs: int
    pipeline_state: PipelineState
    songs: dict[str, int] = field(default_factory=dict)
    missing_songs: int = 0
    reason: str = ""
    """Why it is paused, or which breaker is open."""
    stand_in: str = ""
    """The provider that writes metadata while the configured provider's breaker is open."""
    failed_songs: int = 0
    """Songs of the run that failed: with their batch, or because replies left them out too often."""
    run: RunView | None = None
    songs_with_vector: int = 0
    waits: list[Holdup] = field(default_factory=list)
    """Why nothing more of the run is let through, by the queues that it needs; empty if something is."""

    def contract(self) -> dict[str, Any]:
        """As JSON: the source's figures by the source's names, then the rest."""
        names = (
            "is_paused",
            "is_worker_running",
            "active_jobs",
            "waiting_jobs",
            "completed_jobs",
            "failed_jobs",
            "delayed_jobs",
            "pending_songs",
            "total_songs",
            "pipeline_state",
            "missing_songs",
        )
        found = {_camel(name): getattr(self, name) for name in names}
        run = plain(self.run) if self.run else None
        more = {
            "songs": self.songs,
            "reason": self.reason,
            "standIn": self.stand_in,
            "failedSongs": self.failed_songs,
            "songsWithVector": self.songs_with_vector,
            "waits": plain(self.waits),
        }
        return found | more | {"run": run}


@dataclass(frozen=True)
class Estimate:
    """What a run would do: a dry run. `seconds`: the least time under the current limits. Tokens are estimates."""

    mode: Mode
    songs: int
    new_songs: int
    """Those of them that the sync would add."""
    batches: int
    metadata_calls: int
    embedding_calls: int
    input_tokens: int
    output_tokens: int
    seconds: float
    limits: dict[str, str]
    cost: float | None
    """By the providers' price lists; None: none of the models has a price."""
    unpriced: list[str]
    """Providers and models without a price: their calls are not in `cost`."""


@dataclass(frozen=True)
class Match:
    """A song that a search found. `score`: the cosine, -1 to 1; None: found by its words alone, without a vector."""

    song: SongView
    score: float | None


@dataclass(frozen=True)
class Found:
    """What a search found. `lexical`: by words alone, since no provider of embeddings is configured."""

    matches: list[Match]
    lexical: bool
    searched: int
    """Songs that could be found by mood: those with a vector of the current space."""
    songs: int = 0
    """Songs that could be found by their words: all that are there."""
    any_word: bool = False
    """No song has all the words: those found by words have some of them."""


def song_view(row: Any) -> SongView:
    return view_of(SongView, row, analysis=json.loads(row.analysis_json) if row.analysis_json else None)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
