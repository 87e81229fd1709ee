"""Keep the parts of a training, what any worker may take of it, and calibration orders in one table.

Three tables had the same columns under other names. What is done stays done, and what is taken stays its worker's.
A unit of 0.2.0 named a file that it had left: the scheduler deletes files that nothing names.

Processes of 0.2.0 go on until they are exchanged: views under the old names answer what they read. What they prepare in
units waits for a worker of this release. A later release drops the views, before it makes ``parts`` anew.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

BIGINT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
SIX_DIGITS = "substr('000000' || CAST(number AS VARCHAR(6)), length('000000' || CAST(number AS VARCHAR(6))) - 5)"
COPIES = (
    f"""INSERT INTO parts (generation_id, key, kind, number, owner, done_at, errors)
        SELECT generation_id, 'order ' || {SIX_DIGITS}, 'order', number, owner, measured_at, errors
        FROM calibration_orders""",  # noqa: S608  # nosec B608 (every word is above)
    f"""INSERT INTO parts (generation_id, key, kind, number, owner, done_at)
        SELECT generation_id, 'unit ' || {SIX_DIGITS}, 'unit', number, owner, done_at
        FROM work_units""",  # noqa: S608  # nosec B608 (as above)
    """INSERT INTO parts (generation_id, key, kind, done_at, result, walls, seconds)
        SELECT generation_id, key, 'trained', created_at, result, walls, seconds
        FROM trained_parts JOIN generations ON generations.id = generation_id""",
)
VIEWS = (
    """CREATE VIEW work_units AS
        SELECT generation_id, number, owner, done_at, result FROM parts WHERE kind = 'unit'""",
    """CREATE VIEW calibration_orders AS
        SELECT generation_id, number, owner, errors, done_at AS measured_at FROM parts WHERE kind = 'order'""",
)


def upgrade() -> None:
    op.create_table(
        "parts",
        sa.Column("generation_id", BIGINT, autoincrement=False, nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("number", sa.Integer()),
        sa.Column("owner", sa.String(120)),
        sa.Column("done_at", BIGINT),
        sa.Column("result", sa.String(64)),
        sa.Column("errors", sa.LargeBinary()),
        sa.Column("walls", sa.String(16)),
        sa.Column("seconds", sa.Double()),
        sa.ForeignKeyConstraint(["generation_id"], ["generations.id"], name="fk_parts_generation_id"),
        sa.PrimaryKeyConstraint("generation_id", "key", name="pk_parts"),
    )
    for copy in COPIES:
        op.execute(copy)
    for table in ("calibration_orders", "work_units", "trained_parts"):
        op.drop_table(table)
    for view in VIEWS:
        op.execute(view)
