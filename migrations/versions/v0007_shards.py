"""Shards of a preparation."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

BIGINT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "shards",
        sa.Column("lineage_id", BIGINT, autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("owner", sa.String(length=120), nullable=True),
        sa.Column("done_at", BIGINT, nullable=True),
        sa.ForeignKeyConstraint(["lineage_id"], ["lineages.id"], name="fk_shards_lineage_id"),
        sa.PrimaryKeyConstraint("lineage_id", "number", name="pk_shards"),
    )


def downgrade() -> None:
    op.drop_table("shards")
