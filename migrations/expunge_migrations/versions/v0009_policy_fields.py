"""Policies have fewer fields, and whether a registration leaves out the forgotten is a column of the model.

A policy that was mixed retrains: so each request that is blocked by its method, or by its budget, can go on.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

RENAMED = {
    "cadence_seconds": "batch",
    "retrain_every_seconds": "retrain_every",
    "utility_tolerance": "max_accuracy_drop",
}
GONE = ("min_guarantee", "on_exhausted", "on_suppressed", "threshold")


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
    """Return the policy in today's fields. One that it left out stays left out: the defaults say the same."""
    kept = {RENAMED.get(name, name): value for name, value in policy.items() if name not in GONE}
    if "min_guarantee" in policy:
        kept["guarantee"] = guarantee(policy.get("guarantee"), policy["min_guarantee"])
    if "on_exhausted" in policy or "fallback" in policy:
        holds = policy.get("on_exhausted") == "hold" and policy.get("fallback") is None
        kept["fallback"] = "hold" if holds else "retrain"
    return kept


def guarantee(asked: str | None, required: str | None) -> str | None:
    """Return what was asked for, else what was required. Required alone, a measured one was had by a proof."""
    if asked is not None or required in (None, "none"):
        return asked
    return "exact" if required == "exact" else "proved"
