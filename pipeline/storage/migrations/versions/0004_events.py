"""Events of rows that people follow, and the counter of their numbers."""

import sqlalchemy as sa

from pipeline.storage.migrations.columns import Tables, bigint, ident, integer, moment, string, text

revision = "0004"
down_revision = "0003"

tables = Tables()
tables.add(
    "events",
    ident("seq", primary_key=True, autoincrement=False),
    string(40, "flow"),
    string(80, "type"),
    string(40, "kind"),
    string(64, "scope_id"),
    string(40, "status"),
    text("data"),
    moment("created_at"),
    sa.Index("ix_events_created_at", "created_at"),
    sa.Index("ix_events_scope_id_seq", "scope_id", "seq"),
)
tables.add(
    "event_counter",
    integer("id", primary_key=True, autoincrement=False),
    bigint("seq"),
    moment("at"),
)


def upgrade() -> None:
    tables.create()


def downgrade() -> None:
    tables.drop()
