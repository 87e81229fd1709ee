"""Reasons get the codes of one table, and requests and tasks the values that a reason's sentence names."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_RENAMED = {
    "already_forgotten": "already_deleted",
    "model_cancelled": "not_published",
    "model_refused": "not_published",
    "nobody_left": "no_data_left",
    "recipe_refused": "recipe_failed",
    "state_damaged": "state_unreadable",
    "utility_gate": "accuracy_drop",
}
_MERGED = {
    "beyond_calibration": ("needs_retrain", "beyond_calibration"),
    "cap_not_reached": ("needs_retrain", "cap_not_reached"),
    "method_refused": ("needs_retrain", "method_refused"),
    "state_format_unknown": ("state_unreadable", "format"),
    "vectors_missing": ("needs_retrain", "vectors_missing"),
    "weights_not_finite": ("needs_retrain", "weights_not_finite"),
    "worker_lost": ("failed", "worker_lost"),
}
"""old code: the new one, and the cause that chooses its sentence"""


def upgrade() -> None:
    """Rename the codes. Tasks under a certificate that is not signed yet keep theirs.

    The audit log holds a digest of those tasks, and the signature is refused where they differ from it.
    """
    for changed in ("deletion_requests", "tasks"):
        with op.batch_alter_table(changed) as batch:
            batch.add_column(sa.Column("facts", sa.JSON(), nullable=True))
    unsigned = sa.table("certificates", sa.column("request_id", sa.String), sa.column("issued_at", sa.BigInteger))
    awaited = sa.select(unsigned.c.request_id).where(unsigned.c.issued_at.is_(None))
    tasks, requests = (
        sa.table(name, *(sa.column(each, sa.String) for each in ("id", *more, "reason")), sa.column("facts", sa.JSON))
        for name, more in (("tasks", ("request_id",)), ("deletion_requests", ()))
    )
    for table, free in ((tasks, tasks.c.request_id.not_in(awaited)), (requests, sa.true())):
        causes = {old: sa.literal({new: {"cause": cause}}, sa.JSON) for old, (new, cause) in _MERGED.items()}
        codes = _RENAMED | {old: new for old, (new, _) in _MERGED.items()}
        values = {"reason": sa.case(codes, value=table.c.reason), "facts": sa.case(causes, value=table.c.reason)}
        op.execute(table.update().where(table.c.reason.in_(codes), free).values(values))
        failed = sa.select(table.c.id, table.c.reason).where(table.c.reason.startswith("failed:"), free)
        for key, code in op.get_bind().execute(failed).all():
            known = {"reason": "failed", "facts": _failure(code)}
            op.execute(table.update().where(table.c.id == key).values(known))


def _failure(code: str) -> dict[str, dict[str, str | int]] | None:
    """Return the values of ``failed:KeyError at digits.py:41``; None where it was cut off."""
    error, _, place = code.removeprefix("failed:").partition(" at ")
    file, _, line = place.partition(":")
    return {"failed": {"error": error, "file": file, "line": int(line)}} if line.isdigit() else None
