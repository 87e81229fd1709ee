"""A work unit may leave a sealed file in the private store: a part of a training."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("work_units") as units:
        units.add_column(sa.Column("result", sa.String(64)))
