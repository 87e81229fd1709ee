"""A version commits to the tables that say what it holds. Versions of before have no commitments,
and their generations no digests of blocks: the next update makes both."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("versions", sa.Column("commitments", sa.JSON(), nullable=True))
    op.create_table(
        "membership_blocks",
        sa.Column("generation_id", SERIAL, autoincrement=False, nullable=False),
        sa.Column("made_by", sa.String(8), nullable=False),
        sa.Column("prefix", sa.String(8), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(["generation_id"], ["generations.id"], name="fk_membership_blocks_generation_id"),
        sa.PrimaryKeyConstraint("generation_id", "made_by", "prefix", name="pk_membership_blocks"),
    )
