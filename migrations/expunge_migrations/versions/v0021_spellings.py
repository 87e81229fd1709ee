"""Keep the reduced forms of people's ids, and which decisions about near misses are open.

Generations of before have none: their people are compared exactly until the next training.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "spellings",
        sa.Column("form", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("generation_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("person", sa.Integer(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("form", "generation_id", "person", name="pk_spellings"),
        sqlite_with_rowid=False,
        postgresql_partition_by="LIST (generation_id)",
    )
    op.add_column("deletion_requests", sa.Column("caller", sa.String(36), nullable=True))
    op.add_column("deletion_requests", sa.Column("outcome", sa.String(16), nullable=True))
    for table, column in (
        ("deletion_requests", "near"),
        ("deletion_requests", "others"),
        ("suppressions", "spelling"),
        ("holds", "spelling"),
    ):
        op.add_column(table, sa.Column(column, sa.JSON(), nullable=True))
    if op.get_bind().dialect.name != "postgresql":
        return
    building = sa.text("SELECT id FROM generations WHERE status IN ('preparing', 'candidate')")
    for generation in op.get_bind().execute(building).scalars().all():
        op.execute(f"CREATE TABLE spellings_{generation:d} PARTITION OF spellings FOR VALUES IN ({generation:d})")
