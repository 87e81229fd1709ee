"""A policy that sets no batch has one by a rule from now on. Those that are stored keep theirs: nobody waited."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    models = sa.table("models", sa.column("id", sa.String), sa.column("policy", sa.JSON))
    for key, policy in op.get_bind().execute(sa.select(models.c.id, models.c.policy)).all():
        op.execute(models.update().where(models.c.id == key).values(policy=kept(policy)))
    generations = sa.table("generations", sa.column("id", sa.Integer), sa.column("manifest", sa.JSON))
    for number, manifest in op.get_bind().execute(sa.select(generations.c.id, generations.c.manifest)).all():
        notes = {
            name: note | {"policy": kept(note["policy"])}
            for name, note in (manifest or {}).items()
            if isinstance(note, dict) and "policy" in note
        }
        if notes:  # a preparation that a worker may continue
            op.execute(generations.update().where(generations.c.id == number).values(manifest=manifest | notes))


def kept(policy: dict[str, Any]) -> dict[str, Any]:
    """Return the policy with the batch that it had: 0 where it names none."""
    return policy if policy.get("batch") is not None else policy | {"batch": 0}
