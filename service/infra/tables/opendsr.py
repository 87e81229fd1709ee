"""OpenDSR: which deletion request each of another system's requests became."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from expunge.service.infra.tables.record import Digest, Id, Name, Record


class OpendsrRequest(Record):
    """One request by OpenDSR. It names nobody: the caller's id of it is a UUID."""

    __tablename__ = "opendsr_requests"
    __table_args__ = (Index("ix_opendsr_requests_announced", "announced"),)
    tenant_id: Mapped[str] = mapped_column(Name, primary_key=True)
    subject_request_id: Mapped[str] = mapped_column(String(36), primary_key=True)
    """the caller's id: the same id again is the same request"""
    request_id: Mapped[str] = mapped_column(Id, ForeignKey("deletion_requests.id"), unique=True)
    body_digest: Mapped[str] = mapped_column(Digest)
    """keyed digest of what was asked, so that another order under the same id is refused"""
    endpoints: Mapped[list[str]]
    """ids of the webhook endpoints that its status is announced to"""
    announced: Mapped[str | None] = mapped_column(String(11))
    """the status that was announced last; None: the request names no address for callbacks"""
