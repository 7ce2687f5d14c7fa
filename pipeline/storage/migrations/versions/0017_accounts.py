"""An append-only account for each caller of the API; and no id comes again after its row was deleted."""

import sqlalchemy as sa
from alembic import op

from pipeline.storage.migrations.columns import Tables, bigint, double, ident, integer, moment, string

revision = "0017"
down_revision = "0016"

NUMBERED = (
    "ai_calls",
    "music_songs",
    "music_batches",
    "screenshot_batches",
    "screenshot_entities",
    "screenshot_nodes",
    "screenshot_shards",
    "screenshots",
    "screenshot_calls",
    "screenshot_provenance",
    "screenshot_rejections",
    "page_attempts",
    "pages",
    "knowledge_batches",
    "webhook_deliveries",
    "webhook_attempts",
)


SEQUENCES = sa.table("sqlite_sequence", sa.column("name"), sa.column("seq"))
"""SQLite's own: the highest id that each such table ever had."""

accounts = Tables()
accounts.add(
    "spend_reservations",
    ident("id", primary_key=True),
    string(64, "owner"),
    string(40, "flow"),
    string(64, "item_id", "unit"),
    integer("units"),
    double("amount", "charged"),
    moment("began_at", "ends_at?"),
    sa.Index("ix_spend_reservations_item", "flow", "item_id", "began_at"),
    sa.Index("ix_spend_reservations_owner", "owner", "ends_at"),
    sa.Index("ix_spend_reservations_ends_at", "ends_at"),
    sqlite_autoincrement=True,
)
accounts.add(
    "spend_charges",
    ident("id", primary_key=True),
    string(64, "owner"),
    string(32, "call_id"),
    bigint("reservation_id"),
    string(40, "flow"),
    string(64, "scope_id", "unit"),
    string(60, "operation", "provider"),
    string(120, "model"),
    double("cost"),
    moment("at"),
    sa.UniqueConstraint("call_id", "owner"),
    sa.Index("ix_spend_charges_owner", "owner", "at"),
    sa.Index("ix_spend_charges_at", "at"),
    sqlite_autoincrement=True,
)
work = Tables()
work.add(
    "api_work",
    string(40, "flow", primary_key=True),
    string(64, "item_id", primary_key=True),
    string(64, "owner"),
    moment("since"),
    sa.Index("ix_api_work_owner_since", "owner", "since"),
)
"""Who asked for what is under way. Accounts take it over."""


def number(key: str, numbered: str) -> None:
    """Change how SQLite declares the tables' keys: `PRIMARY KEY (key)` becomes `PRIMARY KEY (numbered)`. Their rows
    stay where they are: only the declaration is written.

    Making the tables anew would delete what refers to them, and copy whatever they hold.
    """
    run = op.get_bind().exec_driver_sql
    run("PRAGMA writable_schema = ON")
    for table in NUMBERED:
        change = "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE type = 'table' AND name = ? AND instr(sql, ?)"
        before, after = (f"PRIMARY KEY ({how})" for how in (key, numbered))
        if run(change, (before, after, table, before)).rowcount != 1:
            raise RuntimeError(f"the table {table} is not declared as this migration knows it")
    run("PRAGMA writable_schema = RESET")


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        number("id", "id AUTOINCREMENT")
        for table in NUMBERED:
            newest: sa.ColumnElement[int] = sa.func.coalesce(sa.func.max(sa.column("id")), 0)
            known = sa.select(sa.literal(table), newest).select_from(sa.table(table, sa.column("id")))
            op.execute(SEQUENCES.insert().from_select(["name", "seq"], known))
    accounts.create()
    op.execute(
        """
        INSERT INTO spend_reservations (owner, flow, item_id, unit, units, amount, charged, began_at, ends_at)
        SELECT owner, flow, CASE flow WHEN 'screenshots' THEN 'frame:' || item_id ELSE item_id END,
            '', 1, 0.0, 0.0, since, since
        FROM api_work
        """
    )
    work.drop()


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        number("id AUTOINCREMENT", "id")
        op.execute(SEQUENCES.delete().where(SEQUENCES.c.name.in_(NUMBERED)))
    accounts.drop()
    work.create()
