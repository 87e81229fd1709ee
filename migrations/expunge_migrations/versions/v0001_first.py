"""Create the schema: every table, partitioned by generation on PostgreSQL where rows are many."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIGINT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "actors",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=120), nullable=True),
        sa.Column("proxy_digest", sa.String(length=64), nullable=True),
        sa.Column("created_at", BIGINT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_actors"),
        sa.UniqueConstraint("proxy_digest", name="uq_actors_proxy_digest"),
    )
    op.create_index("ix_actors_tenant_id", "actors", ["tenant_id"], unique=False)
    op.create_table(
        "consents",
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("act", sa.String(length=16), nullable=False),
        sa.Column("subject", sa.String(length=36), nullable=False),
        sa.Column("actor_id", sa.String(length=36), nullable=False),
        sa.Column("origin", sa.String(length=36), nullable=False),
        sa.Column("created_at", BIGINT, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "act", "subject", name="pk_consents"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("prefix", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("label", sa.String(length=120), nullable=False),
        sa.Column("actor_id", sa.String(length=36), nullable=False),
        sa.Column("origin", sa.String(length=36), nullable=True),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", BIGINT, nullable=False),
        sa.Column("expires_at", BIGINT, nullable=True),
        sa.Column("revoked_at", BIGINT, nullable=True),
        sa.Column("pepper_id", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(["actor_id"], ["actors.id"], name="fk_api_keys_actor_id"),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("prefix", name="uq_api_keys_prefix"),
    )
    op.create_index("ix_api_keys_actor_id", "api_keys", ["actor_id"], unique=False)
    op.create_index("ix_api_keys_tenant_id", "api_keys", ["tenant_id"], unique=False)
    op.create_table(
        "audit_entries",
        sa.Column("id", BIGINT, autoincrement=True, nullable=False),
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("log_index", BIGINT, nullable=True),
        sa.Column("leaf_hash", sa.String(length=64), nullable=True),
        sa.Column("kind", sa.String(length=48), nullable=False),
        sa.Column("request_id", sa.String(length=36), nullable=True),
        sa.Column("model_id", sa.String(length=36), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", BIGINT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_entries"),
        sa.UniqueConstraint("log_index", name="uq_audit_entries_log_index"),
    )
    op.create_index("ix_audit_entries_kind", "audit_entries", ["kind"], unique=False)
    op.create_index("ix_audit_entries_model_id", "audit_entries", ["model_id"], unique=False)
    op.create_index("ix_audit_entries_request_id", "audit_entries", ["request_id"], unique=False)
    op.create_table(
        "ended_sessions",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("until", BIGINT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ended_sessions"),
    )
    op.create_table(
        "log_checks",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("checked_at", BIGINT, nullable=False),
        sa.Column("fault", sa.Text(), nullable=True),
        sa.Column("size", BIGINT, nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_log_checks"),
    )
    op.create_table(
        "deletion_requests",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("subject_digest", sa.String(length=64), nullable=True),
        sa.Column("case_id", sa.String(length=64), nullable=True),
        sa.Column("status", sa.String(length=9), nullable=False),
        sa.Column("reason", sa.String(length=120), nullable=True),
        sa.Column("models", sa.JSON(), nullable=True),
        sa.Column("suppress_after", BIGINT, nullable=True),
        sa.Column("regulation", sa.String(length=16), nullable=True),
        sa.Column("salt", sa.LargeBinary(), nullable=False),
        sa.Column("received_at", BIGINT, nullable=False),
        sa.Column("due_at", BIGINT, nullable=True),
        sa.Column("created_at", BIGINT, nullable=False),
        sa.Column("completed_at", BIGINT, nullable=True),
        sa.Column("extended_at", BIGINT, nullable=True),
        sa.Column("first_due_at", BIGINT, nullable=True),
        sa.Column("warned_due_at", BIGINT, nullable=True),
        sa.Column("traceparent", sa.String(length=55), nullable=True),
        sa.Column("rejection", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "status IN ('queued','running','completed','cancelled','rejected','blocked')",
            name="ck_deletion_requests_status",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_deletion_requests"),
    )
    op.create_index("ix_deletion_requests_page", "deletion_requests", ["tenant_id", "created_at", "id"], unique=False)
    op.create_index("ix_deletion_requests_case", "deletion_requests", ["tenant_id", "case_id"], unique=False)
    op.create_index("ix_deletion_requests_status", "deletion_requests", ["tenant_id", "status"], unique=False)
    op.create_index("ix_deletion_requests_due", "deletion_requests", ["status", "due_at"], unique=False)
    op.create_table(
        "erasures",
        sa.Column("id", BIGINT, autoincrement=True, nullable=False),
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("generation_id", BIGINT, nullable=False),
        sa.Column("version_id", sa.String(length=36), nullable=True),
        sa.Column("key_id", sa.String(length=36), nullable=False),
        sa.Column("created_at", BIGINT, nullable=False),
        sa.Column("destroyed_at", BIGINT, nullable=True),
        sa.Column("in_place", sa.Boolean(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_erasures"),
        sa.UniqueConstraint("generation_id", "key_id", name="uq_erasures_generation_id_key_id"),
    )
    op.create_index("ix_erasures_version_id", "erasures", ["version_id"], unique=False)
    op.create_index("ix_erasures_destroyed_at", "erasures", ["destroyed_at"], unique=False)
    op.create_table(
        "forgotten",
        sa.Column("generation_id", BIGINT, nullable=False),
        sa.Column("position", BIGINT, nullable=False),
        sa.Column("version_id", sa.String(length=36), nullable=False),
        sa.PrimaryKeyConstraint("generation_id", "position", name="pk_forgotten"),
    )
    op.create_index("ix_forgotten_version_id", "forgotten", ["version_id"], unique=False)
    op.create_table(
        "heartbeats",
        sa.Column("process", sa.String(length=120), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("software", sa.String(length=32), nullable=False),
        sa.Column("device", sa.String(length=32), nullable=True),
        sa.Column("started_at", BIGINT, nullable=False),
        sa.Column("beat_at", BIGINT, nullable=False),
        sa.Column("skew", BIGINT, nullable=True),
        sa.Column("dropped", BIGINT, server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("process", name="pk_heartbeats"),
    )
    op.create_index("ix_heartbeats_beat_at", "heartbeats", ["beat_at"], unique=False)
    op.create_table(
        "holds",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("subject_digest", sa.String(length=64), nullable=True),
        sa.Column("sample_digest", sa.String(length=64), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", BIGINT, nullable=False),
        sa.Column("lifted_at", BIGINT, nullable=True),
        sa.CheckConstraint("(subject_digest IS NULL) <> (sample_digest IS NULL)", name="ck_holds_subject_or_sample"),
        sa.PrimaryKeyConstraint("id", name="pk_holds"),
    )
    op.create_index("ix_holds_subject", "holds", ["tenant_id", "subject_digest"], unique=False)
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("key_id", sa.String(length=36), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("body_digest", sa.String(length=64), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=False),
        sa.Column("headers", sa.JSON(), nullable=False),
        sa.Column("answer", sa.JSON(), nullable=False),
        sa.Column("expires_at", BIGINT, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "key_id", "key", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_expires_at", "idempotency_keys", ["expires_at"], unique=False)
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("token", BIGINT, nullable=False),
        sa.Column("owner", sa.String(length=120), nullable=False),
        sa.Column("expires_at", BIGINT, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.create_table(
        "memberships",
        sa.Column("generation_id", BIGINT, nullable=False),
        sa.Column("subject_digest", sa.String(length=64), nullable=False),
        sa.Column("position", BIGINT, nullable=False),
        sa.Column("sample_digest", sa.String(length=64), nullable=False),
        sa.Column("content_digest", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("generation_id", "subject_digest", "position", name="pk_memberships"),
        postgresql_partition_by="LIST (generation_id)",
    )
    op.create_index("ix_memberships_sample", "memberships", ["generation_id", "sample_digest"], unique=False)
    op.create_index("ix_memberships_position", "memberships", ["generation_id", "position"], unique=False)
    op.create_table(
        "models",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("status", sa.String(length=12), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("recipe", sa.String(length=255), nullable=False),
        sa.Column("policy", sa.JSON(), nullable=False),
        sa.Column("current_id", sa.String(length=36), nullable=True),
        sa.Column("generation_id", BIGINT, nullable=True),
        sa.Column("created_at", BIGINT, nullable=False),
        sa.Column("lease_token", BIGINT, server_default=sa.text("0"), nullable=False),
        sa.Column("lease_owner", sa.String(length=120), nullable=True),
        sa.Column("lease_expires_at", BIGINT, server_default=sa.text("0"), nullable=False),
        sa.Column("notified_at", BIGINT, server_default=sa.text("0"), nullable=False),
        sa.Column("due_at", BIGINT, nullable=True),
        sa.Column("retrain_at", BIGINT, nullable=True),
        sa.CheckConstraint(
            "status IN ('preparing','cancelled','live','refused','exhausted','retired')", name="ck_models_status"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_models"),
        sa.UniqueConstraint("tenant_id", "name", name="uq_models_tenant_id_name"),
    )
    op.create_table(
        "phase_seconds",
        sa.Column("id", BIGINT, autoincrement=True, nullable=False),
        sa.Column("model_id", sa.String(length=36), nullable=False),
        sa.Column("version_id", sa.String(length=36), nullable=True),
        sa.Column("method", sa.String(length=32), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("created_at", BIGINT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_phase_seconds"),
    )
    op.create_index("ix_phase_seconds_created_at", "phase_seconds", ["created_at"], unique=False)
    op.create_index("ix_phase_seconds_model_id", "phase_seconds", ["model_id"], unique=False)
    op.create_index("ix_phase_seconds_version_id", "phase_seconds", ["version_id"], unique=False)
    op.create_table(
        "recollections",
        sa.Column("generation_id", BIGINT, nullable=False),
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=36), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("generation_id", "holder", name="pk_recollections"),
        postgresql_partition_by="LIST (generation_id)",
    )
    op.create_index("ix_recollections_key_id", "recollections", ["key_id"], unique=False)
    op.create_table(
        "tallies",
        sa.Column("name", sa.String(length=16), nullable=False),
        sa.Column("model_id", sa.String(length=36), nullable=False),
        sa.Column("method", sa.String(length=32), nullable=False),
        sa.Column("label", sa.String(length=48), nullable=False),
        sa.Column("bound", sa.String(length=16), nullable=False),
        sa.Column("count", BIGINT, nullable=False),
        sa.PrimaryKeyConstraint("name", "model_id", "method", "label", "bound", name="pk_tallies"),
    )
    op.create_table(
        "tree_heads",
        sa.Column("size", BIGINT, autoincrement=False, nullable=False),
        sa.Column("root", sa.String(length=64), nullable=False),
        sa.Column("frontier", sa.JSON(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("created_at", BIGINT, nullable=False),
        sa.PrimaryKeyConstraint("size", name="pk_tree_heads"),
    )
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("url", sa.String(length=2048), nullable=False),
        sa.Column("kinds", sa.JSON(), nullable=False),
        sa.Column("protocol", sa.String(length=8), server_default=sa.text("'standard'"), nullable=False),
        sa.Column("created_at", BIGINT, nullable=False),
        sa.Column("disabled_at", BIGINT, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_endpoints"),
    )
    op.create_index("ix_webhook_endpoints_tenant_id", "webhook_endpoints", ["tenant_id"], unique=False)
    op.create_table(
        "generations",
        sa.Column("id", BIGINT, autoincrement=True, nullable=False),
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("model_id", sa.String(length=36), nullable=False),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column("method", sa.String(length=32), nullable=False),
        sa.Column("guarantee", sa.String(length=12), nullable=False),
        sa.Column("manifest", sa.JSON(), nullable=True),
        sa.Column("noise_std", sa.Double(), nullable=True),
        sa.Column("max_distance", sa.Double(), nullable=True),
        sa.Column("budget_cost", BIGINT, server_default=sa.text("0"), nullable=False),
        sa.Column("spent", BIGINT, server_default=sa.text("0"), nullable=False),
        sa.Column("budget", BIGINT, nullable=True),
        sa.Column("epsilon", sa.Double(), nullable=True),
        sa.Column("delta", sa.Double(), nullable=True),
        sa.Column("progress", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("phase", sa.String(length=32), nullable=True),
        sa.Column("report", sa.JSON(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", BIGINT, nullable=False),
        sa.Column("ended_at", BIGINT, nullable=True),
        sa.CheckConstraint(
            "status IN ('preparing','candidate','live','refused','ended')", name="ck_generations_status"
        ),
        sa.CheckConstraint("budget IS NULL OR spent <= budget", name="ck_generations_spent_within_budget"),
        sa.CheckConstraint("spent >= 0", name="ck_generations_spent_not_negative"),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_generations_model_id"),
        sa.PrimaryKeyConstraint("id", name="pk_generations"),
    )
    op.create_index("ix_generations_model_id", "generations", ["model_id"], unique=False)
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("request_id", sa.String(length=36), nullable=False),
        sa.Column("model_id", sa.String(length=36), nullable=False),
        sa.Column("status", sa.String(length=9), nullable=False),
        sa.Column("reason", sa.String(length=120), nullable=True),
        sa.Column("samples", BIGINT, nullable=True),
        sa.Column("method", sa.String(length=32), nullable=True),
        sa.Column("version_id", sa.String(length=36), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_token", BIGINT, nullable=True),
        sa.Column("not_before", BIGINT, nullable=False),
        sa.Column("created_at", BIGINT, nullable=False),
        sa.Column("completed_at", BIGINT, nullable=True),
        sa.CheckConstraint("status IN ('queued','running','completed','cancelled','blocked')", name="ck_tasks_status"),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_tasks_model_id"),
        sa.ForeignKeyConstraint(["request_id"], ["deletion_requests.id"], name="fk_tasks_request_id"),
        sa.PrimaryKeyConstraint("id", name="pk_tasks"),
        sa.UniqueConstraint("request_id", "model_id", name="uq_tasks_request_id_model_id"),
    )
    op.create_index("ix_tasks_queue", "tasks", ["model_id", "status", "not_before"], unique=False)
    op.create_index("ix_tasks_status", "tasks", ["status", "not_before"], unique=False)
    op.create_index("ix_tasks_version_id", "tasks", ["version_id"], unique=False)
    op.create_table(
        "suppressions",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("request_id", sa.String(length=36), nullable=False),
        sa.Column("subject_digest", sa.String(length=64), nullable=True),
        sa.Column("sample_digest", sa.String(length=64), nullable=True),
        sa.Column("created_at", BIGINT, nullable=False),
        sa.Column("lifted_at", BIGINT, nullable=True),
        sa.Column("lifted_reason", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(subject_digest IS NULL) <> (sample_digest IS NULL)", name="ck_suppressions_subject_or_sample"
        ),
        sa.ForeignKeyConstraint(["request_id"], ["deletion_requests.id"], name="fk_suppressions_request_id"),
        sa.PrimaryKeyConstraint("id", name="pk_suppressions"),
    )
    op.create_index("ix_suppressions_request_id", "suppressions", ["request_id"], unique=False)
    op.create_index("ix_suppressions_created", "suppressions", ["tenant_id", "created_at"], unique=False)
    op.create_index("ix_suppressions_sample", "suppressions", ["tenant_id", "sample_digest"], unique=False)
    op.create_index("ix_suppressions_subject", "suppressions", ["tenant_id", "subject_digest"], unique=False)
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("endpoint_id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=48), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("next_at", BIGINT, nullable=False),
        sa.Column("delivered_at", BIGINT, nullable=True),
        sa.Column("last_status", sa.Integer(), nullable=True),
        sa.Column("created_at", BIGINT, nullable=False),
        sa.Column("last_outcome", sa.String(length=16), nullable=True),
        sa.Column("attempts_before", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.ForeignKeyConstraint(["endpoint_id"], ["webhook_endpoints.id"], name="fk_webhook_deliveries_endpoint_id"),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_deliveries"),
    )
    op.create_index("ix_webhook_deliveries_due", "webhook_deliveries", ["delivered_at", "next_at"], unique=False)
    op.create_index("ix_webhook_deliveries_endpoint_id", "webhook_deliveries", ["endpoint_id"], unique=False)
    op.create_table(
        "budget_entries",
        sa.Column("id", BIGINT, autoincrement=True, nullable=False),
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("generation_id", BIGINT, nullable=False),
        sa.Column("version_id", sa.String(length=36), nullable=True),
        sa.Column("budget_cost", BIGINT, nullable=False),
        sa.Column("created_at", BIGINT, nullable=False),
        sa.CheckConstraint("budget_cost >= 0", name="ck_budget_entries_budget_cost_not_negative"),
        sa.ForeignKeyConstraint(["generation_id"], ["generations.id"], name="fk_budget_entries_generation_id"),
        sa.PrimaryKeyConstraint("id", name="pk_budget_entries"),
    )
    op.create_index("ix_budget_entries_version_id", "budget_entries", ["version_id"], unique=False)
    op.create_index("ix_budget_entries_generation", "budget_entries", ["generation_id", "version_id"], unique=False)
    op.create_table(
        "versions",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("model_id", sa.String(length=36), nullable=False),
        sa.Column("generation_id", BIGINT, nullable=False),
        sa.Column("number", BIGINT, nullable=False),
        sa.Column("parent_id", sa.String(length=36), nullable=True),
        sa.Column("status", sa.String(length=8), nullable=False),
        sa.Column("checkpoint", sa.String(length=64), nullable=False),
        sa.Column("size", BIGINT, nullable=False),
        sa.Column("state", sa.String(length=64), nullable=False),
        sa.Column("method", sa.String(length=32), nullable=False),
        sa.Column("claim", sa.JSON(), nullable=False),
        sa.Column("samples", BIGINT, nullable=False),
        sa.Column("people", BIGINT, nullable=False),
        sa.Column("holdout_accuracy", sa.Double(), nullable=True),
        sa.Column("published_at", BIGINT, nullable=False),
        sa.Column("retired_at", BIGINT, nullable=True),
        sa.Column("purged_at", BIGINT, nullable=True),
        sa.Column("tallied", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.CheckConstraint("status IN ('current','retired','purged')", name="ck_versions_status"),
        sa.ForeignKeyConstraint(["generation_id"], ["generations.id"], name="fk_versions_generation_id"),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_versions_model_id"),
        sa.PrimaryKeyConstraint("id", name="pk_versions"),
        sa.UniqueConstraint("model_id", "number", name="uq_versions_model_id_number"),
        sa.UniqueConstraint("model_id", "parent_id", name="uq_versions_model_id_parent_id"),
    )
    op.create_index("ix_versions_published_at", "versions", ["published_at"], unique=False)
    op.create_index("ix_versions_tallied", "versions", ["tallied"], unique=False)
    op.create_index("ix_versions_status", "versions", ["status", "retired_at"], unique=False)
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
        sa.Column("refused", sa.Text(), nullable=True),
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
    op.create_table(
        "places",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("installation", sa.String(length=36), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_places"),
    )
    op.create_table(
        "restorations",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("started_at", BIGINT, nullable=False),
        sa.Column("confirmed_at", BIGINT, nullable=True),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_restorations"),
    )
    op.create_table(
        "calibration_orders",
        sa.Column("generation_id", BIGINT, autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("owner", sa.String(length=120), nullable=True),
        sa.Column("errors", sa.LargeBinary(), nullable=True),
        sa.Column("measured_at", BIGINT, nullable=True),
        sa.ForeignKeyConstraint(["generation_id"], ["generations.id"], name="fk_calibration_orders_generation_id"),
        sa.PrimaryKeyConstraint("generation_id", "number", name="pk_calibration_orders"),
    )
    op.create_table(
        "feed_items",
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("item", sa.String(length=12), nullable=False),
        sa.Column("list_name", sa.String(length=8), nullable=False),
        sa.Column("source", sa.String(length=13), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("imported_at", BIGINT, nullable=False),
        sa.Column("checked_at", BIGINT, nullable=True),
        sa.Column("shared", sa.Boolean(), nullable=False),
        sa.Column("removed_at", BIGINT, nullable=True),
        sa.Column("reported", sa.SmallInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "item", name="pk_feed_items"),
    )
    op.create_index("ix_feed_items_open", "feed_items", ["tenant_id", "removed_at", "list_name"])
    op.create_table(
        "feed_matches",
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("item", sa.String(length=12), nullable=False),
        sa.Column("subject_digest", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=36), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id", "item"], ["feed_items.tenant_id", "feed_items.item"], name="fk_feed_item"
        ),
        sa.ForeignKeyConstraint(["request_id"], ["deletion_requests.id"], name="fk_feed_matches_request_id"),
        sa.PrimaryKeyConstraint("tenant_id", "item", "subject_digest", name="pk_feed_matches"),
    )
    op.create_index("ix_feed_matches_subject", "feed_matches", ["tenant_id", "subject_digest"])
    op.create_index("ix_feed_matches_request_id", "feed_matches", ["request_id"])
    op.create_table(
        "opendsr_requests",
        sa.Column("tenant_id", sa.String(length=63), nullable=False),
        sa.Column("subject_request_id", sa.String(length=36), nullable=False),
        sa.Column("request_id", sa.String(length=36), nullable=False),
        sa.Column("body_digest", sa.String(length=64), nullable=False),
        sa.Column("endpoints", sa.JSON(), nullable=False),
        sa.Column("announced", sa.String(length=11), nullable=True),
        sa.ForeignKeyConstraint(["request_id"], ["deletion_requests.id"], name="fk_opendsr_requests_request_id"),
        sa.PrimaryKeyConstraint("tenant_id", "subject_request_id", name="pk_opendsr_requests"),
        sa.UniqueConstraint("request_id", name="uq_opendsr_requests_request_id"),
    )
    op.create_index("ix_opendsr_requests_announced", "opendsr_requests", ["announced"])
    op.create_table(
        "holdout_people",
        sa.Column("generation_id", BIGINT, autoincrement=False, nullable=False),
        sa.Column("subject_digest", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["generation_id"], ["generations.id"], name="fk_holdout_people_generation_id"),
        sa.PrimaryKeyConstraint("generation_id", "subject_digest", name="pk_holdout_people"),
    )
    op.create_table(
        "work_units",
        sa.Column("generation_id", BIGINT, autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("owner", sa.String(length=120), nullable=True),
        sa.Column("done_at", BIGINT, nullable=True),
        sa.ForeignKeyConstraint(["generation_id"], ["generations.id"], name="fk_shards_generation_id"),
        sa.PrimaryKeyConstraint("generation_id", "number", name="pk_work_units"),
    )
