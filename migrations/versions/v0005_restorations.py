"""Restorations from a backup; extensions of deadlines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

BIGINT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "restorations",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("started_at", BIGINT, nullable=False),
        sa.Column("confirmed_at", BIGINT, nullable=True),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_restorations"),
    )
    op.add_column("deletion_requests", sa.Column("extended_at", BIGINT, nullable=True))
    op.add_column("deletion_requests", sa.Column("first_due_at", BIGINT, nullable=True))


def downgrade() -> None:
    """Only where neither was used: both are part of the record."""
    used = sa.text(
        "SELECT (SELECT count(*) FROM restorations)"
        " + (SELECT count(*) FROM deletion_requests WHERE extended_at IS NOT NULL)"
    )
    if op.get_bind().execute(used).scalar_one():
        raise RuntimeError("Migration 0005 cannot be undone: restorations or extended deadlines are on record.")
    op.drop_column("deletion_requests", "first_due_at")
    op.drop_column("deletion_requests", "extended_at")
    op.drop_table("restorations")
