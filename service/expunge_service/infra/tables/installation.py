"""What belongs to the installation: API keys, the audit log, processes and their leases."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, String, Text, false, text
from sqlalchemy.orm import Mapped, mapped_column

from expunge_service.infra.tables.record import Count, Digest, Id, Moment, Name, Record, Serial


class ActorName(Record):
    """The name of an actor of the audit log: the one place that has it, so that it can be erased."""

    __tablename__ = "actors"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    """opaque: what the log says"""
    tenant_id: Mapped[str] = mapped_column(Name, index=True)
    name: Mapped[str | None] = mapped_column(String(120))
    """None: it was erased"""
    proxy_digest: Mapped[str | None] = mapped_column(Digest, unique=True)
    """HMAC of the name under which a proxy knows the actor; None: no proxy named them, or the name was erased"""
    created_at: Mapped[int] = mapped_column(Moment)


class Consent(Record):
    """The first of two people's consents to an act on something."""

    __tablename__ = "consents"
    tenant_id: Mapped[str] = mapped_column(Name, primary_key=True)
    act: Mapped[str] = mapped_column(String(16), primary_key=True)
    subject: Mapped[str] = mapped_column(Id, primary_key=True)
    """the id of the request, hold or model"""
    actor_id: Mapped[str] = mapped_column(Id)
    origin: Mapped[str] = mapped_column(Id)
    """the origin of the key with which they consented"""
    created_at: Mapped[int] = mapped_column(Moment)


class ApiKey(Record):
    __tablename__ = "api_keys"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Name, index=True)
    prefix: Mapped[str] = mapped_column(String(16), unique=True)
    digest: Mapped[str] = mapped_column(Digest)
    label: Mapped[str] = mapped_column(String(120))
    actor_id: Mapped[str] = mapped_column(Id, ForeignKey("actors.id"), index=True)
    """its holder: one actor may hold several keys, and a rotated key keeps its actor"""
    origin: Mapped[str | None] = mapped_column(Id)
    """the actor that could have kept a copy: the origin of the key that made or rotated it over HTTP; None: it was made
    in a shell
    """
    scopes: Mapped[list[str]]
    created_at: Mapped[int] = mapped_column(Moment)
    expires_at: Mapped[int | None] = mapped_column(Moment)
    revoked_at: Mapped[int | None] = mapped_column(Moment)
    pepper_id: Mapped[str] = mapped_column(String(16))
    """the pepper of ``digest``: the same in every row, for an installation has one (``api_keys.require_pepper``)"""


class EndedSession(Record):
    """A session of the status page that was logged out, so that no copy of its cookie is valid."""

    __tablename__ = "ended_sessions"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    until: Mapped[int] = mapped_column(Moment)
    """after this no cookie of the session is valid, so the row may go"""


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
    """The root of a complete subtree of the audit log; level 0 is stored in the entries."""

    __tablename__ = "tree_nodes"
    level: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    index: Mapped[int] = mapped_column(Count, primary_key=True, autoincrement=False)
    hash: Mapped[str] = mapped_column(Digest)


class LogCheck(Record):
    """The scheduler's last check of the whole audit log: one row, with id 1."""

    __tablename__ = "log_checks"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    checked_at: Mapped[int] = mapped_column(Moment)
    fault: Mapped[str | None] = mapped_column(Text)
    """None: the log verified"""
    size: Mapped[int] = mapped_column(Count)
    """entries that verified, at the last check that found no fault"""
    note: Mapped[str | None] = mapped_column(Text)
    """the signed head of those; None: there was no entry yet"""


class Heartbeat(Record):
    __tablename__ = "heartbeats"
    process: Mapped[str] = mapped_column(String(120), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    """worker, updater or scheduler"""
    software: Mapped[str] = mapped_column(String(32))
    device: Mapped[str | None] = mapped_column(String(32))
    """the class of its device: cpu or cuda; None: it computes no models"""
    card: Mapped[str | None] = mapped_column(String(80))
    """the name that the device gives itself"""
    serves: Mapped[dict[str, Any] | None]
    """tenants, places and memory: ``expunge_service.queue.Serves``"""
    drained: Mapped[bool] = mapped_column(default=False, server_default=false())
    """whether an operator asked it to take no work"""
    started_at: Mapped[int] = mapped_column(Moment)
    beat_at: Mapped[int] = mapped_column(Moment, index=True)
    skew: Mapped[int | None] = mapped_column(Moment)
    """microseconds by which the process's own clock was ahead of the database's at its last beat"""
    dropped: Mapped[int] = mapped_column(Count, default=0, server_default=text("0"))
    """foreign messages in the broker since the process started"""


class Lease(Record):
    """A right to work until a moment. ``model:ID`` and ``retrain:ID`` come with the model; ``scheduler`` is there."""

    __tablename__ = "leases"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    token: Mapped[int] = mapped_column(Count, default=0)
    """another for each claim; 0: released, or never taken"""
    owner: Mapped[str] = mapped_column(String(120), default="")
    """the process that took it last"""
    expires_at: Mapped[int] = mapped_column(Moment, default=0)
    renewed_at: Mapped[int] = mapped_column(Moment, default=0, server_default=text("0"))


class ClaimedPlace(Record):
    """A place outside the database that this installation has claimed (``expunge_service.access.store_identity``)."""

    __tablename__ = "places"
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    """its setting, without prefix; a key store for some tenants alone is named with them; or ``database``"""
    installation: Mapped[str] = mapped_column(Id)
    """the installation's id: the same in every row"""


class Restoration(Record):
    """A backup that was restored. Until the operator confirms it the service reads only."""

    __tablename__ = "restorations"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    started_at: Mapped[int] = mapped_column(Moment)
    confirmed_at: Mapped[int | None] = mapped_column(Moment)
    epoch: Mapped[int | None] = mapped_column(Count)
    """that its confirmation began (``expunge_service.audit.witness``); None: it began none"""
    last_generation: Mapped[int | None] = mapped_column(Serial)
    """the largest number of a generation that journal, key store and log knew: later ones start above it"""
    report: Mapped[dict[str, Any]]


class SweptFile(Record):
    """A file that was deleted because no version named it: a worker that slept since it wrote the file may not publish.

    Written before the file is deleted, under a lock that each publication shares.
    """

    __tablename__ = "swept_files"
    digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    deleted_at: Mapped[int | None] = mapped_column(Moment)
    """None: it is about to be deleted. What is written under this name later is another file"""
