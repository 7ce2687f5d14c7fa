"""Tables of the music flow: songs, batches of them, and runs of the pipeline. Rules: docs/sources/music.md#steps."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from pipeline.engine.announced import announced
from pipeline.engine.claims import ClaimColumns, claimable_index, claims_index, waits_index
from pipeline.engine.tables import Base, RowId, UtcDateTime, table_of
from pipeline.flows.music.states import BATCH, BatchEvent, BatchStatus, Mode, PipelineState, SongStatus, Step


class Song(Base):
    """A song of a library, and its analysis. Never deleted, since the analysis was paid for."""

    __tablename__ = "music_songs"
    __table_args__ = (
        Index("ix_music_songs_library_server_id", "library", "server_id", unique=True),
        Index("ix_music_songs_library_path", "library", "path"),
        Index("ix_music_songs_library_musicbrainz_id", "library", "musicbrainz_id"),
        Index("ix_music_songs_library_seen_at", "library", "seen_at"),
        Index("ix_music_songs_status_batch_id", "status", "batch_id"),
        Index("ix_music_songs_batch_id", "batch_id"),
        Index("ix_music_songs_run_id", "run_id"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    """Penstock's id, which stays when the server gives the song another id."""
    library: Mapped[str] = mapped_column(String(20))
    """`server` or `folder`."""
    server_id: Mapped[str] = mapped_column(String(255))
    """The id in its library (2.E: navidrome_id), and in the prompt."""
    title: Mapped[str] = mapped_column(String(500))
    artist: Mapped[str] = mapped_column(String(500), default="")
    album: Mapped[str] = mapped_column(String(500), default="")
    genre: Mapped[str] = mapped_column(String(200), default="")
    year: Mapped[int | None]
    duration_s: Mapped[int | None]
    path: Mapped[str] = mapped_column(String(600), default="")
    musicbrainz_id: Mapped[str] = mapped_column(String(64), default="")
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """The start of the last sync that listed it."""
    missing_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """The time at which a complete listing first lacked it; None while the library has it."""
    status: Mapped[str] = mapped_column(String(20), default=SongStatus.PENDING.value)
    attempts: Mapped[int] = mapped_column(default=0)
    """The number of replies that left it out."""
    error: Mapped[str | None] = mapped_column(Text)
    run_id: Mapped[str | None] = mapped_column(String(32))
    """The last run that took it up."""
    batch_id: Mapped[int | None] = mapped_column(RowId)
    """Its open batch, or None. The transaction that creates or ends the batch writes it."""
    description: Mapped[str] = mapped_column(Text, default="")
    tags: Mapped[str] = mapped_column(Text, default="[]")
    """JSON list."""
    mood: Mapped[str] = mapped_column(String(200), default="")
    is_instrumental: Mapped[bool | None]
    energy_level: Mapped[float | None]
    analysis_json: Mapped[str | None] = mapped_column(Text)
    """The model's answer about this song, as validated."""
    vector_text: Mapped[str] = mapped_column(Text, default="")
    """The text to embed."""
    model: Mapped[str] = mapped_column(String(120), default="")
    analysed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    vector_model: Mapped[str] = mapped_column(String(200), default="")
    """Provider and model of its vector; empty without one."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Run(ClaimColumns, Base):
    """One run of the pipeline. Claimed while it syncs. At most one is active."""

    __tablename__ = "music_runs"
    __table_args__ = (
        claims_index("music_runs"),
        waits_index("music_runs"),
        announced(
            "music",
            "music_run",
            PipelineState,
            "mode",
            "enqueued",
            "error",
            outcome="outcome",
            outcomes=("completed", "stopped", "failed"),
        ),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    status: Mapped[str] = mapped_column(String(20), default=PipelineState.IDLE.value)
    active: Mapped[int | None] = mapped_column(unique=True)
    """1 until the run has ended, then None: the unique constraint refuses a second start."""
    mode: Mapped[str] = mapped_column(String(20), default=Mode.FULL.value)
    song_limit: Mapped[int | None]
    enqueued: Mapped[int] = mapped_column(default=0)
    synced: Mapped[bool] = mapped_column(default=False)
    """The run has synced, or skips the sync."""
    all_enqueued: Mapped[bool] = mapped_column(default=False)
    sync_report: Mapped[str | None] = mapped_column(Text)
    outcome: Mapped[str | None] = mapped_column(String(20))
    """`completed`, `stopped` or `failed`; None while active."""
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class SongBatch(ClaimColumns, Base):
    """Songs that one call describes or embeds: the unit of work. It holds paid results until they are saved."""

    __tablename__ = "music_batches"
    __table_args__ = (
        Index("ix_music_batches_run_id_status", "run_id", "status"),
        Index("ix_music_batches_status", "status"),
        claims_index("music_batches"),
        waits_index("music_batches"),
        claimable_index("music_batches", "run_id", "step", "releases", "id", states=BATCH.sources(BatchEvent.CLAIM)),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    correlation_id: Mapped[str] = mapped_column(String(60))
    run_id: Mapped[str] = mapped_column(ForeignKey("music_runs.id", ondelete="CASCADE"))
    mode: Mapped[str] = mapped_column(String(20))
    step: Mapped[str] = mapped_column(String(20), default=Step.METADATA.value)
    status: Mapped[str] = mapped_column(String(20), default=BatchStatus.PENDING.value)
    song_ids: Mapped[str] = mapped_column(Text)
    """JSON list of our song ids, to inspect the batch later."""
    songs: Mapped[int]
    reply: Mapped[str | None] = mapped_column(Text)
    """An invalid reply, for its repair and for inspection."""
    analysis: Mapped[str | None] = mapped_column(Text)
    """Paid metadata, JSON: our song id → the validated answer."""
    analysis_model: Mapped[str] = mapped_column(String(120), default="")
    vectors: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Paid vectors: float32, row after row, in the order of `vector_ids`."""
    vector_ids: Mapped[str | None] = mapped_column(Text)
    vector_model: Mapped[str] = mapped_column(String(200), default="")
    saved: Mapped[int] = mapped_column(default=0)
    left_out: Mapped[int] = mapped_column(default=0)
    """Songs that the reply left out."""
    ignored: Mapped[int] = mapped_column(default=0)
    """Answers with an unknown or repeated id."""
    error: Mapped[str | None] = mapped_column(Text)
    retry_count: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


SONGS = table_of(Song)
RUNS = table_of(Run)
BATCHES = table_of(SongBatch)
