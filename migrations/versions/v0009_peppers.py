"""What a change of the pepper needs: under which one a key was made, and which hold another stands for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("pepper_id", sa.String(length=16), nullable=True))
    op.add_column("holds", sa.Column("twin_of", sa.String(length=36), nullable=True))


def downgrade() -> None:
    """Only where the pepper was never changed: twins would count as holds of their own."""
    used = sa.text("SELECT count(*) FROM holds WHERE twin_of IS NOT NULL")
    if op.get_bind().execute(used).scalar_one():
        raise RuntimeError("Migration 0009 cannot be undone: legal holds are kept under several peppers.")
    op.drop_column("holds", "twin_of")
    op.drop_column("api_keys", "pepper_id")
