"""Deletion requests: their tasks, suppression entries, legal holds, certificates and webhooks."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from expunge_service.infra.tables.record import Count, Digest, Id, Moment, Name, Record, Serial

LONGEST_REASON = 120
"""characters of a reason's code"""


class DeletionRequest(Record):
    __tablename__ = "deletion_requests"
    __table_args__ = (
        CheckConstraint("status IN ('queued','running','completed','cancelled','rejected','blocked')", name="status"),
        Index("ix_deletion_requests_page", "tenant_id", "created_at", "id"),
        Index("ix_deletion_requests_received", "tenant_id", "received_at", "id"),
        Index("ix_deletion_requests_case", "tenant_id", "case_id"),
        Index("ix_deletion_requests_status", "tenant_id", "status"),
        Index("ix_deletion_requests_due", "status", "due_at"),
    )
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Name)
    subject_digest: Mapped[str | None] = mapped_column(Digest)
    """HMAC of the subject id; None when the request names samples, or several ids of one person"""
    case_id: Mapped[str | None] = mapped_column(String(64))
    """the controller's own name for the case; not in the audit log"""
    status: Mapped[str] = mapped_column(String(9))
    reason: Mapped[str | None] = mapped_column(String(LONGEST_REASON))
    facts: Mapped[dict[str, Any] | None]
    """what the sentence of a reason names, by reason: values of ``expunge_service.requests.reasons.SLOTS``"""
    models: Mapped[list[str] | None]
    """the model names the client limited the request to; None: every model"""
    suppress_after: Mapped[int | None] = mapped_column(Serial)
    """of a limited request: models with a first generation of a greater id are suppressed too; None: the named alone"""
    traceparent: Mapped[str | None] = mapped_column(String(55))
    """the W3C trace context of the call that made it; opaque, and only for the logs"""
    regulation: Mapped[str | None] = mapped_column(String(16))
    salt: Mapped[bytes]
    """32 random bytes: the certificate commits with it"""
    received_at: Mapped[int] = mapped_column(Moment)
    time_zone: Mapped[str | None] = mapped_column(String(64))
    """in which its deadlines are counted: an IANA name, UTC or an offset as -01:00; None: UTC"""
    due_at: Mapped[int | None] = mapped_column(Moment)
    created_at: Mapped[int] = mapped_column(Moment)
    completed_at: Mapped[int | None] = mapped_column(Moment)
    extended_at: Mapped[int | None] = mapped_column(Moment)
    """when the controller took the one extension that the law allows"""
    first_due_at: Mapped[int | None] = mapped_column(Moment)
    """the deadline before it was extended"""
    warned_due_at: Mapped[int | None] = mapped_column(Moment)
    """the deadline that webhooks were warned of; an extended request has another, and is warned of again"""
    caller: Mapped[str | None] = mapped_column(String(36))
    """the id of the key that it was sent with; None: it was sent before this was kept, or without a key"""
    outcome: Mapped[str | None] = mapped_column(String(16))
    """what was known of its person when it was accepted: ``requests.intake.IntakeOutcome``; None: nothing was asked"""
    near: Mapped[list[int] | None]
    """while the request waits for a decision about its id: the people whose ids are written nearly so, as
    ``Spelling.person`` has them; None: it waits for none"""
    others: Mapped[list[int] | None]
    """the people who were said to be others than the one that the request names, in the same form"""
    rejection: Mapped[str | None] = mapped_column(Text)
    """why it was rejected, in the controller's words"""


class Task(Record):
    """One model's part in a request. The tasks are the queue; ``due_at`` is a column of the request."""

    __tablename__ = "tasks"
    __table_args__ = (
        UniqueConstraint("request_id", "model_id"),
        CheckConstraint("status IN ('queued','running','completed','cancelled','blocked')", name="status"),
        Index("ix_tasks_queue", "model_id", "status", "not_before"),
        Index("ix_tasks_status", "status", "not_before"),
    )
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Name)
    request_id: Mapped[str] = mapped_column(Id, ForeignKey("deletion_requests.id"))
    model_id: Mapped[str] = mapped_column(Id, ForeignKey("models.id"))
    status: Mapped[str] = mapped_column(String(9))
    reason: Mapped[str | None] = mapped_column(String(LONGEST_REASON))
    facts: Mapped[dict[str, Any] | None]
    """as the request's"""
    samples: Mapped[int | None] = mapped_column(Count)
    """how many samples it forgot; None until known"""
    method: Mapped[str | None] = mapped_column(String(32))
    version_id: Mapped[str | None] = mapped_column(Id, index=True)
    attempts: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    lease_token: Mapped[int | None] = mapped_column(Count)
    not_before: Mapped[int] = mapped_column(Moment)
    created_at: Mapped[int] = mapped_column(Moment)
    completed_at: Mapped[int | None] = mapped_column(Moment)


class SuppressionEntry(Record):
    """A subject that must not return, or a sample where the request named samples: one row for each."""

    __tablename__ = "suppressions"
    __table_args__ = (
        Index("ix_suppressions_subject", "tenant_id", "subject_digest"),
        Index("ix_suppressions_sample", "tenant_id", "sample_digest"),
        Index("ix_suppressions_created", "tenant_id", "created_at"),
        CheckConstraint("(subject_digest IS NULL) <> (sample_digest IS NULL)", name="subject_or_sample"),
    )
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Name)
    request_id: Mapped[str] = mapped_column(Id, ForeignKey("deletion_requests.id"), index=True)
    subject_digest: Mapped[str | None] = mapped_column(Digest)
    sample_digest: Mapped[str | None] = mapped_column(Digest)
    created_at: Mapped[int] = mapped_column(Moment)
    """since when it counts, or would if it were verified"""
    lifted_at: Mapped[int | None] = mapped_column(Moment)
    """None: it is in force. The entry of an unverified request is lifted until the request is verified, that of a near
    miss until a person has decided"""
    lifted_reason: Mapped[str | None] = mapped_column(Text)
    spelling: Mapped[dict[str, Any] | None]
    """of the subject's id: ``requests.near_misses.Written``; None: a sample, or an entry of release 0.2"""


class Hold(Record):
    """A legal hold: its subject or sample is not forgotten until the hold is lifted."""

    __tablename__ = "holds"
    __table_args__ = (
        Index("ix_holds_subject", "tenant_id", "subject_digest"),
        CheckConstraint("(subject_digest IS NULL) <> (sample_digest IS NULL)", name="subject_or_sample"),
    )
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Name)
    subject_digest: Mapped[str | None] = mapped_column(Digest)
    sample_digest: Mapped[str | None] = mapped_column(Digest)
    reason: Mapped[str] = mapped_column(Text)
    created_at: Mapped[int] = mapped_column(Moment)
    lifted_at: Mapped[int | None] = mapped_column(Moment)
    spelling: Mapped[dict[str, Any] | None]
    """as a suppression entry's"""


class IdempotencyKey(Record):
    """The stored answer of a POST, written in the transaction that did its work."""

    __tablename__ = "idempotency_keys"
    tenant_id: Mapped[str] = mapped_column(Name, primary_key=True)
    actor_id: Mapped[str] = mapped_column(Id, primary_key=True)
    """the actor that used it; of a row from before migration 0018 the API key"""
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    body_digest: Mapped[str] = mapped_column(Digest)
    status_code: Mapped[int]
    headers: Mapped[dict[str, Any]]
    answer: Mapped[dict[str, Any]]
    expires_at: Mapped[int] = mapped_column(Moment, index=True)


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
    """why it was not signed: the database and the audit log say different things. The scheduler tries again"""


class WebhookEndpoint(Record):
    __tablename__ = "webhook_endpoints"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Name, index=True)
    url: Mapped[str] = mapped_column(String(2048))
    kinds: Mapped[list[str]]
    created_at: Mapped[int] = mapped_column(Moment)
    disabled_at: Mapped[int | None] = mapped_column(Moment)


class WebhookDelivery(Record):
    """The outbox: written in the transaction that it reports, delivered by the scheduler."""

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
    """what became of the last attempt (``DeliveryOutcome``); None: none was made, or it is under way"""
    attempts_before: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    """attempts made before the last replay: they count in the log, not towards giving up"""
    created_at: Mapped[int] = mapped_column(Moment)
