"""The journal of updates: one sealed file for each, durable before the update's transaction commits.

A database that was restored from an old backup does not know what was published since: which versions there are, which
people they lack, what was spent. The journal is stored with the checkpoints and knows it. A file is a draft until its
transaction is known to be committed. What cannot be undone (destroying keys, deleting the files of the version before)
waits until then: a restore could take the draft of a committed update for one that never happened.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.audit.log import canonical, recorded_at
from service.infra.files import Folder
from service.infra.pseudonyms import new_id
from service.infra.tables import (
    AuditEntry,
    DeletionRequest,
    Generation,
    Model,
    Record,
    Removal,
    SuppressionEntry,
    Task,
    Version,
)
from service.models.restore_guard import updates_in
from workers.storage.encryption import Sealer

DRAFT, UPDATE, SET_ASIDE = ".draft", ".release", ".set-aside"


class Charged(Protocol):
    """What the journal needs to know of the work that it writes down."""

    @property
    def tenant_id(self) -> str: ...
    @property
    def model_id(self) -> str: ...
    @property
    def generation_id(self) -> int: ...


@dataclass(frozen=True)
class JournalEntry:
    """One update, or one that was charged and withheld (``version`` None), with its rows as of the commit."""

    name: str
    """of its file in the journal's folder"""
    at: int
    tenant_id: str
    model_id: str
    model_name: str
    generation_id: int
    budget_cost: int
    spent: int
    """of the generation, this charge included"""
    version: dict[str, Any] | None
    rewritten: bool
    """whether the update replaced the vectors of everybody who stays"""
    positions: tuple[int, ...]
    """positions that the version forgot in its generation"""
    requests: tuple[dict[str, Any], ...]
    """``request``, ``accepted`` (its audit entry), ``task`` and ``suppressions``: the rows of each request that it
    carried out"""

    @property
    def committed(self) -> bool:
        """Return whether the transaction is known to have been committed."""
        return self.name.endswith(UPDATE)


class Journal:
    """A folder of sealed entries, named by their version. It is in the folder of the store."""

    def __init__(self, store: Folder, sealer: Sealer) -> None:
        self.folder = updates_in(store)
        self._sealer = sealer

    def write(
        self, session: Session, job: Charged, budget_cost: int, version_id: str | None, *, rewritten: bool = False
    ) -> str:
        """Write what this transaction is about to commit, durably; return the file's name. Raises OSError.

        ``rewritten``: the update replaced the vectors of everybody who stays.
        """
        text = canonical(_describe(session, job, budget_cost, version_id) | {"rewritten": rewritten}).encode()
        name = f"{version_id or 'draw-' + new_id()}{DRAFT}"
        self.folder.write(name, [self._sealer.seal(_place(name), text)])
        return name

    def confirm(self, name: str) -> None:
        """Mark the entry as committed, durably. The scheduler may have done so before."""
        _confirm(self.folder, name)

    def set_aside(self, name: str) -> None:
        """Keep the entry without reading it again: no database will know its version."""
        self.folder.rename(name, _stem(name) + SET_ASIDE)

    def entries(self, *kinds: str) -> Iterator[JournalEntry]:
        """Yield every draft and committed entry, or those of other ``kinds`` of files. Raises Damaged."""
        for name in self._names():
            if name.endswith(kinds or (DRAFT, UPDATE)):
                record = json.loads(self._sealer.open(_place(name), self.folder.read(name)))
                lists = {name: tuple(record[name]) for name in ("positions", "requests")}
                yield JournalEntry(name=name, **(record | lists))

    def _names(self) -> list[str]:
        """Return the names of all files, without drafts that were renamed: a bucket may still have the old name."""
        names = sorted(entry.name for entry in self.folder.entries())
        settled = {_stem(name) for name in names if name.endswith((UPDATE, SET_ASIDE))}
        return [name for name in names if not (name.endswith(DRAFT) and _stem(name) in settled)]


def _stem(name: str) -> str:
    return PurePath(name).stem


def _place(name: str) -> str:
    """Return what an entry is sealed for: it opens under no other version's name."""
    return f"updates/{_stem(name)}"


def _confirm(folder: Folder, name: str) -> bool:
    """Rename a draft; return False where it was renamed before."""
    try:
        folder.rename(name, _stem(name) + UPDATE)
    except FileNotFoundError:
        return False
    return True


def confirm_committed(session: Session, updates: Folder, versions: Iterable[str] | None = None) -> int:
    """Confirm the drafts of versions that are in the database, whose workers died after the commit; return how many.

    ``updates`` is the journal's folder; ``versions`` None means all. Call it before anything of these updates is made
    final. Raises OSError.
    """
    if versions is None:
        versions = [_stem(entry.name) for entry in updates.entries() if entry.name.endswith(DRAFT)]
    committed = [version for version in versions if session.get(Version, version) is not None]
    return sum(_confirm(updates, version + DRAFT) for version in committed)


def _describe(session: Session, job: Charged, budget_cost: int, version_id: str | None) -> dict[str, Any]:
    session.flush()
    spent = session.scalar(select(Generation.spent).where(Generation.id == job.generation_id))
    return {
        "at": recorded_at(session),
        "tenant_id": job.tenant_id,
        "model_id": job.model_id,
        "model_name": session.get_one(Model, job.model_id).name,
        "generation_id": job.generation_id,
        "budget_cost": budget_cost,
        "spent": spent,
        "version": None if version_id is None else _rows(session, Version, Version.id == version_id)[0],
        "positions": _positions(session, version_id),
        "requests": [] if version_id is None else _requests(session, version_id),
    }


def _positions(session: Session, version_id: str | None) -> list[int]:
    return sorted(session.scalars(select(Removal.position).where(Removal.version_id == version_id)))


def _requests(session: Session, version_id: str) -> list[dict[str, Any]]:
    carried = select(Task.request_id).where(Task.version_id == version_id)
    entries: dict[str, list[dict[str, Any]]] = {}
    for entry in _rows(session, SuppressionEntry, SuppressionEntry.request_id.in_(carried)):
        entries.setdefault(entry["request_id"], []).append(entry)
    tasks = {task["request_id"]: task for task in _rows(session, Task, Task.version_id == version_id)}
    log = _rows(session, AuditEntry, AuditEntry.request_id.in_(carried))
    accepted = {entry["request_id"]: entry for entry in log if entry["kind"] == "request.accepted"}
    return [
        {
            "request": request,
            "accepted": accepted[request["id"]],
            "task": tasks[request["id"]],
            "suppressions": entries.get(request["id"], []),
        }
        for request in _rows(session, DeletionRequest, DeletionRequest.id.in_(carried))
    ]


def _rows(session: Session, record: type[Record], condition: Any) -> list[dict[str, Any]]:
    """Return rows as JSON values; bytes become hex."""
    found = session.execute(select(record.__table__).where(condition)).mappings()
    return [{name: each.hex() if isinstance(each, bytes) else each for name, each in row.items()} for row in found]


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
