"""Raw replies of models, kept to be parsed again; and why a page fell back to local conversion."""

from pipeline.storage.migrations.columns import add_columns, blob, drop_columns, text

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    add_columns("page_attempts", *blob("reply?"))
    add_columns("pages", *text("fallback?"))


def downgrade() -> None:
    drop_columns("page_attempts", "reply")
    drop_columns("pages", "fallback")
