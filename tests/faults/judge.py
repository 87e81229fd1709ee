"""After the harm: the answers that clients got are compared with what the database and the stores hold."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from expunge_service.audit import verification
from expunge_service.audit.log import newest_head, signed_size
from expunge_service.audit.signed_note import NotAuthentic, Signer
from expunge_service.infra.db import Busy, Database
from expunge_service.infra.pseudonyms import Pepper, subject_digest
from expunge_service.infra.settings import Settings
from expunge_service.infra.stores import Store
from expunge_service.infra.tables import (
    AuditEntry,
    DeletionRequest,
    Erasure,
    Membership,
    Model,
    Removal,
    Task,
    Version,
)
from expunge_service.infra.tenants import DEFAULT_TENANT
from expunge_workers.storage.key_store import KeyStore
from tests.faults.crowd import FEW
from tests.faults.invariants import Broken, broken, broken_after_restore, left_behind, unfinished, unreadable
from tests.faults.result import HARM
from tests.faults.traffic import Journal

PATIENCE_SECONDS = 240.0
ID = re.compile(r"[0-9a-f]{32}")


def judge(settings: Settings, journal: Journal, *, restored: bool = False) -> list[Broken]:
    """Wait until nothing is under way any more, then look at everything. The installation is running and mended.

    ``restored``: without an export, so that the tail of the log is lost.
    """
    database, keys = Database(settings.database_url), KeyStore.of(settings)
    found = [Broken("doubled", words) for words in journal.contradictions]
    found += [Broken("served_with_deletion_missing", words) for words in journal.stale]
    try:
        eventually(lambda: not unfinished(database))
        eventually(lambda: not _keys_due(database))
        found += (
            (broken_after_restore if restored else broken)(database)
            + unfinished(database)
            + left_behind(database, keys)
        )
        found += unreadable(database, Store.at(settings.store), Store.at(settings.private_store))
        with database.snapshot() as session:  # the scheduler may sign between a head and its entries
            for rule in (_requests, _people, _log):
                found += rule(session, settings, journal)
    finally:
        database.close()
        keys.close()
    return found


def at_rest(settings: Settings) -> bool:
    """Wait for what was asked and return whether everything ended in time; a blocked request has ended, visibly."""
    database = Database(settings.database_url)
    try:
        return eventually(lambda: not unfinished(database))
    finally:
        database.close()


def harm(found: list[Broken]) -> dict[str, int]:
    """Return the counts of result.py."""
    counts = Counter(each.harm for each in found)
    return {name: counts[name] for name in HARM}


def sentences(found: list[Broken]) -> list[str]:
    """Return what is broken, equal sentences counted: ids are left out, so that none of them hides behind a limit."""
    told = Counter(f"{each.harm}: {ID.sub('...', each.words)}" for each in found)
    return [f"{count} x {words}" for words, count in told.most_common()]


def eventually(true: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> bool:
    """Wait until ``true()`` holds; return whether it did in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if true():
                return True
        except Busy:
            pass
        time.sleep(0.2)
    return False


def _keys_due(database: Database) -> bool:
    with database.read() as session:
        return session.scalar(select(Erasure.id).where(Erasure.destroyed_at.is_(None)).limit(1)) is not None


def _requests(session: Session, _: Settings, journal: Journal) -> Iterator[Broken]:
    """Check that each is completed: one that an operator retried and that is blocked again, for any reason, is lost."""
    rows = dict(session.execute(select(DeletionRequest.id, DeletionRequest.status)).tuples().all())
    reasons = dict(session.execute(select(DeletionRequest.id, DeletionRequest.reason)).tuples().all())
    reasons |= dict(
        session.execute(select(Task.request_id, Task.reason).where(Task.status == "blocked")).tuples().all()
    )
    for request_id in journal.acknowledged.values():
        status = rows.get(request_id, "not in the database")
        if status != "completed":
            yield Broken("lost", f"acknowledged request {request_id} is {status}, {reasons.get(request_id)}")
    twice = select(DeletionRequest.subject_digest).group_by(DeletionRequest.subject_digest).having(func.count() > 1)
    for _digest in session.scalars(twice):
        yield Broken("doubled", "two requests were made of one call")


def _people(session: Session, settings: Settings, journal: Journal) -> Iterator[Broken]:
    """Check that everyone who asked is out of every model that knew them, with one effect: in these recipes a person is
    one sample.
    """
    pepper = Pepper.load(settings.pepper_file)
    asked = {subject_digest(pepper, DEFAULT_TENANT, subject) for subject in journal.acknowledged}
    for model in session.scalars(select(Model).where(Model.current_id.is_not(None))):
        gone = select(Removal.position).where(Removal.generation_id == model.generation_id)
        still = select(Membership.subject_digest).where(
            Membership.generation_id == model.generation_id, Membership.position.not_in(gone)
        )
        for each in session.scalars(still):
            if each in asked:
                yield Broken("lost", f"somebody who asked is still in {model.name}")
        known = sum(knows(model.recipe, subject) for subject in journal.acknowledged)
        sums = (
            session.scalar(select(func.sum(Task.samples)).where(Task.model_id == model.id)),
            session.scalar(select(func.sum(Version.samples)).where(Version.model_id == model.id)),
        )
        for what, count in zip(("tasks", "versions"), sums, strict=True):
            if (count or 0) != known:
                kind = "doubled" if (count or 0) > known else "lost"
                yield Broken(kind, f"{model.name}: its {what} tell of {count} samples of {known} people")


def knows(recipe: str, subject: str) -> bool:
    """Return whether a model was trained on the subject: ``few`` on the first of the crowd, ``crowd`` on all."""
    return recipe != "few" or int(subject.rpartition("-")[2]) < FEW


def _log(session: Session, settings: Settings, _: Journal) -> Iterator[Broken]:
    head = newest_head(session)
    try:
        verification.verify(exported(session), head.note if head else "", Signer.of(settings).verifier)
    except NotAuthentic as error:
        yield Broken("lost", f"the audit log does not verify: {error}")


def exported(session: Session) -> Iterator[dict[str, Any]]:
    """Return the log's entries as ``expunge audit export`` gives them."""
    columns = (AuditEntry.log_index, AuditEntry.leaf_hash, AuditEntry.body)
    rows = select(*columns).where(AuditEntry.log_index < signed_size(session)).order_by(AuditEntry.log_index)
    for index, leaf, body in session.execute(rows):
        yield {"index": index, "leaf_hash": leaf, "body": body}
