"""Deletion lists and OpenDSR are separate programs: their tables and the policies' field leave.

Nobody's rows are dropped. A database that holds some is refused, with what to run in the release that made them.
"""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TABLES = ("feed_matches", "feed_items", "opendsr_requests")
EMPTY = "DELETE FROM feed_matches; DELETE FROM feed_items; DELETE FROM opendsr_requests;"


def upgrade() -> None:
    session = op.get_bind()
    held = {name: session.scalar(sa.select(sa.func.count()).select_from(sa.table(name))) for name in TABLES}
    if any(held.values()):
        told = ", ".join(f"{name} {count}" for name, count in held.items() if count)
        raise RuntimeError(
            f"This release keeps no deletion lists and no OpenDSR requests, and the database holds some ({told}). "
            "Keep a backup. With the earlier release run `expunge drop export` until it reports no waiting entries, "
            "and wait for the OpenDSR requests to end. Then import the lists again with `expunge drop import` of "
            "expunge-connect, run this SQL, and `expunge migrate` again: " + EMPTY
        )
    for name in TABLES:
        op.drop_table(name)
    endpoints = sa.table("webhook_endpoints", sa.column("protocol"), sa.column("disabled_at"))
    callbacks = endpoints.update().where(endpoints.c.protocol == "opendsr", endpoints.c.disabled_at.is_(None))
    op.execute(callbacks.values(disabled_at=time.time_ns() // 1000))
    with op.batch_alter_table("webhook_endpoints") as table:
        table.drop_column("protocol")
    models = sa.table("models", sa.column("id", sa.String), sa.column("policy", sa.JSON))
    for key, policy in session.execute(sa.select(models.c.id, models.c.policy)).all():
        kept = {name: value for name, value in policy.items() if name != "on_unchecked_feed"}
        op.execute(models.update().where(models.c.id == key).values(policy=kept))
