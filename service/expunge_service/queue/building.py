"""The generation that a preparation builds: its row, what an earlier attempt left, and the people to leave out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from expunge_service.infra.db import batches, now
from expunge_service.infra.pseudonyms import person_number
from expunge_service.infra.tables import (
    DeletionRequest,
    Generation,
    Hold,
    HoldoutPerson,
    Membership,
    MembershipBlock,
    Model,
    Removal,
    Spelling,
    StoredVector,
    SuppressionEntry,
    Task,
    Version,
)
from expunge_service.models import HOLDS_READ_AT, is_port, put_in_place
from expunge_service.queue.jobs import Job, Preparation
from expunge_service.queue.leases import fence
from expunge_service.queue.selection import undecided
from expunge_service.requests import (
    MEMBERS_FROZEN,
    SPELLINGS,
    NamedPerson,
    Question,
    Written,
    ask_those,
    concerns,
    questions_of,
    registration_of,
)


class Suppressing(NamedTuple):
    """A suppression entry: the request, and the person or the sample that it keeps out.

    ``written``: how the person's id is written; None: a sample, or an entry of release 0.2.
    """

    request_id: str
    subject_digest: str | None
    sample_digest: str | None
    written: Written | None


def model_of(session: Session, job: Preparation) -> Model:
    """Return the model that is prepared."""
    return session.get_one(Model, job.model_id)


def generation_of(session: Session, job: Job) -> Generation:
    """Return the generation that is being built, or updated."""
    return session.get_one(Generation, job.generation_id)


def extend_manifest(session: Session, job: Job, facts: Mapping[str, Any]) -> Generation:
    """Add to the manifest of the job's generation, and return it. Raises Stale."""
    fence(session, job.lease)
    generation = generation_of(session, job)
    generation.manifest = (generation.manifest or {}) | dict(facts)
    return generation


def freeze_manifest(session: Session, job: Preparation, summary: Mapping[str, Any]) -> None:
    """Add what the preparation found out to the manifest. The place of a first generation is the model's at once, for
    the workers that help; that of a candidate with its version. Raises Stale.
    """
    generation = extend_manifest(session, job, summary)
    if not job.retrains:
        put_in_place(model_of(session, job), generation)


def start_over(session: Session, job: Preparation) -> None:
    """Delete the rows that an earlier attempt left of people. Raises Stale."""
    fence(session, job.lease)
    generation = generation_of(session, job)
    generation.manifest = {
        name: fact for name, fact in (generation.manifest or {}).items() if name not in (MEMBERS_FROZEN, SPELLINGS)
    }
    if session.scalar(select(Version.id).where(Version.generation_id == job.generation_id).limit(1)):
        raise RuntimeError(f"generation {job.generation_id} has a version: it is not being prepared")
    for rows in (Membership, MembershipBlock, StoredVector, Spelling, HoldoutPerson):
        session.execute(delete(rows).where(rows.generation_id == job.generation_id))


def write_holdout(session: Session, job: Preparation, rows: list[dict[str, Any]]) -> None:
    """Write the people of the holdout. Raises Stale."""
    fence(session, job.lease)
    session.execute(insert(HoldoutPerson), rows)


def served_beside(session: Session, job: Preparation) -> Generation:
    """Return the generation that is served while a candidate is built."""
    return session.get_one(Generation, model_of(session, job).generation_id)


def suppressing(session: Session, job: Preparation) -> list[Suppressing]:
    """Return the entries in force that concern this model, except those of requests that are not carried out yet."""
    waits = select(Task.id).where(Task.request_id == SuppressionEntry.request_id, undecided(job.model_id, now(session)))
    rows = session.execute(
        select(
            SuppressionEntry.request_id,
            SuppressionEntry.subject_digest,
            SuppressionEntry.sample_digest,
            SuppressionEntry.spelling,
            DeletionRequest.models,
            DeletionRequest.suppress_after,
        )
        .join(DeletionRequest, DeletionRequest.id == SuppressionEntry.request_id)
        .where(SuppressionEntry.tenant_id == job.tenant_id, SuppressionEntry.lifted_at.is_(None), ~waits.exists())
    )
    registration = registration_of(session, job.generation_id)
    return [
        Suppressing(request, subject, sample, None if spelling is None else Written.from_json(spelling))
        for request, subject, sample, spelling, models, after in rows
        if concerns(models, after, job.model_name, registration)
    ]


def asked_for_samples(session: Session, job: Preparation) -> frozenset[str]:
    """Return the digests of the single samples that requests of this model name and that stay out of it."""
    here = select(Task.request_id).where(Task.model_id == job.model_id)
    named = select(SuppressionEntry.sample_digest).where(
        SuppressionEntry.request_id.in_(here),
        SuppressionEntry.lifted_at.is_(None),
        SuppressionEntry.sample_digest.is_not(None),
    )
    return frozenset(str(sample) for sample in session.scalars(named))


def nearly_suppressed(
    session: Session, entries: Iterable[Suppressing], holders: Mapping[int, Iterable[int]]
) -> dict[str, Question]:
    """Return, by request, the people of a generation that is being built whose ids are written nearly as its person's.

    ``holders``: by form, the people who have it. Those whom an entry names exactly are no question.
    """
    named = [each for each in entries if each.subject_digest is not None]
    apart = {person_number(each.subject_digest) for each in named if each.subject_digest}
    written = (
        NamedPerson(each.request_id, each.subject_digest, each.written)
        for each in named
        if each.subject_digest is not None and each.written is not None
    )
    return questions_of(session, written, holders, apart)


def ask_nearly_suppressed(session: Session, job: Preparation, questions: Mapping[str, Question]) -> None:
    """Let these requests wait for a decision about the people who would come back. Raises Stale."""
    fence(session, job.lease)
    ask_those(session, questions)


def served_people(session: Session, job: Preparation, subjects: Iterable[str]) -> frozenset[str]:
    """Return those of these people, by digest, that the served generation was trained on."""
    served = served_beside(session, job).id
    there = select(Membership.subject_digest).where(Membership.generation_id == served).distinct()
    found = (session.scalars(there.where(Membership.subject_digest.in_(part))) for part in batches(subjects))
    return frozenset().union(*found)


def before_registration(session: Session, job: Preparation) -> frozenset[str]:
    """Return the requests with suppression entries in force when the model was registered.

    A request with a task here came while the model was prepared, even if the clocks disagree: it must be carried out.
    """
    registered_at = model_of(session, job).created_at
    here = select(Task.id).where(Task.request_id == SuppressionEntry.request_id, Task.model_id == job.model_id)
    earlier = select(SuppressionEntry.request_id).where(
        SuppressionEntry.tenant_id == job.tenant_id, SuppressionEntry.created_at < registered_at, ~here.exists()
    )
    return frozenset(session.scalars(earlier))


def named_by_holds(session: Session, job: Preparation) -> frozenset[str]:
    """Return the digests of subjects and samples under a legal hold."""
    rows = session.execute(
        select(Hold.subject_digest, Hold.sample_digest).where(Hold.tenant_id == job.tenant_id, Hold.lifted_at.is_(None))
    )
    return frozenset(name for row in rows for name in row if name)


def still_served(session: Session, job: Preparation) -> frozenset[str]:
    """Return the digests of the samples that the served generation still has; for a port those of its people too.

    The sources of a recipe with rows may name samples otherwise than the earlier recipe did.
    """
    served = served_beside(session, job).id
    gone = select(Removal.position).where(Removal.generation_id == served)
    columns = [Membership.sample_digest]
    if is_port(generation_of(session, job)):
        columns.append(Membership.subject_digest)
    here = (Membership.generation_id == served, Membership.position.not_in(gone))
    return frozenset().union(*(session.scalars(select(column).where(*here)) for column in columns))


def note_holds_read(session: Session, job: Preparation) -> None:
    """Write down that a port reads the legal holds from now on: later ones are looked for when it is published."""
    extend_manifest(session, job, {HOLDS_READ_AT: now(session)})
