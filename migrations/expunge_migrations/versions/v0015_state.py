"""Look again for the state of versions that were replaced within a day before migration 0013.

That took the state of each replaced version for deleted. A worker that died between commit and deletion had left it to
the sweep of files, which waits an hour. Of older versions the sweep has taken it by now.
"""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

DAY = 86_400 * 1_000_000


def upgrade() -> None:
    taken = "UPDATE versions SET state_deleted_at = NULL WHERE state_deleted_at = retired_at AND retired_at > :since"
    op.execute(sa.text(taken).bindparams(since=int(time.time() * 1_000_000) - DAY))
