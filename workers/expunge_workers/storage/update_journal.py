"""The journal of updates: one sealed file for each, durable before the update's transaction commits.

A database that was put back does not know what was published since: which versions there are, which people they lack,
what was spent. The journal is stored with the checkpoints and knows it. It is a part of what the store witnesses
(``audit.witness`` of the service): a draft has the number of its version, and no number is given to two. What cannot
be undone (destroying keys, deleting the files of the version before) waits until the version is released: a restore
could take the draft of a committed update for one that never happened.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import PurePath
from typing import Any

from sqlalchemy import Table, and_, bindparam, select
from sqlalchemy.orm import Session

from expunge_service.audit import DRAFT, RELEASE, SET_ASIDE, Contradicted, Witness, canonical, recorded_at, version_file
from expunge_service.infra.db import batches
from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.tables import (
    AuditEntry,
    DeletionRequest,
    Generation,
    Record,
    SuppressionEntry,
    Task,
    Version,
)
from expunge_service.models import Guard
from expunge_service.queue import Job, JournalEntry
from expunge_workers.storage.encryption import Sealer


class Journal:
    """The sealed entries, in the witness's folder of updates."""

    def __init__(self, guard: Guard, sealer: Sealer) -> None:
        self.guard = guard
        self._sealer = sealer

    def write(
        self,
        session: Session,
        job: Job,
        budget_cost: int,
        version_id: str,
        *,
        positions: Sequence[int],
        rewritten: bool,
    ) -> None:
        """Write the version that this transaction is about to commit, durably, under its number.

        ``positions``: what it forgets. ``rewritten``: the update replaced all remaining vectors. A
        publication that is tried again finds its own draft. Raises OSError, and Contradicted where the number is
        another version's.
        """
        spent, version = _version(session, version_id)
        record = _describe(session, job, budget_cost, spent) | {
            "version": version,
            "positions": sorted(positions),
            "requests": _requests(session, version_id),
            "rewritten": rewritten,
        }
        number = record["version"]["number"]
        if not self._add(version_file(job.model_id, number), f"{version_id}\n".encode(), record):
            found = self.guard.witness.drafted(job.model_id, number)
            if found != version_id:
                raise Contradicted(f"version {number} of model {job.model_id} was drafted as {found} already")

    def write_withheld(self, session: Session, job: Job, budget_cost: int) -> None:
        """Write a charge without a version that this transaction is about to commit, durably. Raises OSError."""
        spent = session.scalar(select(Generation.spent).where(Generation.id == job.generation_id))
        nothing: dict[str, Any] = {"version": None, "positions": [], "requests": [], "rewritten": False}
        self._add(f"draw-{new_id()}", b"", _describe(session, job, budget_cost, spent or 0) | nothing)

    def _add(self, name: str, head: bytes, record: dict[str, Any]) -> bool:
        try:
            sealed = self._sealer.seal(_sealed_for(name), canonical(record).encode())
            self.guard.witness.updates.add(name + DRAFT, [head, sealed])
        except FileExistsError:
            return False
        return True

    def settle(self, entry: JournalEntry, *, adopted: bool) -> None:
        """Write what a restore decided: the entry was committed, or no database will know its version."""
        if entry.version is not None:
            text = str(entry.version["id"]).encode()
            if adopted:
                self.guard.witness.note_version(entry.model_id, entry.version["number"], text.decode())
            with suppress(FileExistsError):
                self.guard.witness.updates.add(entry.name + (RELEASE if adopted else SET_ASIDE), [text])

    def entries(self, *, set_aside: bool = False) -> Iterator[JournalEntry]:
        """Yield every draft and committed entry, or those that restores have set aside. Raises Damaged."""
        found: dict[str, set[str]] = defaultdict(set)
        for each in self.guard.witness.updates.entries():
            found[PurePath(each.name).stem].add(PurePath(each.name).suffix)
        for name, endings in sorted(found.items()):
            # releases before 0.2 renamed the one file that an entry had
            file = next((each for each in (DRAFT, RELEASE, SET_ASIDE) if each in endings), None)
            numbered = "." in name
            if file is None or (numbered and file != DRAFT) or (SET_ASIDE in endings) is not set_aside:
                continue
            yield self._read(name, file, committed=RELEASE in endings)

    def draft(self, model_id: str, number: int) -> JournalEntry:
        """Return the draft of that number. Raises FileNotFoundError, Damaged."""
        return self._read(version_file(model_id, number), DRAFT, committed=False)

    def _read(self, name: str, ending: str, *, committed: bool) -> JournalEntry:
        text = self.guard.witness.updates.read(name + ending)
        sealed = text.partition(b"\n")[2] if "." in name else text
        record = json.loads(self._sealer.open(_sealed_for(name), sealed))
        lists = {name: tuple(record[name]) for name in ("positions", "requests")}
        return JournalEntry(name=name, committed=committed, **(record | lists))


def _sealed_for(name: str) -> str:
    """Return the place that an entry is sealed for: it opens under no other version's name."""
    return f"updates/{name}"


def confirm_committed(session: Session, witness: Witness, versions: Iterable[str]) -> None:
    """Release the drafts of those versions that are in the database, after their workers died.

    Call it before anything of these updates is made final. Raises OSError, Contradicted.
    """
    rows = select(Version.model_id, Version.number, Version.id)
    for batch in batches(versions):
        for model_id, number, version_id in session.execute(rows.where(Version.id.in_(batch))):
            witness.confirm(model_id, number, version_id)
    witness.updates.sync()


def _describe(session: Session, job: Job, budget_cost: int, spent: int) -> dict[str, Any]:
    return {
        "at": recorded_at(session),
        "tenant_id": job.tenant_id,
        "model_id": job.model_id,
        "model_name": job.model_name,
        "generation_id": job.generation_id,
        "budget_cost": budget_cost,
        "spent": spent,
    }


_ROWS = tuple(kind.__table__ for kind in (DeletionRequest, AuditEntry, Task, SuppressionEntry))
_REQUEST, _ACCEPTED, _TASK, _SUPPRESSION = (table.c for table in _ROWS)
_VERSION = (
    select(Generation.__table__.c.spent, *Version.__table__.c)
    .join_from(Version.__table__, Generation.__table__, Generation.__table__.c.id == Version.__table__.c.generation_id)
    .where(Version.__table__.c.id == bindparam("version"))
)


def _version(session: Session, version_id: str) -> tuple[int, dict[str, Any]]:
    """Return what the version's generation has spent, and the version's row."""
    session.flush()
    row = session.execute(_VERSION, {"version": version_id}).one()
    return row[0], _row(Version.__table__, row[1:])


_CARRIED = (
    select(*(column for table in _ROWS for column in table.c))
    .select_from(_ROWS[2])
    .join(_ROWS[0], _REQUEST.id == _TASK.request_id)
    .join(_ROWS[1], and_(_ACCEPTED.request_id == _TASK.request_id, _ACCEPTED.kind == "request.accepted"))
    .outerjoin(_ROWS[3], _SUPPRESSION.request_id == _TASK.request_id)
    .where(_TASK.version_id == bindparam("version"))
    .order_by(_TASK.id, _SUPPRESSION.id)
)


def _requests(session: Session, version_id: str) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in session.execute(_CARRIED, {"version": version_id}):
        rest, rows = iter(row), []
        for table in _ROWS:
            rows.append(_row(table, islice(rest, len(table.c))))
        request, accepted, task, suppression = rows
        known = {"request": request, "accepted": accepted, "task": task, "suppressions": []}
        each = found.setdefault(task["id"], known)
        each["suppressions"] += [suppression] * (suppression["id"] is not None)
    return list(found.values())


def _row(table: Table, values: Iterable[Any]) -> dict[str, Any]:
    """Return a row as JSON values; bytes become hex."""
    named = zip(table.c.keys(), values, strict=True)
    return {name: each.hex() if isinstance(each, bytes) else each for name, each in named}


def revived(record: type[Record], row: dict[str, Any]) -> Record:
    """Return the record that an entry's row describes."""
    kinds = {column.key: column.type.python_type for column in record.__table__.columns}
    known = {name: value for name, value in row.items() if name in kinds}
    return record(
        **{
            name: bytes.fromhex(value) if kinds[name] is bytes and value is not None else value
            for name, value in known.items()
        }
    )
