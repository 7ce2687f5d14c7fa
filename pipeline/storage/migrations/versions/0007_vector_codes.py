"""Codes of vectors, and versions that count their changes"""

import numpy as np
import sqlalchemy as sa
from alembic import op

from pipeline.storage.vectors import codes

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_PORTION = 1000


def upgrade() -> None:
    op.create_table(
        "vector_versions",
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("removed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("kind", name=op.f("pk_vector_versions")),
    )
    op.create_table(
        "vector_codes",
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("item_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("dims", sa.Integer(), nullable=False),
        sa.Column("code", sa.LargeBinary(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "item_id", name=op.f("pk_vector_codes")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_vector_codes_kind_version", "vector_codes", ["kind", "version"], unique=False)
    _encode_what_is_there()


def _encode_what_is_there() -> None:
    connection = op.get_bind()
    metadata = sa.MetaData()
    vectors, coded, versions = (
        sa.Table(name, metadata, autoload_with=connection) for name in ("vectors", "vector_codes", "vector_versions")
    )
    kinds = connection.execute(sa.select(vectors.c.kind).distinct()).scalars().all()
    for kind in kinds:
        connection.execute(versions.insert().values(kind=kind, version=1, removed=0))
        after = -1
        while True:
            mine = (vectors.c.kind == kind, vectors.c.item_id > after)
            rows = connection.execute(sa.select(vectors).where(*mine).order_by(vectors.c.item_id).limit(_PORTION)).all()
            if not rows:
                break
            after = rows[-1].item_id
            made = [
                {
                    "kind": kind, "item_id": row.item_id, "model": row.model, "dims": row.dims, "version": 1,
                    "code": codes.encode(np.frombuffer(row.data, "<f4")[np.newaxis])[0],
                }
                for row in rows
            ]  # fmt: skip
            connection.execute(coded.insert(), made)


def downgrade() -> None:
    op.drop_table("vector_codes")
    op.drop_table("vector_versions")
