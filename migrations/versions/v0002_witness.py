"""Epochs of the log, and files that were swept before a version named them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BIGINT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("restorations", sa.Column("epoch", BIGINT, nullable=True))
    op.create_table(
        "swept_files",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("deleted_at", BIGINT, nullable=True),
        sa.PrimaryKeyConstraint("digest", name="pk_swept_files"),
    )
