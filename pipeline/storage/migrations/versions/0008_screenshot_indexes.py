"""Indexes of the few screenshots, batches and nodes that are asked for every few seconds, however many there are"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_CLAIMED = ("screenshot_batches", "screenshot_shards", "screenshot_nodes")
_WAITING = ("screenshot_batches", "screenshot_nodes")
_RETENTION = ["storage_state", "retention_expires_at"]


def upgrade() -> None:
    for table in _CLAIMED:
        op.create_index(f"ix_{table}_claimed", table, ["worker_id", "lease_until"], **_where("claim_id IS NOT NULL"))
    for table in _WAITING:
        op.create_index(f"ix_{table}_next_run_at", table, ["next_run_at"], **_where("next_run_at IS NOT NULL"))
    op.create_index("ix_screenshots_buffer", "screenshots", ["source_key", "created_at"], **_where("batch_id IS NULL"))
    op.drop_index("ix_screenshots_retention", "screenshots")
    op.create_index("ix_screenshots_retention", "screenshots", _RETENTION, **_where("retention_expires_at IS NOT NULL"))
    op.drop_index("ix_screenshot_nodes_merged_into_id", "screenshot_nodes")
    op.create_index(
        "ix_screenshot_nodes_merged_into_id_event_time", "screenshot_nodes", ["merged_into_id", "event_time"]
    )


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def downgrade() -> None:
    op.drop_index("ix_screenshot_nodes_merged_into_id_event_time", "screenshot_nodes")
    op.create_index("ix_screenshot_nodes_merged_into_id", "screenshot_nodes", ["merged_into_id"])
    op.drop_index("ix_screenshots_retention", "screenshots")
    op.create_index("ix_screenshots_retention", "screenshots", _RETENTION)
    op.drop_index("ix_screenshots_buffer", "screenshots")
    for table in _WAITING:
        op.drop_index(f"ix_{table}_next_run_at", table)
    for table in _CLAIMED:
        op.drop_index(f"ix_{table}_claimed", table)
