"""Why a request was rejected."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("deletion_requests", sa.Column("rejection", sa.Text(), nullable=True))


def downgrade() -> None:
    """Only where none was rejected: the reasons are part of the record."""
    used = sa.text("SELECT count(*) FROM deletion_requests WHERE rejection IS NOT NULL")
    if op.get_bind().execute(used).scalar_one():
        raise RuntimeError("Migration 0008 cannot be undone: rejected requests are on record.")
    op.drop_column("deletion_requests", "rejection")
