"""The queue that a batch of songs was sent to"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("music_batches") as batch_op:
        batch_op.add_column(sa.Column("queue", sa.String(length=120), nullable=False, server_default=""))


def downgrade() -> None:
    with op.batch_alter_table("music_batches") as batch_op:
        batch_op.drop_column("queue")
