"""Whether the tables say of a completed request what was accepted and published; else no certificate is signed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from expunge_service.audit import NotAuthentic
from expunge_service.certificates.statement import Completion
from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.tables import BudgetEntry, DeletionRequest, Model, SuppressionEntry
from expunge_service.models import (
    FORGOTTEN,
    MEMBERSHIPS,
    SAMPLE,
    SUBJECT,
    body_of,
    changed,
    changed_marks,
    committed,
    differing,
    serving,
)
from expunge_service.requests import entries_digest, entries_said, positions

Entries = Mapping[str, Sequence[SuppressionEntry]]


def altered(session: Session, pepper: Pepper, completions: Sequence[Completion]) -> dict[str, NotAuthentic]:
    """Return, by request, in what the tables differ from what was accepted and published.

    Of each served version the memberships and the marks of forgotten samples are read in the blocks of the people and
    samples that the requests name.
    """
    entries = _entries(session, [each.request.id for each in completions])
    found = {each.request.id: fault for each in completions if (fault := _of_entries(pepper, each, entries))}
    named = {name: by for rows in entries.values() for row in rows for by, name in _names(row)}
    for model, generation, version in serving(session):
        mine = [each for each in completions if _covers(each.request, model)]
        if not mine or version.commitments is None:
            continue
        now = committed(session, pepper, generation)
        tables = differing(version, now.tables)
        ledger = select(func.sum(BudgetEntry.budget_cost)).where(BudgetEntry.generation_id == generation.id)
        tables += [] if (session.scalar(ledger) or 0) == generation.spent else [BudgetEntry.__tablename__]
        other = {
            table: {
                name
                for by in (SUBJECT, SAMPLE)
                for name in read(session, pepper, now, by, [n for n, kind in named.items() if kind == by])
            }
            for table, read in ((MEMBERSHIPS, changed), (FORGOTTEN, changed_marks))
        }
        left = positions(session, model.tenant_id, model.name, generation.id, [each.request.id for each in mine])
        for each in mine:
            request = each.request
            theirs = {name for row in entries[request.id] for _, name in _names(row)}
            differ = tables + [table for table, names in other.items() if theirs & names]
            differ += ["tasks"] if left.get(request.id) else []
            if differ:
                table = differ[0]
                name = f"version {version.number} of {model.name}"
                what = f"The database's table {table} is not what {name} was published with."
                found.setdefault(request.id, NotAuthentic(what))
    return found


def _covers(request: DeletionRequest, model: Model) -> bool:
    """Return whether a certificate of the request says something of the model: also that it has none of the data."""
    return request.tenant_id == model.tenant_id and (request.models is None or model.name in request.models)


def _of_entries(pepper: Pepper, completion: Completion, entries: Entries) -> NotAuthentic | None:
    """Return in what the request's suppression entries are not those that it was accepted with."""
    request, rows = completion.request, entries[completion.request.id]
    try:
        bodies = [body_of(entry) for entry in completion.entries if entry.request_id == request.id]
    except NotAuthentic as error:
        return error
    in_force, said = entries_said(bodies)
    digest = entries_digest(pepper, request.id, ((row.subject_digest, row.sample_digest) for row in rows))
    if said not in (None, digest) or (in_force and any(row.lifted_at for row in rows)):
        return NotAuthentic("The database's table suppressions is not what the audit log says of the request.")
    return None


def _entries(session: Session, requests: Sequence[str]) -> dict[str, list[SuppressionEntry]]:
    found: dict[str, list[SuppressionEntry]] = {request: [] for request in requests}
    for row in session.scalars(select(SuppressionEntry).where(SuppressionEntry.request_id.in_(requests))):
        found[row.request_id].append(row)
    return found


def _names(row: SuppressionEntry) -> Iterable[tuple[str, str]]:
    """Yield what the entry names: ``subject`` or ``sample``, and its keyed digest."""
    for by, name in ((SUBJECT, row.subject_digest), (SAMPLE, row.sample_digest)):
        if name is not None:
            yield by, name
