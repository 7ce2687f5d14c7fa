"""An append-only account for each caller of the API; and no id comes again after its row was deleted."""

import sqlalchemy as sa
from alembic import op

from pipeline.storage.migrations.columns import bigint, double, ident, integer, moment, string

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

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


RESERVATIONS = sa.table(
    "spend_reservations",
    *(
        sa.column(name)
        for name in (
            "owner",
            "flow",
            "item_id",
            "unit",
            "units",
            "amount",
            "charged",
            "began_at",
            "ends_at",
        )
    ),
)


def number(key: str, numbered: str) -> None:
    """Change how SQLite declares the tables' keys. Their rows stay where they are: only the declaration is written.

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
    op.create_table(
        "spend_reservations",
        *ident("id"),
        *string(64, "owner"),
        *string(40, "flow"),
        *string(64, "item_id"),
        *string(64, "unit"),
        *integer("units"),
        *double("amount", "charged"),
        *moment("began_at"),
        *moment("ends_at?"),
        sa.PrimaryKeyConstraint("id", name="pk_spend_reservations"),
        sa.Index("ix_spend_reservations_item", "flow", "item_id", "began_at"),
        sa.Index("ix_spend_reservations_owner", "owner", "ends_at"),
        sa.Index("ix_spend_reservations_ends_at", "ends_at"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "spend_charges",
        *ident("id"),
        *string(64, "owner"),
        *string(32, "call_id"),
        *bigint("reservation_id"),
        *string(40, "flow"),
        *string(64, "scope_id"),
        *string(64, "unit"),
        *string(60, "operation"),
        *string(60, "provider"),
        *string(120, "model"),
        *double("cost"),
        *moment("at"),
        sa.PrimaryKeyConstraint("id", name="pk_spend_charges"),
        sa.UniqueConstraint("call_id", "owner", name="uq_spend_charges_call_id_owner"),
        sa.Index("ix_spend_charges_owner", "owner", "at"),
        sa.Index("ix_spend_charges_at", "at"),
        sqlite_autoincrement=True,
    )
    # Who asked for what is under way: its calls are charged to them, as before.
    work = sa.table("api_work", *(sa.column(name) for name in ("flow", "item_id", "owner", "since")))
    item = sa.case((work.c.flow == "screenshots", sa.literal("frame:") + work.c.item_id), else_=work.c.item_id)
    known = sa.select(
        work.c.owner,
        work.c.flow,
        item,
        sa.literal(""),
        sa.literal(1),
        sa.literal(0.0),
        sa.literal(0.0),
        work.c.since,
        work.c.since,
    )
    op.execute(RESERVATIONS.insert().from_select([column.name for column in RESERVATIONS.c], known))
    op.drop_table("api_work")


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        number("id AUTOINCREMENT", "id")
        op.execute(SEQUENCES.delete().where(SEQUENCES.c.name.in_(NUMBERED)))
    op.drop_table("spend_charges")
    op.drop_table("spend_reservations")
    op.create_table(
        "api_work",
        *string(40, "flow"),
        *string(64, "item_id"),
        *string(64, "owner"),
        *moment("since"),
        sa.PrimaryKeyConstraint("flow", "item_id", name="pk_api_work"),
        sa.Index("ix_api_work_owner_since", "owner", "since"),
    )
