"""Policies have fewer fields, and whether a registration leaves out the forgotten is a column of the model.

A policy that was mixed retrains: so each request that is blocked by its method, or by its budget, can go on.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0006"
branch_labels = None
depends_on = None

RENAMED = {
    "cadence_seconds": "batch",
    "retrain_every_seconds": "retrain_every",
    "utility_tolerance": "max_accuracy_drop",
}
GONE = ("min_guarantee", "on_exhausted", "on_suppressed")


def upgrade() -> None:
    op.add_column("models", sa.Column("leave_out_forgotten", sa.Boolean(), server_default=sa.false(), nullable=False))
    models = sa.table(
        "models", sa.column("id", sa.String), sa.column("policy", sa.JSON), sa.column("leave_out_forgotten", sa.Boolean)
    )
    for key, policy in op.get_bind().execute(sa.select(models.c.id, models.c.policy)).all():
        left_out = policy.get("on_suppressed") == "leave_out"
        op.execute(
            models.update().where(models.c.id == key).values(policy=mapped(policy), leave_out_forgotten=left_out)
        )
    generations = sa.table("generations", sa.column("id", sa.Integer), sa.column("manifest", sa.JSON))
    for number, manifest in op.get_bind().execute(sa.select(generations.c.id, generations.c.manifest)).all():
        notes = {
            name: note | {"policy": mapped(note["policy"])}
            for name, note in (manifest or {}).items()
            if isinstance(note, dict) and "policy" in note
        }
        if notes:
            op.execute(generations.update().where(generations.c.id == number).values(manifest=manifest | notes))


def mapped(policy: dict[str, Any]) -> dict[str, Any]:
    """Return the policy in today's fields. A field that it left out stays left out, unless its default was another."""
    kept = {RENAMED.get(name, name): value for name, value in policy.items() if name not in GONE}
    holds = policy.get("on_exhausted") == "hold" and policy.get("fallback") is None
    return kept | {"guarantee": guarantee(policy), "fallback": "hold" if holds else "retrain"}


def guarantee(policy: dict[str, Any]) -> str | None:
    """Return what was asked for, else what was required. Required alone, a measured one was had by a proof."""
    asked, required = policy.get("guarantee"), policy.get("min_guarantee")
    if asked is not None or required in (None, "none"):
        return asked
    return "exact" if required == "exact" else "proved"
