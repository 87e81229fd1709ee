"""A policy has no collect_seconds: all deletions of a model share its cadence. Nobody waits for others of a kind."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

GONE = ("collect_seconds",)
OTHERS, BATCH = "awaiting_others", "awaiting_batch"


def upgrade() -> None:
    models = sa.table("models", sa.column("id", sa.String), sa.column("policy", sa.JSON))
    for key, policy in op.get_bind().execute(sa.select(models.c.id, models.c.policy)).all():
        op.execute(models.update().where(models.c.id == key).values(policy=_kept(policy)))
    generations = sa.table("generations", sa.column("id", sa.Integer), sa.column("manifest", sa.JSON))
    for key, manifest in op.get_bind().execute(sa.select(generations.c.id, generations.c.manifest)).all():
        noted = {name: note for name, note in (manifest or {}).items() if name in ("trained", "prepared") and note}
        if noted:  # a preparation that a worker may continue
            changed = {name: note | {"policy": _kept(note["policy"])} for name, note in noted.items()}
            op.execute(generations.update().where(generations.c.id == key).values(manifest=manifest | changed))
    tasks = sa.table("tasks", *(sa.column(name) for name in ("reason", "not_before", "created_at")))
    waited = tasks.update().where(tasks.c.reason == OTHERS)
    op.execute(waited.values(reason=BATCH, not_before=tasks.c.created_at))
    requests = sa.table("deletion_requests", sa.column("reason"))
    op.execute(requests.update().where(requests.c.reason == OTHERS).values(reason=BATCH))


def _kept(policy: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in policy.items() if name not in GONE}
