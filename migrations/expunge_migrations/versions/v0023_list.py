"""Index the list of requests by its order, newest receipt first: without it every page sorted all requests."""

from __future__ import annotations

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_deletion_requests_received", "deletion_requests", ["tenant_id", "received_at", "id"])
