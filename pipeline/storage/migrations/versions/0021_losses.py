"""Sitemaps that have lost most of their pages keep their text until a person confirms."""

from pipeline.storage.migrations.columns import add_columns, drop_columns, text

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    add_columns("knowledge_items", *text("loss?"))


def downgrade() -> None:
    drop_columns("knowledge_items", "loss")
