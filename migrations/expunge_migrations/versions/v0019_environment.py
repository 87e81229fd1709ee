"""Each version has the environment that it was trained in: an exact update of another one trains the whole again.

Versions that are there have none. What their generation's manifest recorded is compared in its place.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("versions", sa.Column("environment", sa.JSON(), nullable=True))
