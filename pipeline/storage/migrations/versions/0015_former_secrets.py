"""The former secret of a webhook endpoint, which signs for a day beside the new one."""

from alembic import op

from pipeline.storage.migrations.columns import moment, string

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

TABLE = "webhook_endpoints"


def upgrade() -> None:
    for column in (*string(100, "former_secret?"), *moment("former_until?")):
        op.add_column(TABLE, column)


def downgrade() -> None:
    for name in ("former_until", "former_secret"):
        op.drop_column(TABLE, name)
