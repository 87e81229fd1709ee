"""Epochs of the log, files that were swept before a version named them, and when a lease was renewed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

BIGINT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    for table, column in (("models", "lease_renewed_at"), ("leases", "renewed_at")):
        op.add_column(table, sa.Column(column, BIGINT, server_default=sa.text("0"), nullable=False))
    op.add_column("restorations", sa.Column("epoch", BIGINT, nullable=True))
    op.create_table(
        "swept_files",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("deleted_at", BIGINT, nullable=True),
        sa.PrimaryKeyConstraint("digest", name="pk_swept_files"),
    )
