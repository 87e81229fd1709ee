"""Let an operator ask a process to take no work.

``expunge drain`` sets it, and the process reads it at its next heartbeat.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("heartbeats", sa.Column("drained", sa.Boolean(), nullable=False, server_default=sa.false()))
