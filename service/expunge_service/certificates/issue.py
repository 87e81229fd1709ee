"""Issue certificates of erasure: what is due, what they attest, and the rows that keep them.

A certificate is issued by the scheduler, once for each completion of a request, when everything it attests has
happened: the keys of the update are destroyed and the request's audit entries are under a signed head. It is
stored then and its bytes never change. It names no person: it commits to the subject and the samples under a salt
(the opening) that the controller got with the acceptance and that is not stored.

Many are issued together, and what they have in common is read once. Everything is read and signed before the writer's
lock is taken, and the rows are stored in several short transactions.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from expunge_service.audit import NotAuthentic, Signer, canonical, entry, newest_head, proofs, record, record_entries
from expunge_service.certificates.envelope import payload_digest, sign, verify
from expunge_service.certificates.statement import Completion, Release, audit_of, distinct_records, statement
from expunge_service.certificates.tables import altered
from expunge_service.infra.db import Database, batches, now
from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.tables import (
    AuditEntry,
    BudgetEntry,
    Certificate,
    DeletionRequest,
    Erasure,
    Generation,
    Hold,
    Membership,
    Model,
    Removal,
    SuppressionEntry,
    Task,
    TreeHead,
    Version,
)
from expunge_service.models import PUBLISHING, body_of, require_published, standing
from expunge_service.requests import (
    Account,
    Reason,
    WebhookEvent,
    accounts_of,
    announce,
    opening,
    outcomes_of,
    reason_of,
)
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.composition import Allowance

log = logging.getLogger(__name__)
AT_ONCE = 250
"""certificates that are issued together"""
STORED_AT_ONCE = 25
"""certificates of one transaction: every other writer of SQLite waits for it"""
Outcome = str | NotAuthentic | None
"""the envelope as JSON; why it was not signed; None: what it attests has not all happened yet"""


_REMOVED = (Removal.generation_id == Membership.generation_id) & (Removal.position == Membership.position)
UNISSUED = select(Certificate).where(Certificate.issued_at.is_(None))


def issue_due(database: Database, signer: Signer, pepper: Pepper, limit: int = AT_ONCE) -> int:
    """Issue up to ``limit`` of the certificates that can be issued now; return how many. The scheduler calls this."""
    pending = UNISSUED.order_by(Certificate.refused.is_not(None), Certificate.completed_at).limit(limit)
    with database.snapshot() as session:
        rows, head = session.scalars(pending).all(), newest_head(session)
        if not rows or head is None:
            return 0
        outcomes = _outcomes(session, signer, pepper, head, [row.request_id for row in rows])
    issued = 0
    for part in batches(outcomes.items(), STORED_AT_ONCE):
        with database.write() as session:
            issued += _keep(session, dict(part))
    return issued


def _outcomes(
    session: Session, signer: Signer, pepper: Pepper, head: TreeHead, requests: Sequence[str]
) -> dict[tuple[str, int | None], Outcome]:
    """Return, for each request and the moment of its completion, its envelope or why there is none."""
    found, faults = _completions(session, requests)
    completed = (each for each in found if each.request.completed_at is not None)  # the others were reopened since
    ready = [each for each in completed if _in_tree(head, each.entries)]
    waiting = erasing(session, {release.version.id for each in ready for _, release in each.done})
    ready = [each for each in ready if not any(release.version.id in waiting for _, release in each.done)]
    paths = proofs(session, head.size, [entry.log_index or 0 for each in ready for entry in each.entries])
    outcomes: dict[tuple[str, int | None], Outcome] = {
        (each.request.id, each.request.completed_at): None for each in found
    }
    differs = altered(session, pepper, ready) if ready else {}
    for each in ready:
        audit = audit_of(signer, head, each.entries, paths)
        fault = next((faults[release.version.id] for _, release in each.done if release.version.id in faults), None)
        fault = fault or differs.get(each.request.id)
        outcomes[each.request.id, each.request.completed_at] = fault or _signed(signer, pepper, each, audit)
    return outcomes


def _signed(signer: Signer, pepper: Pepper, completion: Completion, audit: Mapping[str, object]) -> Outcome:
    """Return the envelope, of what the audit log says; or why it is not authentic."""
    said = statement(opening(pepper, completion.request.salt), completion, audit)
    try:
        _require_said(completion)
        envelope = sign(signer, canonical(said).encode())
        verify(envelope, signer.verifier)
    except NotAuthentic as error:
        return error
    return json.dumps(envelope)


def _require_said(completion: Completion) -> None:
    """Check that the log says of the request's law, moments and tasks what the database says. Raises NotAuthentic."""
    request = completion.request
    ended: dict[str, Any] = {name: getattr(request, name) for name in ("completed_at", "received_at", "due_at")}
    ended["outcome"] = completion.outcome
    wanted = {"request.accepted": {"regulation": request.regulation}, "request.completed": ended}
    said = {entry.kind: body_of(entry) for entry in completion.entries if entry.kind.startswith("request.")}  # the last
    wrong = [
        fact
        for kind, facts in wanted.items()
        for fact, value in facts.items()
        if said.get(kind, {}).get(fact, value) != value
    ]
    extension = said.get("request.extended", {"at": None, "first_due_at": None})
    told = {"extended_at": extension["at"], "first_due_at": extension["first_due_at"]}
    wrong += [fact for fact, value in told.items() if getattr(request, fact) != value]
    if wrong:
        raise NotAuthentic(f"The audit log and the database differ on the request: {', '.join(sorted(wrong))}.")


def _keep(session: Session, outcomes: Mapping[tuple[str, int | None], Outcome]) -> int:
    """Store what was signed, unless another scheduler did, or the request was reopened since; return how many.

    The row of an earlier completion is deleted: another certificate will come.
    """
    query = (
        select(Certificate, DeletionRequest.completed_at)
        .join(DeletionRequest, DeletionRequest.id == Certificate.request_id)
        .where(Certificate.request_id.in_({request for request, _ in outcomes}), Certificate.issued_at.is_(None))
        .with_for_update(of=Certificate)
    )
    at = now(session)
    issued: list[dict[str, Any]] = []
    for row, completed_at in session.execute(query).all():
        if completed_at != row.completed_at:
            session.delete(row)
            continue
        match outcomes.get((row.request_id, row.completed_at)):
            case str(envelope):
                row.envelope, row.issued_at, row.refused = envelope, at, None
                digest = payload_digest(json.loads(envelope))
                named = {"request_id": row.request_id, "payload_sha256": digest}
                issued.append(entry(session, row.tenant_id, "certificate.issued", **named))
                announce(session, row.tenant_id, WebhookEvent.CERTIFICATE_ISSUED, {"id": row.request_id})
            case NotAuthentic() as error:
                _refuse(session, row, error)
    if issued:
        record_entries(session, issued)
    return len(issued)


def _refuse(session: Session, row: Certificate, error: ValueError) -> None:
    """Record the refusal and its reason once: the scheduler tries again each time, behind the others."""
    why = str(error)
    if row.refused != why:
        log.error("certificate refused: %s", why)
        record(session, row.tenant_id, "certificate.refused", request_id=row.request_id, what=why)
    row.refused = why


def _completions(session: Session, requests: Sequence[str]) -> tuple[list[Completion], dict[str, NotAuthentic]]:
    """Read the requests with everything that their certificates say.

    Returns:
        The requests; and the versions, by id, of which the audit log and the database say different things.
    """
    # First of all: one that is reopened and completed again after this has another moment of completion, so that what
    # is read from here on is not stored for it.
    completed = session.scalars(select(DeletionRequest).where(DeletionRequest.id.in_(requests))).all()
    carried: dict[str, list[tuple[Task, Version]]] = defaultdict(list)
    query = select(Task, Version).join(Version, Version.id == Task.version_id).where(Task.request_id.in_(requests))
    for task, version in session.execute(query.order_by(Task.id)):
        carried[task.request_id].append((task, version))
    ended = _without_version(session, requests)
    releases, faults = _releases(session, {version.id: version for each in carried.values() for _, version in each})
    own: dict[str, list[AuditEntry]] = defaultdict(list)
    told = ~AuditEntry.kind.startswith(
        "certificate."
    )  # of an earlier completion; another certificate says nothing of it
    for told_of in session.scalars(select(AuditEntry).where(AuditEntry.request_id.in_(requests), told)):
        own[told_of.request_id or ""].append(told_of)
    last_asked = (
        select(SuppressionEntry.request_id, func.max(SuppressionEntry.created_at))
        .where(SuppressionEntry.request_id.in_(requests))
        .group_by(SuppressionEntry.request_id)
    )
    asked = {request: at for request, at in session.execute(last_asked)}
    samples = _samples(session, requests, [release.version for release in releases.values()])
    names = _names(session, requests)
    outcomes = outcomes_of(session, completed)
    found = []
    for request in completed:
        done = [(task, releases[version.id]) for task, version in carried[request.id]]
        entries = {entry.id: entry for entry in chain(own[request.id], *(release.publications for _, release in done))}
        in_order = [entries[each] for each in sorted(entries)]
        accounts = _accounts(
            session, request, names.get(request.id, ([], [])), [task for task, _ in done], samples[request.id]
        )
        known = asked.get(request.id), samples[request.id], outcomes[request.id], accounts
        found.append(Completion(request, done, ended[request.id], in_order, *known))
    return found, faults


def _names(session: Session, requests: Sequence[str]) -> dict[str, tuple[list[str], list[str]]]:
    """Return the keyed digests of the subjects, and of the samples, that each request names, sorted."""
    entries = select(SuppressionEntry.request_id, SuppressionEntry.subject_digest, SuppressionEntry.sample_digest)
    names: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for request, subject, sample in session.execute(entries.where(SuppressionEntry.request_id.in_(requests))):
        subjects, samples = names[request]
        (samples if subject is None else subjects).append(subject or sample or "")
    return {request: (sorted(subjects), sorted(samples)) for request, (subjects, samples) in names.items()}


def _accounts(
    session: Session,
    request: DeletionRequest,
    names: tuple[list[str], list[str]],
    tasks: Sequence[Task],
    samples: Mapping[str, Collection[str]],
) -> Sequence[Account] | None:
    """Return what became of each name. Where each model lost something, of all samples or the only id, by no query."""
    if not tasks:
        return None
    subjects, named = names
    if all(task.samples for task in tasks) and (
        len(subjects) == 1 or (named and frozenset(named) <= frozenset().union(*samples.values()))
    ):
        return [Account(deleted=True, before=(), in_holdout=False)] * len(subjects or named)
    return accounts_of(session, request, subjects, named)


def _without_version(session: Session, requests: Sequence[str]) -> dict[str, list[tuple[str, Reason]]]:
    """Return, by request, the models that ended before they carried it out, and the reason of each."""
    query = select(Task.request_id, Model.name, Task.reason).join(Model, Model.id == Task.model_id)
    mine = (Task.request_id.in_(requests), Task.version_id.is_(None))
    ended: dict[str, list[tuple[str, Reason]]] = defaultdict(list)
    for request, name, code in session.execute(query.where(*mine).order_by(Model.name)):
        reason = reason_of(code or "")
        if reason in (Reason.MODEL_RETIRED, Reason.NOT_PUBLISHED):
            ended[request].append((name, reason))
    return ended


def _releases(session: Session, versions: Mapping[str, Version]) -> tuple[dict[str, Release], dict[str, NotAuthentic]]:
    """Return the versions as certificates show them, and those that are not what the audit log says."""
    releases, faults = {}, {}
    for version in versions.values():
        publications = _publications(session, version)
        releases[version.id] = _release(session, version, publications)
        try:
            require_published(session, version, publications)
        except NotAuthentic as error:
            faults[version.id] = error
    return releases, faults


def _release(session: Session, version: Version, publications: Sequence[AuditEntry]) -> Release:
    model = session.get_one(Model, version.model_id)
    cost = session.scalar(select(func.sum(BudgetEntry.budget_cost)).where(BudgetEntry.version_id == version.id))
    keys, destroyed_at, replaced = session.execute(
        select(func.count(), func.max(Erasure.destroyed_at), func.count().filter(Erasure.in_place.is_not(True))).where(
            Erasure.version_id == version.id
        )
    ).one()
    later = select(Generation).where(
        Generation.model_id == version.model_id,
        Generation.id > version.generation_id,
        Generation.status != "refused",
    )
    return Release(
        version=version,
        model=model.name,
        parent=session.get(Version, version.parent_id) if version.parent_id else None,
        budget_cost=int(cost or 0),
        keys=keys,
        destroyed_at=destroyed_at,
        keys_replaced=replaced,
        consumers=standing(session, model, version),
        later=tuple((each.created_at, _allowance(each)) for each in session.scalars(later.order_by(Generation.id))),
        held_until=_held_until(session, version),
        publications=tuple(publications),
    )


def _held_until(session: Session, version: Version) -> int:
    """Return when the last legal hold ended on what the version forgot; 0: there was none.

    A retrain that was prepared until then was trained on it, although its person had asked.
    """
    held = 0
    gone = (Membership.generation_id == version.generation_id, Removal.version_id == version.id)
    kinds = {Membership.subject_digest: Hold.subject_digest, Membership.sample_digest: Hold.sample_digest}
    for column, name in kinds.items():
        ended = (Hold.tenant_id == version.tenant_id, Hold.created_at <= version.published_at)
        rows = session.execute(select(name, func.max(Hold.lifted_at)).where(*ended).group_by(name))
        until = {each: at for each, at in rows if each is not None and at is not None}
        for part in batches(until):
            query = select(column).join(Removal, _REMOVED).where(*gone, column.in_(part))
            held = max([held, *(until[each] for each in session.scalars(query))])
    return held


def _allowance(generation: Generation) -> Allowance:
    guarantee = Guarantee(generation.guarantee)
    return Allowance(generation.id, guarantee, 0 if guarantee is Guarantee.EXACT else generation.budget)


def _publications(session: Session, version: Version) -> list[AuditEntry]:
    wanted = select(AuditEntry).where(
        AuditEntry.model_id == version.model_id,
        AuditEntry.kind.in_(PUBLISHING),
        AuditEntry.body.contains(f'"version":"{version.id}"', autoescape=True),
    )
    return list(session.scalars(wanted))


def _samples(session: Session, requests: Sequence[str], versions: Iterable[Version]) -> dict[str, dict[str, set[str]]]:
    """Return the keyed digests of the samples that each version forgot for each request, by request and version.

    The queries take lists of names. Without statistics SQLite answers a join with the suppression entries by reading
    the whole generation for every call (measured: 640 ms at 4,000 people, as often as 250 certificates are issued).
    """
    named: dict[InstrumentedAttribute[str], dict[str, set[str]]] = {
        Membership.subject_digest: defaultdict(set),
        Membership.sample_digest: defaultdict(set),
    }
    entries = select(SuppressionEntry.request_id, SuppressionEntry.subject_digest, SuppressionEntry.sample_digest)
    for request, subject, sample in session.execute(entries.where(SuppressionEntry.request_id.in_(requests))):
        column = Membership.sample_digest if subject is None else Membership.subject_digest
        named[column][subject or sample or ""].add(request)
    by_id = {version.id: version.generation_id for version in versions}
    forgotten = (
        select(Removal.version_id, Membership.sample_digest)
        .join(Removal, _REMOVED)
        .where(Membership.generation_id.in_(set(by_id.values())), Removal.version_id.in_(by_id))
    )
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for column, asked in named.items():
        for part in batches(asked):
            for version, sample, name in session.execute(forgotten.add_columns(column).where(column.in_(part))):
                for request in asked[name]:
                    found[request][version].add(sample)
    return found


def records_of(session: Session, request_id: str) -> int | None:
    """Return how many distinct records the request took out of models; None: see ``distinct_records``."""
    query = select(Task, Version).join(Version, Version.id == Task.version_id).where(Task.request_id == request_id)
    done = session.execute(query).all()
    samples = _samples(session, [request_id], [version for _, version in done])[request_id]
    return distinct_records([task for task, _ in done], samples)


def _in_tree(head: TreeHead, entries: Iterable[AuditEntry]) -> bool:
    return all(entry.log_index is not None and entry.log_index < head.size for entry in entries)


def erasing(session: Session, versions: Iterable[str]) -> frozenset[str]:
    """Return those of the versions with which something left that is not destroyed yet: keys, or the state before."""
    wanted, before = list(versions), aliased(Version)
    keys = select(Erasure.version_id).where(Erasure.version_id.in_(wanted), Erasure.destroyed_at.is_(None))
    replaced = select(Version.id).join(before, before.id == Version.parent_id)
    states = replaced.where(Version.id.in_(wanted), before.state_deleted_at.is_(None))
    return frozenset(each for each in (*session.scalars(keys), *session.scalars(states)) if each)
