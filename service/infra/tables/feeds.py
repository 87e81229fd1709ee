"""Deletion feeds: the entries of a state's deletion lists, and the people of ours whom they name."""

from __future__ import annotations

from sqlalchemy import Boolean, ForeignKey, ForeignKeyConstraint, Index, SmallInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from expunge.service.infra.tables.record import Digest, Id, Moment, Name, Record


class FeedItem(Record):
    """A work item of a deletion list. It is kept where it names nobody: that person may be registered later."""

    __tablename__ = "feed_items"
    __table_args__ = (Index("ix_feed_items_open", "tenant_id", "removed_at", "list_name"),)
    tenant_id: Mapped[str] = mapped_column(Name, primary_key=True)
    item: Mapped[str] = mapped_column(String(12), primary_key=True)
    """the state's id, which the answer names"""
    list_name: Mapped[str] = mapped_column(String(8))
    source: Mapped[str] = mapped_column(String(13))
    """of the downloaded file's name: its day and the broker's number"""
    digest: Mapped[str] = mapped_column(Digest)
    """HMAC of the list's hash under the pepper: the hash alone could be tried with every phone number there is"""
    imported_at: Mapped[int] = mapped_column(Moment)
    checked_at: Mapped[int | None] = mapped_column(Moment)
    """when all known people were compared with it; None: never"""
    shared: Mapped[bool] = mapped_column(Boolean)
    """several people have the identifier, so nobody is deleted for it"""
    removed_at: Mapped[int | None] = mapped_column(Moment)
    """when the state withdrew it"""
    reported: Mapped[int | None] = mapped_column(SmallInteger)
    """the status that the last answer gave"""


class FeedMatch(Record):
    """A person whom a work item names."""

    __tablename__ = "feed_matches"
    __table_args__ = (
        Index("ix_feed_matches_subject", "tenant_id", "subject_digest"),
        ForeignKeyConstraint(["tenant_id", "item"], ["feed_items.tenant_id", "feed_items.item"], name="fk_feed_item"),
    )
    tenant_id: Mapped[str] = mapped_column(Name, primary_key=True)
    item: Mapped[str] = mapped_column(String(12), primary_key=True)
    subject_digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    request_id: Mapped[str | None] = mapped_column(Id, ForeignKey("deletion_requests.id"), index=True)
    """None: the identifier is shared"""
