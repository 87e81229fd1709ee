"""Keep the parts of a training by their keys.

Generations of before have none: their methods keep checkpoints of their own.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

BIGINT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "trained_parts",
        sa.Column("generation_id", BIGINT, autoincrement=False, nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("result", sa.String(64), nullable=False),
        sa.Column("walls", sa.String(16), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["generation_id"], ["generations.id"], name="fk_trained_parts_generation_id"),
        sa.PrimaryKeyConstraint("generation_id", "key", name="pk_trained_parts"),
    )
