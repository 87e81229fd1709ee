"""The audit log's inner nodes, certificates of erasure, and consumers of models."""

from __future__ import annotations

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BIGINT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "tree_nodes",
        sa.Column("level", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("index", BIGINT, autoincrement=False, nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("level", "index", name="pk_tree_nodes"),
    )
    op.create_table(
        "certificates",
        sa.Column("request_id", sa.String(length=36), nullable=False),
        sa.Column("completed_at", BIGINT, autoincrement=False, nullable=False),
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("envelope", sa.Text(), nullable=True),
        sa.Column("issued_at", BIGINT, nullable=True),
        sa.ForeignKeyConstraint(["request_id"], ["deletion_requests.id"], name="fk_certificates_request_id"),
        sa.PrimaryKeyConstraint("request_id", "completed_at", name="pk_certificates"),
    )
    op.create_index("ix_certificates_issued_at", "certificates", ["issued_at"], unique=False)
    op.create_table(
        "consumers",
        sa.Column("model_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("version_id", sa.String(length=36), nullable=False),
        sa.Column("seen_at", BIGINT, nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_consumers_model_id"),
        sa.PrimaryKeyConstraint("model_id", "name", name="pk_consumers"),
    )
    _fill_tree_nodes(op.get_bind())


def _fill_tree_nodes(connection: sa.Connection) -> None:
    """The nodes of the log as it stands (RFC 6962): later entries build on them."""
    insert = sa.text('INSERT INTO tree_nodes (level, "index", hash) VALUES (:level, :index, :hash)')
    leaves = sa.text("SELECT leaf_hash FROM audit_entries WHERE log_index IS NOT NULL ORDER BY log_index")
    row = [bytes.fromhex(leaf) for leaf in connection.execute(leaves).scalars()]
    level = 0
    while len(row) > 1:
        level += 1
        pairs = zip(row[::2], row[1::2], strict=False)  # an odd one out completes no subtree
        row = [hashlib.sha256(b"\x01" + left + right).digest() for left, right in pairs]
        connection.execute(
            insert, [{"level": level, "index": index, "hash": node.hex()} for index, node in enumerate(row)]
        )
