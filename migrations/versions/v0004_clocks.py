"""Each process tells with its heartbeat how far its clock is from the database's."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("heartbeats", sa.Column("skew", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True))


def downgrade() -> None:
    op.drop_column("heartbeats", "skew")
