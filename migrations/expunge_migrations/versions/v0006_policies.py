"""A policy has no requests_per_month: a method that was not named is chosen by counts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    models = sa.table("models", sa.column("id", sa.String), sa.column("policy", sa.JSON))
    for key, policy in op.get_bind().execute(sa.select(models.c.id, models.c.policy)).all():
        kept = {name: value for name, value in policy.items() if name != "requests_per_month"}
        op.execute(models.update().where(models.c.id == key).values(policy=kept))
