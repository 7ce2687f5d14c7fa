"""Songs, runs, batches and the status of the music flow as the API shows them."""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

from pipeline.flows.music.states import BatchStatus, Mode, PipelineState, SongStatus
from pipeline.flows.music.views import BatchView
from pipeline.interfaces.http.fields import Strict
from pipeline.interfaces.http.shapes import Shape, example

RUN: dict[str, JsonValue] = {
    "id": "6f1e5d0c2b7a4893a1b2c3d4e5f60718",
    "status": "running",
    "mode": "full",
    "song_limit": None,
    "enqueued": 1200,
    "outcome": None,
    "error": None,
    "sync_report": {"seen": 1200, "added": 40},
    "created_at": "2026-11-22T10:00:00Z",
    "finished_at": None,
}
SONG: dict[str, JsonValue] = {
    "id": 17,
    "library": "server",
    "server_id": "s17",
    "title": "So What",
    "artist": "Miles Davis",
    "album": "Kind of Blue",
    "genre": "Jazz",
    "year": 1959,
    "duration_s": 562,
    "musicbrainz_id": "",
    "status": "COMPLETED",
    "error": None,
    "missing_since": None,
    "description": "A cool, spacious theme.",
    "tags": ["Genre:Jazz"],
    "mood": "Calm",
    "is_instrumental": True,
    "energy_level": 3.5,
    "analysis": None,
    "model": "gpt-5-mini",
    "vector_model": "openai:text-embedding-3-small",
    "analysed_at": "2026-11-22T10:05:00Z",
    "updated_at": "2026-11-22T10:05:00Z",
}


class MusicStart(Strict):
    """What a run does."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"mode": "full", "skip_sync": False, "limit": 20}]})
    mode: Mode = Field(default=Mode.FULL, description="full, metadata (descriptions) or embedding (vectors only).")
    skip_sync: bool = Field(default=False, description="Do not read the music library first.")
    limit: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(default=None, description="At most so many songs.")
    failed: bool = Field(default=False, description="Also retry all songs that failed.")


class MusicRunShape(Shape):
    """A run of the pipeline."""

    model_config = example(**RUN)
    id: str
    status: PipelineState
    mode: Mode
    song_limit: int | None
    enqueued: int
    outcome: str | None = Field(description="`completed`, `stopped`, `failed`; null while it is active.")
    error: str | None
    sync_report: dict[str, JsonValue] | None
    created_at: datetime
    finished_at: datetime | None


class MusicRunFiguresShape(Shape):
    """How far a run is, and what it cost. A song counts for the run that took it up last."""

    model_config = example(
        run_id=RUN["id"],
        songs={"COMPLETED": 800, "PROCESSING": 20, "FAILED": 2},
        delayed=1,
        calls=82,
        failed_calls=1,
        batches={"COMPLETED": 80, "PROCESSING": 2, "PENDING": 38},
        input_tokens=33600,
        output_tokens=208000,
        cost=0.41,
    )
    run_id: str
    songs: dict[str, int] = Field(description="How many are in which state.")
    batches: dict[str, int] = Field(description="The same; those that are done are kept for a while only.")
    delayed: int = Field(description="Batches that wait for a retry.")
    calls: int
    failed_calls: int
    input_tokens: int
    output_tokens: int
    cost: float = Field(description="By the providers' price lists, of calls that are still on record.")


class SongShape(Shape):
    """A song, and what was found out about it."""

    model_config = example(**SONG)
    id: int
    library: str
    server_id: str
    title: str
    artist: str
    album: str
    genre: str
    year: int | None
    duration_s: int | None
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
    model: str
    vector_model: str
    analysed_at: datetime | None
    updated_at: datetime


class SongMatchShape(Shape):
    """A song that a search found."""

    song: SongShape
    score: float | None = Field(description="The cosine, -1 to 1; null: found by its words, without a vector.")


class FoundSongsShape(Shape):
    """What a search found."""

    model_config = example(
        matches=[{"song": SONG, "score": 0.71}], lexical=False, searched=1200, songs=1250, any_word=False
    )
    matches: list[SongMatchShape]
    lexical: bool = Field(description="By words alone: no provider of embeddings is configured.")
    searched: int = Field(description="Songs that could be found by mood: those with a vector.")
    songs: int = Field(description="Songs that could be found by names, albums and tags: all that are there.")
    any_word: bool = Field(description="No song has all the words: those found by words have some of them.")


class MusicBatchShape(Shape):
    """A batch of songs. FAILED: it was given up; start a run with `failed` to try its songs again."""

    model_config = example(
        id=4,
        correlation_id="…",
        run_id=RUN["id"],
        mode="full",
        step="metadata",
        status="FAILED",
        song_ids=[17, 18],
        attempts=3,
        retry_count=2,
        saved=0,
        left_out=0,
        ignored=0,
        error="the reply is not JSON",
        reply=None,
        next_run_at=None,
        created_at="2026-11-22T10:01:00Z",
        finished_at="2026-11-22T10:04:00Z",
    )
    id: int
    correlation_id: str
    run_id: str
    mode: Mode
    step: str
    status: BatchStatus
    song_ids: list[int]
    attempts: int
    retry_count: int
    saved: int
    left_out: int
    ignored: int
    error: str | None
    reply: str | None = Field(description="What the model said, if that was of no use; null unless for administrators.")
    next_run_at: datetime | None
    created_at: datetime
    finished_at: datetime | None


class MusicWaitShape(Shape):
    """Why nothing more of a queue is let through."""

    kind: str = Field(description="`operator`, `spend`, `breaker`, `limits` or `capacity`.")
    words: str
    until: datetime | None


class MusicStatusShape(BaseModel):
    """Figures of the active run, or of the last one, by the names that the command line gives them."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        json_schema_extra={
            "examples": [
                {
                    "isPaused": False,
                    "isWorkerRunning": True,
                    "activeJobs": 2,
                    "waitingJobs": 40,
                    "completedJobs": 18,
                    "failedJobs": 0,
                    "delayedJobs": 0,
                    "pendingSongs": 400,
                    "totalSongs": 1200,
                    "pipelineState": "running",
                    "missingSongs": 0,
                    "songs": {"PENDING": 400, "COMPLETED": 800},
                    "reason": "",
                    "standIn": "",
                    "failedSongs": 0,
                    "songsWithVector": 790,
                    "waits": [],
                    "run": RUN,
                }
            ]
        },
    )
    is_paused: bool
    is_worker_running: bool
    active_jobs: int
    waiting_jobs: int
    completed_jobs: int
    failed_jobs: int
    delayed_jobs: int = Field(description="Batches that wait for a retry.")
    pending_songs: int
    total_songs: int
    pipeline_state: PipelineState
    missing_songs: int
    songs: dict[str, int]
    reason: str = Field(description="Why it is paused, or which breaker is open.")
    stand_in: str = Field(description="Who writes metadata while the provider's breaker is open.")
    failed_songs: int
    songs_with_vector: int
    waits: list[MusicWaitShape] = Field(description="Why nothing more of the active run is let through now.")
    run: MusicRunShape | None


class MusicEstimateShape(Shape):
    """What a run would do."""

    model_config = example(
        mode="full",
        songs=400,
        new_songs=40,
        batches=50,
        metadata_calls=50,
        embedding_calls=50,
        input_tokens=21000,
        output_tokens=104000,
        seconds=310.0,
        limits={"music.openai": "10/min"},
        cost=0.42,
        unpriced=[],
    )
    mode: Mode
    songs: int
    new_songs: int = Field(description="Those of them that the sync would add.")
    batches: int
    metadata_calls: int
    embedding_calls: int
    input_tokens: int
    output_tokens: int
    seconds: float = Field(description="The least time under the current limits.")
    limits: dict[str, str]
    cost: float | None = Field(description="By the providers' price lists; null: none of the models has a price.")
    unpriced: list[str]


class MusicSyncShape(Shape):
    """What a sync found."""

    model_config = example(seen=1200, added=40, changed=3, relinked=0, returned=1, missing=2, complete=True, note="")
    seen: int
    added: int
    changed: int
    relinked: int = Field(description="Found again under another id.")
    returned: int
    missing: int = Field(description="Gone from the library; they are flagged, never deleted.")
    complete: bool
    note: str


def batch_shape(batch: BatchView, told: bool) -> MusicBatchShape:
    """A batch as the API shows it; `told`: with what the model said."""
    shape = MusicBatchShape.model_validate(batch)
    return shape if told else shape.model_copy(update={"reply": None})
