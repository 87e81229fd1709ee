"""Every lease is a row of one table. Those of models go there with their tokens: who works on can still publish.

A lease that was ended has the token 0 from now on, which no worker holds.
"""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("UPDATE leases SET token = 0 WHERE expires_at = 0")
    op.execute(
        "INSERT INTO leases (name, token, owner, expires_at, renewed_at) "
        "SELECT 'model:' || id, CASE WHEN lease_expires_at = 0 THEN 0 ELSE lease_token END, "
        "COALESCE(lease_owner, ''), lease_expires_at, lease_renewed_at FROM models"
    )
    op.execute(
        "INSERT INTO leases (name, token, owner, expires_at, renewed_at) SELECT name, 0, '', 0, 0 "
        "FROM (SELECT 'retrain:' || id AS name FROM models UNION ALL SELECT 'scheduler') AS those "
        "WHERE name NOT IN (SELECT name FROM leases)"
    )
    with op.batch_alter_table("models") as models:
        for name in ("token", "owner", "expires_at", "renewed_at"):
            models.drop_column(f"lease_{name}")
