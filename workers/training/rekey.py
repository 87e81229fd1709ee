"""Rekeying: whom a recipe names under a retired pepper is named under the current one too, before anybody is matched.

Only a preparation holds the ids that the digests were made of. What it writes are siblings of rows that were there; so
a person who was forgotten, or is held, before the pepper was changed is so in every generation that begins after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from service.infra.pseudonyms import Pepper, new_id, sample_digest, subject_digest
from service.infra.tables import DeletionRequest, Hold, SuppressionEntry
from service.requests import peppers
from service.requests.legal_holds import twin
from unlearning.recipe import Samples
from unlearning.types import Refused
from workers.runtime.jobs import Preparation
from workers.runtime.lease import fence
from workers.storage.key_store import BATCH, batches
from workers.storage.storage import Storage

Rekeyed = Mapping[str, str]
"""from the digests under retired peppers to those under the current one"""


def rekey(storage: Storage, job: Preparation, samples: Samples) -> None:
    """Give every suppression entry and hold that names somebody of the recipe its sibling. Twice is once.

    Raises Refused where some were made under a pepper that is not configured: nobody can tell whom they name.
    """
    with storage.database.read() as session:
        _require_all_readable(session, storage.pepper, job.tenant_id)
    if not storage.pepper.retired:
        return
    rekeyed = _rekeyed(storage.pepper, job.tenant_id, samples)
    with storage.database.write() as session:
        fence(session, job.lease)
        _suppressions(session, storage.pepper, job.tenant_id, rekeyed)
        _holds(session, storage.pepper, job.tenant_id, rekeyed)


def _require_all_readable(session: Session, pepper: Pepper, tenant_id: str) -> None:
    known = {each.id for each in pepper.every}
    stones = peppers.uncovered_suppressions(session, known, tenant_id)
    holds = peppers.uncovered_holds(session, known, tenant_id)
    if stones or holds:
        raise Refused(
            f"{sum(stones.values())} suppression entries and {sum(holds.values())} legal holds were made under a "
            f"pepper that is "
            f"not configured ({', '.join(sorted({*stones, *holds}))}): whether they name people of the recipe cannot "
            "be told.",
            "Put the pepper's file back and name it in EXPUNGE_RETIRED_PEPPER_FILES; then register again.",
        )


def _rekeyed(pepper: Pepper, tenant_id: str, samples: Samples) -> Rekeyed:
    people = {name for names in samples.people for name in names}
    pairs: dict[str, str] = {}
    for retired in pepper.retired:
        pairs |= {subject_digest(retired, tenant_id, name): subject_digest(pepper, tenant_id, name) for name in people}
        pairs |= {
            sample_digest(retired, tenant_id, name): sample_digest(pepper, tenant_id, name) for name in samples.ids
        }
    return pairs


def _suppressions(session: Session, pepper: Pepper, tenant_id: str, rekeyed: Rekeyed) -> None:
    """What was lifted stays lifted. The requests' rows are locked: none is lifted or verified meanwhile."""
    old = select(SuppressionEntry).where(
        SuppressionEntry.tenant_id == tenant_id, SuppressionEntry.pepper_id != pepper.id
    )
    named = {stone.request_id for stone in session.scalars(old) if _name(stone) in rekeyed}
    rows: list[dict[str, Any]] = []
    for batch in batches(sorted(named), BATCH):
        lock = select(DeletionRequest.id).where(DeletionRequest.id.in_(batch)).order_by(DeletionRequest.id)
        session.execute(lock.with_for_update()).all()
        theirs = (
            select(SuppressionEntry)
            .where(SuppressionEntry.request_id.in_(batch))
            .execution_options(populate_existing=True)
        )
        stones = session.scalars(theirs).all()
        there = {(stone.request_id, _name(stone)) for stone in stones}
        for stone in stones:
            new = rekeyed.get(_name(stone))
            if new is not None and (stone.request_id, new) not in there:
                there.add((stone.request_id, new))
                rows.append(_sibling(stone, pepper.id, new))
    for part in batches(rows, BATCH):
        session.execute(insert(SuppressionEntry), part)


def _sibling(stone: SuppressionEntry, pepper_id: str, name: str) -> dict[str, Any]:
    return {
        "id": new_id(),
        "tenant_id": stone.tenant_id,
        "request_id": stone.request_id,
        "subject_digest": None if stone.subject_digest is None else name,
        "sample_digest": None if stone.sample_digest is None else name,
        "pepper_id": pepper_id,
        "created_at": stone.created_at,
        "lifted_at": stone.lifted_at,
        "lifted_reason": stone.lifted_reason,
    }


def _holds(session: Session, pepper: Pepper, tenant_id: str, rekeyed: Rekeyed) -> None:
    """The rows are locked: none is released meanwhile."""
    query = select(Hold).where(Hold.tenant_id == tenant_id, Hold.lifted_at.is_(None)).order_by(Hold.id)
    holds = session.scalars(query.with_for_update()).all()
    there = {(hold.twin_of or hold.id, _name(hold)) for hold in holds}
    for hold in holds:
        new = rekeyed.get(_name(hold))
        if new is not None and (hold.twin_of or hold.id, new) not in there:
            there.add((hold.twin_of or hold.id, new))
            subject, sample = (None, new) if hold.subject_digest is None else (new, None)
            session.add(twin(hold, pepper, subject_digest=subject, sample_digest=sample))


def _name(row: SuppressionEntry | Hold) -> str:
    return row.subject_digest or row.sample_digest or ""
