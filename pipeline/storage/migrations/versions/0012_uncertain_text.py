"""Which share of a page's text recognition is unsure of."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("pages", sa.Column("uncertain_share", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("pages", "uncertain_share")
