"""A request knows the time zone in which its deadlines are counted, and a stored answer belongs to an actor.

Requests of before were counted in UTC. A stored answer keeps the API key of before for the day that it lives: it is
found under the key as well, because behind a proxy one key speaks for many actors.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("deletion_requests", sa.Column("time_zone", sa.String(64)))
    op.execute("ALTER TABLE idempotency_keys RENAME COLUMN key_id TO actor_id")
