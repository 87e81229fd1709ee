"""Let the index of the ledger hold what an entry cost.

Before certificates are signed, the entries of each served generation are summed up: its rows were looked up one by one.
"""

from __future__ import annotations

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

INDEX = "ix_budget_entries_generation"


def upgrade() -> None:
    op.drop_index(INDEX, "budget_entries")
    op.create_index(INDEX, "budget_entries", ["generation_id", "version_id", "budget_cost"])
