"""Deletion orders of calibrated lineages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

BIGINT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "calibration_orders",
        sa.Column("lineage_id", BIGINT, autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("owner", sa.String(length=120), nullable=True),
        sa.Column("errors", sa.LargeBinary(), nullable=True),
        sa.Column("measured_at", BIGINT, nullable=True),
        sa.ForeignKeyConstraint(["lineage_id"], ["lineages.id"], name="fk_calibration_orders_lineage_id"),
        sa.PrimaryKeyConstraint("lineage_id", "number", name="pk_calibration_orders"),
    )


def downgrade() -> None:
    """Calibrations that are being measured begin anew under a release that knows them."""
    op.drop_table("calibration_orders")
