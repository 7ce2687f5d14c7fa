"""What stands where on pages, and whether pictures are wanted"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "page_layouts",
        sa.Column("page_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["page_id"], ["pages.id"], name=op.f("fk_page_layouts_page_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("page_id", name=op.f("pk_page_layouts")),
    )
    # No batch operation: on SQLite that would make the table anew, and dropping the old one would delete all pages.
    op.add_column("documents", sa.Column("pictures", sa.Boolean(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("documents", "pictures")
    op.drop_table("page_layouts")
