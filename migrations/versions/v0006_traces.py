"""The trace of a request's call; what became of a webhook's last attempt, and how many were made before a replay."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("deletion_requests", sa.Column("traceparent", sa.String(length=55), nullable=True))
    op.add_column("webhook_deliveries", sa.Column("last_outcome", sa.String(length=16), nullable=True))
    op.add_column(
        "webhook_deliveries", sa.Column("attempts_before", sa.Integer(), server_default=sa.text("0"), nullable=False)
    )


def downgrade() -> None:
    op.drop_column("webhook_deliveries", "attempts_before")
    op.drop_column("webhook_deliveries", "last_outcome")
    op.drop_column("deletion_requests", "traceparent")
