"""A consumer's name belongs to the actor that reported it first."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("consumers", sa.Column("actor_id", sa.String(length=36), nullable=True))
