"""The tables. One schema for SQLite and PostgreSQL.

Moments are integers: microseconds since 1970 UTC, read from the database's own clock. Digests are lower-case
hex. Ids that leave the service are opaque strings; a generation has an integer because partitions are named by it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, synonym

Moment = BigInteger().with_variant(Integer, "sqlite")
Count = BigInteger().with_variant(Integer, "sqlite")
Serial = BigInteger().with_variant(Integer, "sqlite")
Digest = String(64)
Id = String(36)
Name = String(63)


class Record(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {dict[str, Any]: JSON, list[str]: JSON, bytes: LargeBinary}


class ApiKey(Record):
    __tablename__ = "api_keys"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Name, index=True)
    prefix: Mapped[str] = mapped_column(String(16), unique=True)
    digest: Mapped[str] = mapped_column(Digest)
    label: Mapped[str] = mapped_column(String(120))
    scopes: Mapped[list[str]]
    created_at: Mapped[int] = mapped_column(Moment)
    expires_at: Mapped[int | None] = mapped_column(Moment)
    revoked_at: Mapped[int | None] = mapped_column(Moment)
    pepper_id: Mapped[str | None] = mapped_column(String(16))
    """None: made before migration 0009"""


class EndedSession(Record):
    """A session of the status page that was logged out: a copy of its cookie opens nothing."""

    __tablename__ = "ended_sessions"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    until: Mapped[int] = mapped_column(Moment)
    """after this no cookie of the session is valid, so the row may go"""


class Model(Record):
    """A model that users serve. Its lease decides who may publish: the token grows by one at each claim."""

    __tablename__ = "models"
    __table_args__ = (
        UniqueConstraint("tenant_id", "name"),
        CheckConstraint("status IN ('preparing','live','refused','exhausted','retired')", name="status"),
    )
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Name)
    name: Mapped[str] = mapped_column(Name)
    status: Mapped[str] = mapped_column(String(12))
    reason: Mapped[str | None] = mapped_column(Text)
    recipe: Mapped[str] = mapped_column(String(255))
    policy: Mapped[dict[str, Any]]
    """method, fallback, require, epsilon, delta, noise_std, max_distance, ... as registered
    (accounting.policy.Policy)
    """
    current_id: Mapped[str | None] = mapped_column(Id)
    generation_id: Mapped[int | None] = mapped_column(Serial)
    """the generation of the current version; while preparing, the generation being prepared"""
    created_at: Mapped[int] = mapped_column(Moment)
    lease_token: Mapped[int] = mapped_column(Count, default=0, server_default=text("0"))
    lease_owner: Mapped[str | None] = mapped_column(String(120))
    lease_expires_at: Mapped[int] = mapped_column(Moment, default=0, server_default=text("0"))
    notified_at: Mapped[int] = mapped_column(Moment, default=0, server_default=text("0"))
    """when the worker was last rung; cleared at claim, so at most one notification is outstanding"""
    due_at: Mapped[int | None] = mapped_column(Moment)
    """workers' own: not before this is there work to claim. Intake adds tasks and leaves this row alone"""


class Generation(Record):
    """All versions that descend from one training. Its budget is in whole units of 1e-12 mu^2."""

    __tablename__ = "generations"
    __table_args__ = (
        CheckConstraint("spent >= 0", name="spent_not_negative"),
        CheckConstraint("budget IS NULL OR spent <= budget", name="spent_within_budget"),
        CheckConstraint("status IN ('preparing','candidate','live','refused','ended')", name="status"),
    )
    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(Name)
    model_id: Mapped[str] = mapped_column(Id, ForeignKey("models.id"), index=True)
    status: Mapped[str] = mapped_column(String(10))
    method: Mapped[str] = mapped_column(String(32))
    guarantee: Mapped[str] = mapped_column(String(12))
    """exact, proved, calibrated, estimated or none: fixed at registration"""
    manifest: Mapped[dict[str, Any] | None]
    """recipe digest, library versions, device class, counts of samples and people: see workers.storage.manifest"""
    noise_std: Mapped[float | None]
    max_distance: Mapped[float | None]
    budget_cost: Mapped[int] = mapped_column(Count, default=0, server_default=text("0"))
    """units that one update costs; 0 where the guarantee is exact or none"""
    spent: Mapped[int] = mapped_column(Count, default=0, server_default=text("0"))
    budget: Mapped[int | None] = mapped_column(Count)
    """the limit; None where the guarantee has no budget (none)"""
    epsilon: Mapped[float | None]
    delta: Mapped[float | None]
    progress: Mapped[float] = mapped_column(default=0.0, server_default=text("0"))
    phase: Mapped[str | None] = mapped_column(String(32))
    report: Mapped[dict[str, Any] | None]
    """what preparation measured before any deletion: eta*lambda_max, distance left, accuracy of y"""
    attempts: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    created_at: Mapped[int] = mapped_column(Moment)
    ended_at: Mapped[int | None] = mapped_column(Moment)


class Membership(Record):
    """Which sample of a generation belongs to whom. One row for each subject of each sample."""

    __tablename__ = "memberships"
    __table_args__ = (
        Index("ix_memberships_subject", "generation_id", "subject_digest"),
        Index("ix_memberships_sample", "generation_id", "sample_digest"),
        {"postgresql_partition_by": "LIST (generation_id)"},
    )
    generation_id: Mapped[int] = mapped_column(Serial, primary_key=True)
    position: Mapped[int] = mapped_column(Count, primary_key=True)
    subject_digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    sample_digest: Mapped[str] = mapped_column(Digest)
    content_digest: Mapped[str] = mapped_column(Digest)
    holder: Mapped[str] = mapped_column(Digest)
    """whose vector the sample is part of; equals subject_digest unless the sample names several subjects"""
    pepper_id: Mapped[str] = mapped_column(String(16))


class Recollection(Record):
    """A sealed vector (AES-GCM under the holder's key), deleted in the publish transaction that uses it."""

    __tablename__ = "recollections"
    __table_args__ = ({"postgresql_partition_by": "LIST (generation_id)"},)
    generation_id: Mapped[int] = mapped_column(Serial, primary_key=True)
    holder: Mapped[str] = mapped_column(Digest, primary_key=True)
    key_id: Mapped[str] = mapped_column(Id, index=True)
    sealed: Mapped[bytes]


class Version(Record):
    __tablename__ = "versions"
    __table_args__ = (
        UniqueConstraint("model_id", "number"),
        UniqueConstraint("model_id", "parent_id"),
        CheckConstraint("status IN ('current','retired','purged')", name="status"),
    )
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Name)
    model_id: Mapped[str] = mapped_column(Id, ForeignKey("models.id"))
    generation_id: Mapped[int] = mapped_column(Serial, ForeignKey("generations.id"))
    number: Mapped[int] = mapped_column(Count)
    parent_id: Mapped[str | None] = mapped_column(Id)
    status: Mapped[str] = mapped_column(String(8))
    checkpoint: Mapped[str] = mapped_column(Digest)
    """sha256 of the published safetensors file (y), its name in the store"""
    size: Mapped[int] = mapped_column(Count)
    state: Mapped[str] = mapped_column(Digest)
    """sha256 of the sealed private state (w~), its name in the private store"""
    method: Mapped[str] = mapped_column(String(32))
    claim: Mapped[dict[str, Any]]
    """unlearning.accounting.certificate.Claim as JSON"""
    samples: Mapped[int] = mapped_column(Count, default=0)
    people: Mapped[int] = mapped_column(Count, default=0)
    holdout_accuracy: Mapped[float | None]
    """of y, never of w~"""
    published_at: Mapped[int] = mapped_column(Moment, index=True)
    retired_at: Mapped[int | None] = mapped_column(Moment)
    purged_at: Mapped[int | None] = mapped_column(Moment)


class DeletionRequest(Record):
    __tablename__ = "deletion_requests"
    __table_args__ = (
        CheckConstraint("status IN ('queued','running','completed','cancelled','rejected','blocked')", name="status"),
        Index("ix_deletion_requests_page", "tenant_id", "created_at", "id"),
        Index("ix_deletion_requests_status", "tenant_id", "status"),
    )
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Name)
    subject_digest: Mapped[str | None] = mapped_column(Digest)
    """HMAC of the subject id; None when the request names samples"""
    pepper_id: Mapped[str] = mapped_column(String(16))
    status: Mapped[str] = mapped_column(String(9))
    reason: Mapped[str | None] = mapped_column(String(64))
    models: Mapped[list[str] | None]
    """the model names the client limited the request to; None: every model"""
    suppress_after: Mapped[int | None] = mapped_column(Serial)
    """of a limited request: models whose first generation has a greater id are suppressed too; None: the named alone"""
    traceparent: Mapped[str | None] = mapped_column(String(55))
    """the W3C trace context of the call that made it; opaque, and only for the logs"""
    regulation: Mapped[str | None] = mapped_column(String(8))
    salt: Mapped[bytes]
    """32 random bytes: the certificate commits with it"""
    received_at: Mapped[int] = mapped_column(Moment)
    due_at: Mapped[int | None] = mapped_column(Moment)
    created_at: Mapped[int] = mapped_column(Moment)
    completed_at: Mapped[int | None] = mapped_column(Moment)
    extended_at: Mapped[int | None] = mapped_column(Moment)
    """when the controller took the one extension that the law allows"""
    first_due_at: Mapped[int | None] = mapped_column(Moment)
    """the deadline before it was extended"""
    rejection: Mapped[str | None] = mapped_column(Text)
    """why it was rejected, in the controller's words"""


class Task(Record):
    """One model's part in a request: the queue. ``due_at`` stands on the request, ``not_before`` here."""

    __tablename__ = "tasks"
    __table_args__ = (
        UniqueConstraint("request_id", "model_id"),
        CheckConstraint("status IN ('queued','running','completed','cancelled','blocked')", name="status"),
        Index("ix_tasks_queue", "model_id", "status", "not_before"),
    )
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Name)
    request_id: Mapped[str] = mapped_column(Id, ForeignKey("deletion_requests.id"))
    model_id: Mapped[str] = mapped_column(Id, ForeignKey("models.id"))
    status: Mapped[str] = mapped_column(String(9))
    reason: Mapped[str | None] = mapped_column(String(64))
    samples: Mapped[int | None] = mapped_column(Count)
    """how many samples it forgot; None until known"""
    method: Mapped[str | None] = mapped_column(String(32))
    version_id: Mapped[str | None] = mapped_column(Id, index=True)
    attempts: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    lease_token: Mapped[int | None] = mapped_column(Count)
    not_before: Mapped[int] = mapped_column(Moment)
    created_at: Mapped[int] = mapped_column(Moment)
    completed_at: Mapped[int | None] = mapped_column(Moment)


class Forgotten(Record):
    """At most one effect per generation and sample: the primary key, not care."""

    __tablename__ = "forgotten"
    generation_id: Mapped[int] = mapped_column(Serial, primary_key=True)
    position: Mapped[int] = mapped_column(Count, primary_key=True)
    version_id: Mapped[str] = mapped_column(Id, index=True)


class SuppressionEntry(Record):
    """Who must never come back. One row per subject, or per sample where the request named samples, and per pepper."""

    __tablename__ = "suppressions"
    __table_args__ = (
        Index("ix_suppressions_subject", "tenant_id", "subject_digest"),
        Index("ix_suppressions_sample", "tenant_id", "sample_digest"),
        CheckConstraint("(subject_digest IS NULL) <> (sample_digest IS NULL)", name="subject_or_sample"),
    )
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Name)
    request_id: Mapped[str] = mapped_column(Id, ForeignKey("deletion_requests.id"), index=True)
    subject_digest: Mapped[str | None] = mapped_column(Digest)
    sample_digest: Mapped[str | None] = mapped_column(Digest)
    pepper_id: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[int] = mapped_column(Moment)
    """since when it counts, or would"""
    lifted_at: Mapped[int | None] = mapped_column(Moment)
    """None: it is in force. That of an unverified request is lifted from the start, until somebody verifies it"""
    lifted_reason: Mapped[str | None] = mapped_column(Text)


class Hold(Record):
    """A legal hold: its subject or sample is not forgotten until it is released."""

    __tablename__ = "holds"
    __table_args__ = (
        Index("ix_holds_subject", "tenant_id", "subject_digest"),
        CheckConstraint("(subject_digest IS NULL) <> (sample_digest IS NULL)", name="subject_or_sample"),
    )
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Name)
    subject_digest: Mapped[str | None] = mapped_column(Digest)
    sample_digest: Mapped[str | None] = mapped_column(Digest)
    pepper_id: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text)
    created_at: Mapped[int] = mapped_column(Moment)
    lifted_at: Mapped[int | None] = mapped_column(Moment)
    twin_of: Mapped[str | None] = mapped_column(Id)
    """the hold that this row stands for under another pepper; released with it, and never shown"""


class IdempotencyKey(Record):
    """The stored answer of a POST, written in the transaction that did its work."""

    __tablename__ = "idempotency_keys"
    tenant_id: Mapped[str] = mapped_column(Name, primary_key=True)
    key_id: Mapped[str] = mapped_column(Id, primary_key=True)
    """the API key that used it"""
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    body_digest: Mapped[str] = mapped_column(Digest)
    status_code: Mapped[int]
    headers: Mapped[dict[str, Any]]
    answer: Mapped[dict[str, Any]]
    expires_at: Mapped[int] = mapped_column(Moment, index=True)


class BudgetEntry(Record):
    """The budget ledger: append-only. Generation.spent equals the sum of its entries."""

    __tablename__ = "budget_entries"
    __table_args__ = (CheckConstraint("budget_cost >= 0", name="budget_cost_not_negative"),)
    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(Name)
    generation_id: Mapped[int] = mapped_column(Serial, ForeignKey("generations.id"), index=True)
    version_id: Mapped[str | None] = mapped_column(Id)
    """None: a draw that was charged and then blocked"""
    budget_cost: Mapped[int] = mapped_column(Count)
    created_at: Mapped[int] = mapped_column(Moment)


class Erasure(Record):
    """A holder's key that must be destroyed, written by the publish transaction, carried out after it."""

    __tablename__ = "erasures"
    __table_args__ = (UniqueConstraint("generation_id", "key_id"),)
    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(Name)
    generation_id: Mapped[int] = mapped_column(Serial)
    version_id: Mapped[str] = mapped_column(Id, index=True)
    key_id: Mapped[str] = mapped_column(Id)
    created_at: Mapped[int] = mapped_column(Moment)
    destroyed_at: Mapped[int | None] = mapped_column(Moment)


class AuditEntry(Record):
    """One thing that happened. ``log_index`` is given by the integrator, in the order of the log."""

    __tablename__ = "audit_entries"
    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(Name)
    log_index: Mapped[int | None] = mapped_column(Count, unique=True)
    leaf_hash: Mapped[str | None] = mapped_column(Digest)
    kind: Mapped[str] = mapped_column(String(48), index=True)
    request_id: Mapped[str | None] = mapped_column(Id, index=True)
    model_id: Mapped[str | None] = mapped_column(Id, index=True)
    body: Mapped[str] = mapped_column(Text)
    """canonical JSON: the leaf's bytes"""
    created_at: Mapped[int] = mapped_column(Moment)


class TreeHead(Record):
    """A signed head of the audit log (RFC 6962 root, C2SP signed note)."""

    __tablename__ = "tree_heads"
    size: Mapped[int] = mapped_column(Count, primary_key=True, autoincrement=False)
    root: Mapped[str] = mapped_column(Digest)
    frontier: Mapped[list[str]]
    """the roots of the complete subtrees, largest first: enough to append without reading the leaves"""
    note: Mapped[str] = mapped_column(Text)
    created_at: Mapped[int] = mapped_column(Moment)


class TreeNode(Record):
    """The root of a complete subtree of the audit log; level 0 stands in the entries themselves."""

    __tablename__ = "tree_nodes"
    level: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    index: Mapped[int] = mapped_column(Count, primary_key=True, autoincrement=False)
    hash: Mapped[str] = mapped_column(Digest)


class Certificate(Record):
    """A certificate of erasure, issued once for each completion of a request. Its bytes never change."""

    __tablename__ = "certificates"
    request_id: Mapped[str] = mapped_column(Id, ForeignKey("deletion_requests.id"), primary_key=True)
    completed_at: Mapped[int] = mapped_column(Moment, primary_key=True, autoincrement=False)
    """of the request: one that is reopened gets another certificate when it completes again"""
    tenant_id: Mapped[str] = mapped_column(Name)
    envelope: Mapped[str | None] = mapped_column(Text)
    """DSSE, as JSON; None: what it attests has not all happened yet"""
    issued_at: Mapped[int | None] = mapped_column(Moment, index=True)
    refused: Mapped[str | None] = mapped_column(Text)
    """why nothing was signed: the database and the audit log say different things. The scheduler tries again"""


class Consumer(Record):
    """Somebody who serves a model, and which version they last said they serve."""

    __tablename__ = "consumers"
    model_id: Mapped[str] = mapped_column(Id, ForeignKey("models.id"), primary_key=True)
    name: Mapped[str] = mapped_column(Name, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Name)
    version_id: Mapped[str] = mapped_column(Id)
    seen_at: Mapped[int] = mapped_column(Moment)


class CalibrationOrder(Record):
    """One deletion order of a calibrated generation: a piece of work that any worker may take."""

    __tablename__ = "calibration_orders"
    generation_id: Mapped[int] = mapped_column(
        Serial, ForeignKey("generations.id"), primary_key=True, autoincrement=False
    )
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    owner: Mapped[str | None] = mapped_column(String(120))
    """the process that measures it, or did"""
    errors: Mapped[bytes | None]
    """distances to retraining at each size, sealed under the sealing key"""
    measured_at: Mapped[int | None] = mapped_column(Moment)
    done_at: Mapped[int | None] = synonym("measured_at")


class WorkUnit(Record):
    """Some holders' vectors of a generation in preparation: a piece of work that any worker may take."""

    __tablename__ = "work_units"
    generation_id: Mapped[int] = mapped_column(
        Serial, ForeignKey("generations.id"), primary_key=True, autoincrement=False
    )
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    owner: Mapped[str | None] = mapped_column(String(120))
    """the process that computes it, or did"""
    done_at: Mapped[int | None] = mapped_column(Moment)


class HoldoutPerson(Record):
    """Somebody with a sample in a generation's holdout, which nobody trains on: there is nothing of them to forget."""

    __tablename__ = "holdout_people"
    generation_id: Mapped[int] = mapped_column(
        Serial, ForeignKey("generations.id"), primary_key=True, autoincrement=False
    )
    subject_digest: Mapped[str] = mapped_column(Digest, primary_key=True)


class Heartbeat(Record):
    __tablename__ = "heartbeats"
    process: Mapped[str] = mapped_column(String(120), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    """worker or scheduler"""
    software: Mapped[str] = mapped_column(String(32))
    device: Mapped[str | None] = mapped_column(String(32))
    started_at: Mapped[int] = mapped_column(Moment)
    beat_at: Mapped[int] = mapped_column(Moment, index=True)
    skew: Mapped[int | None] = mapped_column(Moment)
    """microseconds by which the process's own clock was ahead of the database's at its last beat"""
    dropped: Mapped[int] = mapped_column(Count, default=0, server_default=text("0"))
    """messages of the broker that were none of ours, since the process started"""


class Lease(Record):
    """Named leases beside the models' own: the scheduler's, the log integrator's."""

    __tablename__ = "leases"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    token: Mapped[int] = mapped_column(Count)
    owner: Mapped[str] = mapped_column(String(120))
    expires_at: Mapped[int] = mapped_column(Moment)


class Restoration(Record):
    """A backup that was restored. Until the operator confirms it the service reads only."""

    __tablename__ = "restorations"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    started_at: Mapped[int] = mapped_column(Moment)
    confirmed_at: Mapped[int | None] = mapped_column(Moment)
    report: Mapped[dict[str, Any]]


class PhaseSeconds(Record):
    """How long each phase of an update took, rounded up to a power of two: what /metrics reads, so that no worker's
    numbers are lost."""

    __tablename__ = "phase_seconds"
    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    model_id: Mapped[str] = mapped_column(Id, index=True)
    version_id: Mapped[str | None] = mapped_column(Id)
    method: Mapped[str] = mapped_column(String(32))
    phase: Mapped[str] = mapped_column(String(16))
    seconds: Mapped[float]
    created_at: Mapped[int] = mapped_column(Moment, index=True)


class WebhookEndpoint(Record):
    __tablename__ = "webhook_endpoints"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Name, index=True)
    url: Mapped[str] = mapped_column(String(2048))
    sealed_secret: Mapped[bytes]
    kinds: Mapped[list[str]]
    created_at: Mapped[int] = mapped_column(Moment)
    disabled_at: Mapped[int | None] = mapped_column(Moment)


class WebhookDelivery(Record):
    """The outbox: written in the transaction whose news it carries, delivered by the scheduler."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (Index("ix_webhook_deliveries_due", "delivered_at", "next_at"),)
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    """also the webhook-id header: the same across retries"""
    endpoint_id: Mapped[str] = mapped_column(Id, ForeignKey("webhook_endpoints.id"), index=True)
    kind: Mapped[str] = mapped_column(String(48))
    payload: Mapped[str] = mapped_column(Text)
    attempts: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    next_at: Mapped[int] = mapped_column(Moment)
    delivered_at: Mapped[int | None] = mapped_column(Moment)
    last_status: Mapped[int | None]
    last_outcome: Mapped[str | None] = mapped_column(String(16))
    """what became of the last attempt (service.requests.webhooks.Outcome); None: none was made, or it is under way"""
    attempts_before: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    """attempts made before the last replay: they count in the log, not towards giving up"""
    created_at: Mapped[int] = mapped_column(Moment)
