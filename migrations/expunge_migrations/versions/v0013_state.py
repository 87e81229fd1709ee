"""A version says when its secret state was deleted. Those that were replaced by now lost it at that moment."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

KEPT = sa.text("retired_at IS NOT NULL AND state_deleted_at IS NULL")


def upgrade() -> None:
    moment = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.add_column("versions", sa.Column("state_deleted_at", moment, nullable=True))
    op.execute("UPDATE versions SET state_deleted_at = retired_at")
    op.create_index("ix_versions_kept", "versions", ["retired_at"], sqlite_where=KEPT, postgresql_where=KEPT)
