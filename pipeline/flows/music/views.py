"""Views of songs, batches and runs: frozen copies of rows, detached from the database."""

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from pydantic import ConfigDict, JsonValue, PlainSerializer
from pydantic.alias_generators import to_camel

from pipeline.engine.views import plain, view_of
from pipeline.engine.wire import HIDDEN, VIEW, example
from pipeline.flows.music.states import BatchStatus, Mode, PipelineState, SongStatus, Step
from pipeline.providers.queue_views import Holdup


@dataclass(frozen=True)
class SongView:
    """A song and its analysis."""

    __pydantic_config__ = example(
        id=17,
        library="server",
        server_id="s17",
        title="So What",
        artist="Miles Davis",
        album="Kind of Blue",
        genre="Jazz",
        year=1959,
        duration_s=562,
        musicbrainz_id="",
        status="COMPLETED",
        error=None,
        missing_since=None,
        description="A cool, spacious theme.",
        tags=["Genre:Jazz"],
        mood="Calm",
        is_instrumental=True,
        energy_level=3.5,
        analysis=None,
        model="gpt-5-mini",
        vector_model="openai:text-embedding-3-small",
        analysed_at="2026-11-22T10:05:00Z",
        updated_at="2026-11-22T10:05:00Z",
    )
    id: int
    library: str
    server_id: str
    title: str
    artist: str
    album: str
    genre: str
    year: int | None
    duration_s: int | None
    path: Annotated[str, HIDDEN]
    musicbrainz_id: str
    status: SongStatus
    error: str | None
    missing_since: datetime | None
    description: str
    tags: list[str]
    mood: str
    is_instrumental: bool | None
    energy_level: float | None
    analysis: dict[str, JsonValue] | None
    vector_text: Annotated[str, HIDDEN]
    model: str
    vector_model: str
    analysed_at: datetime | None
    updated_at: datetime


@dataclass(frozen=True)
class BatchView:
    """A batch of songs. FAILED: Penstock gave it up; retry it, or start a run with `failed`."""

    __pydantic_config__ = VIEW
    id: int
    correlation_id: str
    run_id: str
    mode: Mode
    step: Annotated[Step, PlainSerializer(str, return_type=str)]
    status: BatchStatus
    song_ids: list[int]
    attempts: int
    retry_count: int
    saved: int
    left_out: int
    ignored: int
    error: str | None
    reply: str | None
    """The model's reply if it was unusable; only administrators see it."""
    next_run_at: datetime | None
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True)
class RunView:
    """A run of the pipeline."""

    __pydantic_config__ = example(
        id="6f1e5d0c2b7a4893a1b2c3d4e5f60718",
        status="running",
        mode="full",
        song_limit=None,
        enqueued=1200,
        outcome=None,
        error=None,
        sync_report={"seen": 1200, "added": 40},
        created_at="2026-11-22T10:00:00Z",
        finished_at=None,
    )
    id: str
    status: PipelineState
    mode: Mode
    song_limit: int | None
    enqueued: int
    outcome: str | None
    """`completed`, `stopped`, `failed`; null while it is active."""
    error: str | None
    sync_report: dict[str, JsonValue] | None
    created_at: datetime
    finished_at: datetime | None

    @property
    def settled(self) -> bool:
        """Whether it has ended or is paused, so that waiting for it makes no sense."""
        return self.outcome is not None or self.status is PipelineState.PAUSED


@dataclass(frozen=True)
class RunFigures:
    """The progress and cost of a run. A song counts for the last run that took it up.

    Retention deletes done batches and calls after some time: see docs/how-to/operations.md.
    """

    __pydantic_config__ = VIEW
    run_id: str
    songs: dict[str, int]
    """The number of songs by state."""
    batches: dict[str, int]
    delayed: int
    """Batches that wait for a retry."""
    calls: int
    failed_calls: int
    input_tokens: int
    output_tokens: int
    cost: float
    """The cost by the providers' price lists."""


@dataclass(frozen=True)
class RunSums:
    """The sums of a run: its songs by state, and the cost of its calls."""

    songs: dict[str, int]
    cost: float


@dataclass(frozen=True)
class MusicStatus:
    """Figures of the active run, or of the last one, by the names of docs/sources/music.md#status."""

    __pydantic_config__ = ConfigDict(**VIEW, alias_generator=to_camel)
    is_paused: bool
    is_worker_running: bool
    active_jobs: int
    waiting_jobs: int
    completed_jobs: int
    failed_jobs: int
    delayed_jobs: int
    """Batches that wait for a retry."""
    pending_songs: int
    total_songs: int
    pipeline_state: PipelineState
    missing_songs: int = 0
    songs: dict[str, int] = field(default_factory=dict)
    reason: str = ""
    """The closed gates that the run needs, with their reasons."""
    stand_in: str = ""
    """The provider that writes metadata while the configured provider's breaker is open."""
    failed_songs: int = 0
    """Songs of the run that failed with their batch, or because replies left them out too often."""
    songs_with_vector: int = 0
    waits: list[Holdup] = field(default_factory=list)
    """The holdups of the queues that the active run needs; empty if none is held up."""
    run: RunView | None = None

    def contract(self) -> dict[str, Any]:
        """Return the status as a dict, ready for JSON, by the design's names."""
        return {to_camel(name): value for name, value in plain(self).items()}


@dataclass(frozen=True)
class Estimate:
    """The estimate of a run, from a dry run. Tokens are estimates."""

    __pydantic_config__ = VIEW
    mode: Mode
    songs: int
    new_songs: int
    """The songs that the sync would add."""
    batches: int
    metadata_calls: int
    embedding_calls: int
    input_tokens: int
    output_tokens: int
    seconds: float
    """The least time under the current limits."""
    limits: dict[str, str]
    cost: float | None
    """The cost by the providers' price lists; null: no model has a price."""
    unpriced: list[str]
    """Providers and models without a price, whose calls `cost` excludes."""


@dataclass(frozen=True)
class Match:
    """A matching song."""

    __pydantic_config__ = VIEW
    song: SongView
    score: float | None
    """The cosine, -1 to 1; null: only its words matched."""


@dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    __pydantic_config__ = VIEW
    matches: list[Match]
    lexical: bool
    """The vectors know words only, since no provider of embeddings is configured."""
    searched: int
    """Songs that a search by mood can find: those with a vector of the current space."""
    songs: int = 0
    """Songs that a search by words can find: all except missing ones."""
    any_word: bool = False
    """No song contains all words: those matched by words contain some of them."""


def song_view(row: Any) -> SongView:
    return view_of(SongView, row, analysis=json.loads(row.analysis_json) if row.analysis_json else None)
