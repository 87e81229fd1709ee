"""Models, their generations and versions, their people, and the work of preparing and publishing them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from expunge_service.infra.tables.record import Count, Digest, Id, Moment, Name, Record, Serial


class Model(Record):
    """A model that users serve. Its lease decides which worker may publish (``Lease``)."""

    __tablename__ = "models"
    __table_args__ = (
        UniqueConstraint("tenant_id", "name"),
        CheckConstraint("status IN ('preparing','cancelled','live','refused','exhausted','retired')", name="status"),
    )
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Name)
    name: Mapped[str] = mapped_column(Name)
    status: Mapped[str] = mapped_column(String(12))
    reason: Mapped[str | None] = mapped_column(Text)
    recipe: Mapped[str] = mapped_column(String(255))
    policy: Mapped[dict[str, Any]]
    """method, fallback, guarantee, epsilon, delta, noise_std, max_distance, ... as registered
    (accounting.policy.Policy)
    """
    place: Mapped[str] = mapped_column(String(32), default="any", server_default="any")
    """which workers take its updates: any, the class of a device that its path is bound to, or a group's name"""
    memory: Mapped[int] = mapped_column(Count, default=0, server_default=text("0"))
    """bytes that an update needs on its device, as far as that is known"""
    leave_out_forgotten: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    """the registration may leave out forgotten people that its recipe still names"""
    current_id: Mapped[str | None] = mapped_column(Id)
    generation_id: Mapped[int | None] = mapped_column(Serial)
    """the generation of the current version; while preparing, the generation being prepared"""
    created_at: Mapped[int] = mapped_column(Moment)
    notified_at: Mapped[int] = mapped_column(Moment, default=0, server_default=text("0"))
    """when the workers were last notified; cleared at claim, so at most one notification is outstanding"""
    due_at: Mapped[int | None] = mapped_column(Moment)
    """the first moment with work to claim. Workers write it; intake adds tasks and does not change this row"""
    retrain_at: Mapped[int | None] = mapped_column(Moment)
    """when the policy's schedule plans the next retrain on new data; None: no schedule, or a retrain is planned"""


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
    """recipe digest, library versions, device class, counts of samples and people: see the workers' storage.manifest"""
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
    """The people of a generation's samples: one row for each subject of each sample.

    On PostgreSQL this table and ``recollections`` are partitioned by generation, see the migration.
    """

    __tablename__ = "memberships"
    # The subject comes before the position in the primary key. In the other order SQLite, which has no statistics,
    # answered "is this person in there" from the first column alone and read every row of the generation.
    __table_args__ = (
        Index("ix_memberships_position", "generation_id", "position"),
        Index("ix_memberships_sample", "generation_id", "sample_digest"),
    )
    generation_id: Mapped[int] = mapped_column(Serial, primary_key=True)
    subject_digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    position: Mapped[int] = mapped_column(Count, primary_key=True)
    sample_digest: Mapped[str] = mapped_column(Digest)
    content_digest: Mapped[str] = mapped_column(Digest)
    holder: Mapped[str] = mapped_column(Digest)
    """the holder of the sample's vector; equals subject_digest unless the sample names several subjects"""


class MembershipBlock(Record):
    """The keyed digest of all membership rows whose person, or sample, has a digest that begins with ``prefix``.

    Or of the marks of forgotten samples in one block of positions, of which ``prefix`` is the number.
    """

    __tablename__ = "membership_blocks"
    generation_id: Mapped[int] = mapped_column(
        Serial, ForeignKey("generations.id"), primary_key=True, autoincrement=False
    )
    made_by: Mapped[str] = mapped_column(String(8), primary_key=True)
    """subject, sample or mark"""
    prefix: Mapped[str] = mapped_column(String(8), primary_key=True)
    digest: Mapped[str] = mapped_column(Digest)


class HoldoutPerson(Record):
    """A person in a generation's holdout. No model is trained on it, so there is no sample of theirs to forget."""

    __tablename__ = "holdout_people"
    generation_id: Mapped[int] = mapped_column(
        Serial, ForeignKey("generations.id"), primary_key=True, autoincrement=False
    )
    subject_digest: Mapped[str] = mapped_column(Digest, primary_key=True)


class Spelling(Record):
    """A reduced form of the id of a person of a generation, its holdout's too: see ``requests.near_misses``.

    Numbers alone, and the form first: a row and its place in the index take 75 bytes on PostgreSQL, where 8-byte
    numbers in the order of the other tables take 92.
    """

    __tablename__ = "spellings"
    __table_args__ = ({"sqlite_with_rowid": False},)
    form: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """the first 8 bytes of the form's keyed digest, signed"""
    generation_id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    person: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    """the first 4 bytes of the person's keyed digest, signed"""


class StoredVector(Record):
    """A sealed vector (AES-GCM under the holder's key), deleted in the publish transaction that uses it."""

    __tablename__ = "recollections"
    generation_id: Mapped[int] = mapped_column(Serial, primary_key=True)
    holder: Mapped[str] = mapped_column(Digest, primary_key=True)
    key_id: Mapped[str] = mapped_column(Id, index=True)
    sealed: Mapped[bytes]


_KEPT = text("retired_at IS NOT NULL AND state_deleted_at IS NULL")


class Version(Record):
    __tablename__ = "versions"
    __table_args__ = (
        UniqueConstraint("model_id", "number"),
        UniqueConstraint("model_id", "parent_id"),
        CheckConstraint("status IN ('current','retired','purged')", name="status"),
        Index("ix_versions_status", "status", "retired_at"),
        Index("ix_versions_kept", "retired_at", sqlite_where=_KEPT, postgresql_where=_KEPT),
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
    state_deleted_at: Mapped[int | None] = mapped_column(Moment)
    """None: the state is there, also for a moment after the version was replaced"""
    method: Mapped[str] = mapped_column(String(32))
    claim: Mapped[dict[str, Any]]
    """unlearning.accounting.certificate.Claim as JSON"""
    samples: Mapped[int] = mapped_column(Count, default=0)
    people: Mapped[int] = mapped_column(Count, default=0)
    holdout_accuracy: Mapped[float | None]
    """of y, never of w~"""
    environment: Mapped[dict[str, Any] | None]
    """the distributions, Python, device and threads of its worker; None: an earlier release published it"""
    published_at: Mapped[int] = mapped_column(Moment, index=True)
    retired_at: Mapped[int | None] = mapped_column(Moment)
    purged_at: Mapped[int | None] = mapped_column(Moment)
    commitments: Mapped[dict[str, Any] | None]
    """keyed digests of the tables that say what the version holds, by table (expunge_service.models.commitments); None:
    a release before 0.3 published it"""
    tallied: Mapped[bool] = mapped_column(default=False, server_default=text("false"), index=True)
    """whether ``tallies`` counts its tasks and phases"""


class Removal(Record):
    """A sample that was forgotten. The primary key allows one effect per generation and sample."""

    __tablename__ = "forgotten"
    generation_id: Mapped[int] = mapped_column(Serial, primary_key=True)
    position: Mapped[int] = mapped_column(Count, primary_key=True)
    version_id: Mapped[str] = mapped_column(Id, index=True)


class BudgetEntry(Record):
    """The budget ledger: append-only. Generation.spent equals the sum of its entries."""

    __tablename__ = "budget_entries"
    __table_args__ = (
        CheckConstraint("budget_cost >= 0", name="budget_cost_not_negative"),
        Index("ix_budget_entries_generation", "generation_id", "version_id", "budget_cost"),
    )
    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(Name)
    generation_id: Mapped[int] = mapped_column(Serial, ForeignKey("generations.id"))
    version_id: Mapped[str | None] = mapped_column(Id, index=True)
    """None: a draw that was charged and then blocked"""
    budget_cost: Mapped[int] = mapped_column(Count)
    created_at: Mapped[int] = mapped_column(Moment)


class Erasure(Record):
    """A key that must be destroyed: written by the transaction that deletes what it opens, carried out after it."""

    __tablename__ = "erasures"
    __table_args__ = (UniqueConstraint("generation_id", "key_id"),)
    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(Name)
    generation_id: Mapped[int] = mapped_column(Serial)
    version_id: Mapped[str | None] = mapped_column(Id, index=True)
    """the version that its person left with; None: the model was retired"""
    key_id: Mapped[str] = mapped_column(Id)
    created_at: Mapped[int] = mapped_column(Moment)
    destroyed_at: Mapped[int | None] = mapped_column(Moment, index=True)
    in_place: Mapped[bool | None] = mapped_column(Boolean)
    """whether the key's share was overwritten where it lay; False: replaced in a bucket; None: not destroyed yet"""


class Consumer(Record):
    """A consumer of a model, and the version that it last reported."""

    __tablename__ = "consumers"
    model_id: Mapped[str] = mapped_column(Id, ForeignKey("models.id"), primary_key=True)
    name: Mapped[str] = mapped_column(Name, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Name)
    version_id: Mapped[str] = mapped_column(Id)
    seen_at: Mapped[int] = mapped_column(Moment)
    actor_id: Mapped[str | None] = mapped_column(Id)
    """the actor that reported it first, and alone may speak for it; None: it was reported before names were bound"""


class GenerationPart(Record):
    """A part of what a generation is built from: one that was trained, or one that any worker may take."""

    __tablename__ = "parts"
    __mapper_args__ = {"polymorphic_on": "kind"}  # noqa: RUF012 (SQLAlchemy reads it)
    generation_id: Mapped[int] = mapped_column(
        Serial, ForeignKey("generations.id"), primary_key=True, autoincrement=False
    )
    key: Mapped[str] = mapped_column(Digest, primary_key=True)
    kind: Mapped[str] = mapped_column(String(8))
    owner: Mapped[str | None] = mapped_column(String(120))
    """the process that makes it, or did"""
    done_at: Mapped[int | None] = mapped_column(Moment)


class CalibrationOrder(GenerationPart):
    """One deletion order of a calibrated generation, which any worker may measure."""

    __mapper_args__ = {"polymorphic_identity": "order"}  # noqa: RUF012 (SQLAlchemy reads it)
    number: Mapped[int] = mapped_column(nullable=True, use_existing_column=True)
    errors: Mapped[bytes | None]
    """distances to retraining at each size, sealed under the sealing key"""


class WorkUnit(GenerationPart):
    """A chain of parts of a training, which any worker may make: it keeps each under its key."""

    __mapper_args__ = {"polymorphic_identity": "unit"}  # noqa: RUF012 (SQLAlchemy reads it)
    number: Mapped[int] = mapped_column(nullable=True, use_existing_column=True)


class TrainedPart(GenerationPart):
    """A part of a training, by its key: an HMAC of all that its bytes follow from.

    It goes with the version that does not use it any more.
    """

    __mapper_args__ = {"polymorphic_identity": "trained"}  # noqa: RUF012 (SQLAlchemy reads it)
    result: Mapped[str] = mapped_column(Digest, nullable=True)
    """the sealed file in the private store that holds what it left"""
    walls: Mapped[str] = mapped_column(String(16), nullable=True)
    """how strong the walls were that it was made behind (``unlearning.accounting.world.Enclosure``)"""
    seconds: Mapped[float] = mapped_column(nullable=True)
    """of work, as a power of two"""


class PhaseSeconds(Record):
    """How long each phase of an update took, rounded up to a power of two: what /metrics reads until the version is
    tallied, and what a request's page shows."""

    __tablename__ = "phase_seconds"
    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    model_id: Mapped[str] = mapped_column(Id, index=True)
    version_id: Mapped[str | None] = mapped_column(Id, index=True)
    method: Mapped[str] = mapped_column(String(32))
    phase: Mapped[str] = mapped_column(String(16))
    seconds: Mapped[float]
    created_at: Mapped[int] = mapped_column(Moment, index=True)


class Tally(Record):
    """A count for /metrics over what has ended, so that no scrape reads history. The scheduler adds to it."""

    __tablename__ = "tallies"
    name: Mapped[str] = mapped_column(String(16), primary_key=True)
    """what is counted: see expunge_service.models.counters"""
    model_id: Mapped[str] = mapped_column(Id, primary_key=True)
    """empty: of no model"""
    method: Mapped[str] = mapped_column(String(32), primary_key=True)
    label: Mapped[str] = mapped_column(String(48), primary_key=True)
    """the phase of an update, or the kind of an audit entry"""
    bound: Mapped[str] = mapped_column(String(16), primary_key=True)
    """the bucket of a histogram: its upper bound in seconds, or +Inf"""
    count: Mapped[int] = mapped_column(Count)
