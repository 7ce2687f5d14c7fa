"""Which share of a page's text recognition is unsure of."""

from pipeline.storage.migrations.columns import add_columns, double, drop_columns

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    add_columns("pages", *double("uncertain_share?"))


def downgrade() -> None:
    drop_columns("pages", "uncertain_share")
