"""Songs, batches and runs of the music flow; vectors"""

import sqlalchemy as sa
from alembic import op

from pipeline.engine import tables

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_music_runs()
    _create_music_songs()
    _create_vectors()
    _create_music_batches()


def _create_music_runs() -> None:
    op.create_table(
        "music_runs",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("active", sa.Integer(), nullable=True),
        sa.Column("mode", sa.String(length=20), nullable=False),
        sa.Column("song_limit", sa.Integer(), nullable=True),
        sa.Column("enqueued", sa.Integer(), nullable=False),
        sa.Column("synced", sa.Boolean(), nullable=False),
        sa.Column("all_enqueued", sa.Boolean(), nullable=False),
        sa.Column("sync_report", sa.Text(), nullable=True),
        sa.Column("outcome", sa.String(length=20), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("launches", sa.Integer(), nullable=False),
        sa.Column("launch_due_at", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("created_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("updated_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("finished_at", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("worker_id", sa.String(length=200), nullable=True),
        sa.Column("claim_id", sa.String(length=32), nullable=True),
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.Column("lease_until", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_run_at", tables.UtcDateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_music_runs")),
        sa.UniqueConstraint("active", name=op.f("uq_music_runs_active")),
    )
    with op.batch_alter_table("music_runs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_music_runs_request_id"), ["request_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_music_runs_worker_id"), ["worker_id"], unique=False)


def _create_music_songs() -> None:
    op.create_table(
        "music_songs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("library", sa.String(length=20), nullable=False),
        sa.Column("server_id", sa.String(length=255), nullable=False),
        sa.Column("title", sa.String(length=500), nullable=False),
        sa.Column("artist", sa.String(length=500), nullable=False),
        sa.Column("album", sa.String(length=500), nullable=False),
        sa.Column("genre", sa.String(length=200), nullable=False),
        sa.Column("year", sa.Integer(), nullable=True),
        sa.Column("duration_s", sa.Integer(), nullable=True),
        sa.Column("path", sa.String(length=600), nullable=False),
        sa.Column("musicbrainz_id", sa.String(length=64), nullable=False),
        sa.Column("seen_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("missing_since", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("run_id", sa.String(length=32), nullable=True),
        sa.Column("batch_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("mood", sa.String(length=200), nullable=False),
        sa.Column("is_instrumental", sa.Boolean(), nullable=True),
        sa.Column("energy_level", sa.Double(), nullable=True),
        sa.Column("analysis_json", sa.Text(), nullable=True),
        sa.Column("vector_text", sa.Text(), nullable=False),
        sa.Column("model", sa.String(length=120), nullable=False),
        sa.Column("analysed_at", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("vector_model", sa.String(length=200), nullable=False),
        sa.Column("created_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("updated_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_music_songs")),
    )
    with op.batch_alter_table("music_songs", schema=None) as batch_op:
        batch_op.create_index("ix_music_songs_batch_id", ["batch_id"], unique=False)
        batch_op.create_index("ix_music_songs_library_musicbrainz_id", ["library", "musicbrainz_id"], unique=False)
        batch_op.create_index("ix_music_songs_library_path", ["library", "path"], unique=False)
        batch_op.create_index("ix_music_songs_library_seen_at", ["library", "seen_at"], unique=False)
        batch_op.create_index("ix_music_songs_library_server_id", ["library", "server_id"], unique=True)
        batch_op.create_index("ix_music_songs_run_id", ["run_id"], unique=False)
        batch_op.create_index("ix_music_songs_status_batch_id", ["status", "batch_id"], unique=False)


def _create_vectors() -> None:
    op.create_table(
        "vectors",
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("item_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("dims", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("updated_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("kind", "item_id", name=op.f("pk_vectors")),
    )
    with op.batch_alter_table("vectors", schema=None) as batch_op:
        batch_op.create_index("ix_vectors_kind_model", ["kind", "model"], unique=False)


def _create_music_batches() -> None:
    op.create_table(
        "music_batches",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("correlation_id", sa.String(length=60), nullable=False),
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("mode", sa.String(length=20), nullable=False),
        sa.Column("step", sa.String(length=20), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("song_ids", sa.Text(), nullable=False),
        sa.Column("songs", sa.Integer(), nullable=False),
        sa.Column("reply", sa.Text(), nullable=True),
        sa.Column("analysis", sa.Text(), nullable=True),
        sa.Column("analysis_model", sa.String(length=120), nullable=False),
        sa.Column("vectors", sa.LargeBinary(), nullable=True),
        sa.Column("vector_ids", sa.Text(), nullable=True),
        sa.Column("vector_model", sa.String(length=200), nullable=False),
        sa.Column("saved", sa.Integer(), nullable=False),
        sa.Column("left_out", sa.Integer(), nullable=False),
        sa.Column("ignored", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("retry_count", sa.Integer(), nullable=False),
        sa.Column("launches", sa.Integer(), nullable=False),
        sa.Column("launch_due_at", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("created_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("updated_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("finished_at", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("worker_id", sa.String(length=200), nullable=True),
        sa.Column("claim_id", sa.String(length=32), nullable=True),
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.Column("lease_until", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_run_at", tables.UtcDateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"], ["music_runs.id"], name=op.f("fk_music_batches_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_music_batches")),
    )
    with op.batch_alter_table("music_batches", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_music_batches_request_id"), ["request_id"], unique=False)
        batch_op.create_index("ix_music_batches_run_id_status", ["run_id", "status"], unique=False)
        batch_op.create_index("ix_music_batches_status", ["status"], unique=False)
        batch_op.create_index(batch_op.f("ix_music_batches_worker_id"), ["worker_id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("music_batches", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_music_batches_worker_id"))
        batch_op.drop_index("ix_music_batches_status")
        batch_op.drop_index("ix_music_batches_run_id_status")
        batch_op.drop_index(batch_op.f("ix_music_batches_request_id"))

    op.drop_table("music_batches")
    with op.batch_alter_table("vectors", schema=None) as batch_op:
        batch_op.drop_index("ix_vectors_kind_model")

    op.drop_table("vectors")
    with op.batch_alter_table("music_songs", schema=None) as batch_op:
        batch_op.drop_index("ix_music_songs_status_batch_id")
        batch_op.drop_index("ix_music_songs_run_id")
        batch_op.drop_index("ix_music_songs_library_server_id")
        batch_op.drop_index("ix_music_songs_library_seen_at")
        batch_op.drop_index("ix_music_songs_library_path")
        batch_op.drop_index("ix_music_songs_library_musicbrainz_id")
        batch_op.drop_index("ix_music_songs_batch_id")

    op.drop_table("music_songs")
    with op.batch_alter_table("music_runs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_music_runs_worker_id"))
        batch_op.drop_index(batch_op.f("ix_music_runs_request_id"))

    op.drop_table("music_runs")
