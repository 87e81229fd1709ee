"""A deletion that waited for its model's next update before migration 0008 is looked at again.

The model had the moment, and the deletion no reason ``awaiting_batch``. So its request showed no moment, and the
scheduler did not repair the lost notification of a nearer deadline. The next claim decides again and writes the reason.
"""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "UPDATE models SET due_at = NULL WHERE status = 'live' AND id IN "
        "(SELECT model_id FROM tasks WHERE status = 'queued' AND reason IS NULL AND attempts = 0)"
    )
