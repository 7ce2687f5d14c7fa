"""Who asked the API for what, so that spending has a quota for each key."""

import sqlalchemy as sa

from pipeline.storage.migrations.columns import Tables, moment, string

revision = "0009"
down_revision = "0008"

tables = Tables()
tables.add(
    "api_work",
    string(40, "flow", primary_key=True),
    string(64, "item_id", primary_key=True),
    string(64, "owner"),
    moment("since"),
    sa.Index("ix_api_work_owner_since", "owner", "since"),
)


def upgrade() -> None:
    tables.create()


def downgrade() -> None:
    tables.drop()
