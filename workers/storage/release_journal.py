"""The journal of updates: one sealed file for each, durable before the update's transaction commits.

A database that was restored from an old backup does not know what was published since: which versions there are, which
people they lack, what was spent. The journal is stored with the checkpoints and knows it. A file is a draft until its
transaction is known to be committed. What cannot be undone (destroying keys, deleting the files of the version before)
waits until then: a restore could take the draft of a committed update for one that never happened.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.audit.log import canonical, recorded_at
from service.infra.files import Files
from service.infra.pseudonyms import new_id
from service.infra.tables import (
    DeletionRequest,
    Generation,
    Model,
    Record,
    Removal,
    SuppressionEntry,
    Task,
    Version,
)
from service.models.restore_guard import UPDATES
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

    path: Path
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
    """``request``, ``task`` and ``suppressions``: the rows of each request that it carried out"""

    @property
    def committed(self) -> bool:
        """Return whether the transaction is known to have been committed."""
        return self.path.suffix == UPDATE


class Journal:
    """A folder of sealed entries, named by their version."""

    def __init__(self, store: Path, sealer: Sealer, files: Files | None = None) -> None:
        self.root = store / UPDATES
        self._sealer = sealer
        self._files = files or Files()

    def write(
        self, session: Session, job: Charged, budget_cost: int, version_id: str | None, *, rewritten: bool = False
    ) -> Path:
        """Write what this transaction is about to commit, durably; return the file. Raises OSError.

        ``rewritten``: the update replaced the vectors of everybody who stays.
        """
        self._make_root()
        text = canonical(_describe(session, job, budget_cost, version_id) | {"rewritten": rewritten}).encode()
        path = self.root / f"{version_id or 'draw-' + new_id()}{DRAFT}"
        part = path.with_suffix(".part")
        self._files.unlink(part)
        with self._files.create(part) as file:
            self._files.write(file, self._sealer.seal(_place(path), text))
            self._files.sync(file)
        self._files.rename(part, path)
        self._files.sync_folder(self.root)
        return path

    def confirm(self, path: Path) -> None:
        """Mark the entry as committed, durably. The scheduler may have done so before."""
        with suppress(FileNotFoundError):
            self._files.rename(path, path.with_suffix(UPDATE))
        self._files.sync_folder(self.root)

    def set_aside(self, path: Path) -> None:
        """Keep the entry without reading it again: no database will know its version."""
        self._files.rename(path, path.with_suffix(SET_ASIDE))

    def entries(self, *kinds: str) -> Iterator[JournalEntry]:
        """Yield every draft and committed entry, or those of other ``kinds`` of files. Raises Damaged."""
        for path in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            if path.suffix in (kinds or (DRAFT, UPDATE)):
                record = json.loads(self._sealer.open(_place(path), path.read_bytes()))
                lists = {name: tuple(record[name]) for name in ("positions", "requests")}
                yield JournalEntry(path=path, **(record | lists))

    def _make_root(self) -> None:
        if not self.root.is_dir():
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._files.sync_folder(self.root.parent)


def _place(path: Path) -> str:
    """Return what an entry is sealed for: it opens under no other version's name."""
    return f"updates/{path.stem}"


def confirm_committed(session: Session, updates: Path, versions: Iterable[str] | None = None) -> int:
    """Confirm the drafts of versions that are in the database, whose workers died after the commit; return how many.

    ``versions`` None means all. Call it before anything of these updates is made final.
    """
    if versions is None:
        versions = [path.stem for path in updates.glob(f"*{DRAFT}")] if updates.is_dir() else []
    drafts = {version: updates / f"{version}{DRAFT}" for version in versions}
    late = [version for version, path in drafts.items() if path.exists() and session.get(Version, version) is not None]
    files = Files()
    for version in late:
        with suppress(FileNotFoundError):  # its worker lives after all
            files.rename(drafts[version], drafts[version].with_suffix(UPDATE))
    if late:
        files.sync_folder(updates)
    return len(late)


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
    return [
        {"request": request, "task": tasks[request["id"]], "suppressions": entries.get(request["id"], [])}
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
