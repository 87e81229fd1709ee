"""Whether the service may write: not while database and store differ, nor until a restore is confirmed.

The store is the witness (``audit.witness``). It is read first, then the database in a fresh transaction, so
that a commit of meanwhile is no difference. A difference is looked at twice before it is said.

A process reads all of the store's files once. From then on a look is one read, of what was witnessed last, and the
database is compared with all that this process has ever read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal, TypeVar

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session, join, outerjoin

from expunge_service.audit import (
    RELEASE,
    SET_ASIDE,
    UNSIGNED,
    Contradicted,
    Epoch,
    Newest,
    Witness,
    WitnessedHead,
    WitnessedVersion,
    epoch_of,
    newest_head,
    record,
    recorded_at,
)
from expunge_service.infra.db import IN_RECOVERY, Busy, Database, batches
from expunge_service.infra.files import Folder
from expunge_service.infra.tables import Model, Restoration, TreeHead, Version

AGAIN_SECONDS = 0.2
"""between two looks at a difference"""
FRESH_SECONDS = 1.0
"""the age of a verdict that an API process may use"""
PATIENCE_SECONDS = 5.0
"""that a call waits for a verdict; no longer than ``FRESH_SECONDS`` where the last one was that something is silent"""
FEW, AT_ONCE = 3, 16
"""files that are read one after the other, and at the same time"""

UNCONFIRMED = select(Restoration).where(Restoration.confirmed_at.is_(None)).limit(1)
"""the restoration that waits for the operator"""
_SERVED = join(Model, Version, Version.id == Model.current_id)
_SIGNED = select(TreeHead.size).where(TreeHead.note != UNSIGNED).order_by(TreeHead.size.desc()).limit(1)
_LOG = select(
    IN_RECOVERY.label("is_standby"),
    select(func.max(Restoration.epoch)).scalar_subquery().label("epoch"),
    UNCONFIRMED.exists().label("waits"),
    _SIGNED.scalar_subquery().label("size"),
    select(TreeHead.root).where(TreeHead.size == _SIGNED.scalar_subquery()).scalar_subquery().label("root"),
).subquery()
_CURRENT_OF, _STANDING = (
    select(_LOG, Model.id, Model.name, Version.number, Version.id).select_from(outerjoin(_LOG, _SERVED, which))
    for which in (Model.id == bindparam("model"), Model.status.not_in(("retired", "cancelled")))
)
"""a row of the log's state for each model that is served, or one without a model"""
Item = TypeVar("Item")
Value = TypeVar("Value")
log = logging.getLogger(__name__)


class PutBack(RuntimeError):
    """Database and store differ. The text says in what, and what to run."""


def unconfirmed(session: Session) -> Restoration | None:
    """Return ``UNCONFIRMED``. None: the service may write."""
    return session.scalars(UNCONFIRMED).one_or_none()


_WAITING = select(Restoration.__table__.c.id).where(Restoration.__table__.c.confirmed_at.is_(None)).limit(1)


def restore_waits(session: Session) -> bool:
    """Return whether a restoration waits for the operator: the service may only read."""
    return session.scalar(_WAITING) is not None


def confirm(session: Session, tenant_id: str, witness: Witness) -> dict[str, Any] | None:
    """Let the service write again, in a new epoch; returns the report that was confirmed. None: no restore waited.

    Raises Contradicted where another began that epoch at this moment, and OSError where the store does not answer.
    """
    waiting = unconfirmed(session)
    if waiting is None:
        return None
    epoch = _next_epoch(session, witness)
    waiting.confirmed_at, waiting.epoch = recorded_at(session), epoch.number
    record(session, tenant_id, "restore.confirmed", restoration=waiting.id, epoch=epoch.number)
    session.flush()
    witness.begin(epoch)  # without the commit nothing is in that epoch, and the next confirmation begins the one after
    return waiting.report


def _next_epoch(session: Session, witness: Witness) -> Epoch:
    """Return the epoch in which the log continues from the database's newest head; what was signed after it is left."""
    old, head = witness.epoch(epoch_of(session)), newest_head(session)
    begins = 0 if head is None else head.size
    since = witness.last_head(old.number, begins) or witness.last_head(old.number, old.begins)
    return Epoch(old.number + 1, begins, since or old.last)


@dataclass(frozen=True)
class Recorded:
    """What the database says now. ``models``: name and newest version, by the model's id."""

    epoch: int
    waits: bool
    """a restoration waits for the operator"""
    head: WitnessedHead | None
    models: dict[str, tuple[str, WitnessedVersion]]


_STILL = select(
    select(Version.id).where(Version.id == bindparam("version")).scalar_subquery(),
    select(TreeHead.root).where(TreeHead.size == bindparam("size")).scalar_subquery(),
)
_ROOT = select(TreeHead.root).where(TreeHead.size == bindparam("size"))
_THERE = select(Version.id).where(Version.id.in_(bindparam("ids", expanding=True)))


class Guard:
    """Compares one process's database with its store, and remembers what they agreed on. Safe to share by threads."""

    def __init__(self, database: Database, store: Folder) -> None:
        self._database = database
        self.witness = Witness(store)
        self._lock = threading.Lock()
        self._since: str | None = None
        """the id of the account of what was witnessed last; None: the store's files were not read yet"""
        self._noted: Mapping[str, WitnessedVersion] = {}
        """the versions in that account when database and store agreed last"""
        self._versions: dict[str, WitnessedVersion] = {}
        """the newest of each model, of those released in the store and those that both agreed on"""
        self._head: WitnessedHead | None = None
        self._epoch = 0
        self.asks_store = False
        """whether a look that is under way waits for the store, and not for the database"""

    def look(self, model_id: str | None = None) -> None:
        """Compare everything, or the log and one model. Raises PutBack, OSError, Busy."""
        with self._lock:
            try:
                first = self._differs(model_id)
            except Busy:  # the pool's connection may have ended with its server, and the next one is new
                first = self._differs(model_id)
            if first is not None:
                self._database.close()  # connections to the database of before
                time.sleep(AGAIN_SECONDS)
                found = self._differs(model_id)
                if found is not None:
                    raise PutBack(found)

    def still(self, session: Session, model_id: str | None = None) -> None:
        """Check in a transaction that its database has what this process remembers. Raises PutBack."""
        known, head = self._versions.get(model_id or ""), self._head
        asked = {"version": known.version_id if known else "", "size": head.size if head else 0}
        found = session.execute(_STILL, asked).one()
        if known is not None and found[0] is None:
            raise PutBack(_lacks(f"version {known.number} of {_name(session, model_id or '')}"))
        if head is not None and found[1] != head.root:
            raise PutBack(_lacks(f"the signed head of {head.size} entries"))

    def require_released(self, model_id: str, version: WitnessedVersion) -> None:
        """Check that the store knows this version of the database as committed. Raises Contradicted, OSError."""
        if self._versions.get(model_id) != version:
            self.witness.confirm(model_id, version.number, version.version_id)

    def _differs(self, only: str | None) -> str | None:
        """Return in what database and store differ, as far as one look shows."""
        newest = self._read_store()
        with self._database.fresh() as session:
            current = _current(session, only)
            lost = self._lost(session, self._released(newest, only), current)
            head = self._head
            if head and session.scalar(_ROOT, {"size": head.size}) != head.root:
                lost.append(f"the signed head of {head.size} entries")
        if current.epoch < self._epoch:
            lost.insert(0, f"restore number {self._epoch}")
        if lost:
            return _WAITS if current.waits else _lacks(lost[0])
        if current.epoch > self._epoch:
            return _lacks_in_store(f"restore number {current.epoch}")
        found = self._agree(current, only)
        if found is None and only is None:
            self._noted = newest.versions
        return found

    def _read_store(self) -> Newest:
        """Read what was witnessed last, by one read; the other files too where this process did not, or not of late."""
        self.asks_store = True
        newest = self.witness.newest()
        if newest.since != self._since:
            self._read_files()
            self._since = newest.since
        if newest.epoch == self._epoch:  # heads of an older epoch do not bind
            self._head = _longer(self._head, newest.head)
        self.asks_store = False
        return newest

    def _read_files(self) -> None:
        """Read the files that are made once: of all versions, of the epochs, and the head after the newest one."""
        self._versions = _newer(self._versions, self._listed())
        epoch = self.witness.epoch(self._epoch).number
        if epoch != self._epoch or self._since is None:
            self.asks_store = False
            with self._database.fresh() as session:
                self._epoch, self._head = epoch, newest_signed(session)
            self.asks_store = True
        following = self.witness.head_after(epoch, self._head.size if self._head else 0)
        self._head = _longer(self._head, following)

    def _released(self, newest: Newest, only: str | None) -> dict[str, WitnessedVersion]:
        """Return what the database must have: the newest version of each model, or of one."""
        noted = {each: known for each, known in newest.versions.items() if self._noted.get(each) != known}
        released = _newer(self._versions, noted)
        return {each: known for each, known in released.items() if only in (None, each)}

    def _lost(self, session: Session, released: Mapping[str, WitnessedVersion], current: Recorded) -> list[str]:
        """Return the released versions that the database lacks, without those that a restore has set aside since."""
        there = {known.version_id for _, known in current.models.values()}
        ids = {known.version_id for known in released.values()} - there
        there |= {found for batch in batches(sorted(ids)) for found in session.scalars(_THERE, {"ids": batch})}
        lost: list[str] = []
        for model_id, known in released.items():
            if known.version_id in there:
                continue
            if self.witness.is_set_aside(model_id, known.number):
                self._versions.pop(model_id, None)
            else:
                lost.append(f"version {known.number} of {_name(session, model_id)}")
        return lost

    def _agree(self, current: Recorded, only: str | None) -> str | None:
        """Remember what the database says now, once the store agrees; return where it does not."""
        self.asks_store = True
        for model_id, (name, known) in current.models.items():
            if self._versions.get(model_id) == known:
                continue
            what = f"version {known.number} of {name}"
            try:
                self.witness.confirm(model_id, known.number, known.version_id)
            except Contradicted:
                if self.witness.drafted(model_id, known.number) is None:
                    return _lacks_in_store(what)
                return f"The store holds another {what} than the database: {_PUT_BACK}"
            self._versions[model_id] = known
        if only is None:  # the others are retired
            self._versions = {each: known for each, known in self._versions.items() if each in current.models}
        self._head = _longer(self._head, current.head)
        return None

    def _listed(self) -> dict[str, WitnessedVersion]:
        """Read the newest released version of each model, once: the store knows models that the database may lack."""
        files = [PurePath(entry.name) for entry in self.witness.updates.entries()]
        aside = {file.stem for file in files if file.suffix == SET_ASIDE}
        newest: dict[str, int] = {}
        for file in files:
            model_id, _, number = file.stem.rpartition(".")
            if model_id and file.suffix == RELEASE and file.stem not in aside:
                newest[model_id] = max(newest.get(model_id, 0), int(number))
        found = at_once(lambda each: self.witness.released(*each), newest.items())
        return {
            model_id: WitnessedVersion(number, version_id or "")
            for (model_id, number), version_id in zip(newest.items(), found, strict=True)
        }


@dataclass(frozen=True)
class Verdict:
    """What an API process knows. ``difference``: between database and store. ``silent``: which does not answer."""

    difference: str | None = None
    silent: Literal["store", "database"] | None = None


class Watch:
    """Looks for a process that answers calls, in another thread: a store that hangs delays no call for long."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._lock = threading.Lock()
        self._verdict, self._at = Verdict(), -FRESH_SECONDS
        self._done: threading.Event | None = None

    def verdict(self) -> Verdict:
        """Return a verdict that is at most a second old; ``silent`` where there is none after a few."""
        with self._lock:
            if time.monotonic() - self._at < FRESH_SECONDS:
                return self._verdict
            if self._done is None:
                self._done = threading.Event()
                threading.Thread(target=self._look, args=(self._done,), name="witness", daemon=True).start()
            done, before = self._done, self._verdict
        if done.wait(FRESH_SECONDS if before.silent else PATIENCE_SECONDS):
            return self._verdict
        return Verdict(before.difference, "store" if self._guard.asks_store else "database")

    def require_released(self, model_id: str, number: int, version_id: str) -> None:
        """Check that the store knows the version as committed, and write so where only its worker's death kept it from
        that. Raises OSError; then the version is not handed out.
        """
        try:
            self._guard.require_released(model_id, WitnessedVersion(number, version_id))
        except Contradicted as error:
            raise OSError(str(error)) from None

    def _look(self, done: threading.Event) -> None:
        began, before = time.monotonic(), self._verdict
        try:
            self._guard.look()
            found = Verdict()
        except PutBack as error:
            found = Verdict(str(error))
        except Exception as error:  # a difference that was seen is kept until a look shows none
            found = Verdict(before.difference, "store" if isinstance(error, OSError) else "database")
        if found.difference != before.difference:
            log.error(found.difference) if found.difference else log.warning("database and store agree again")
        with self._lock:
            self._verdict, self._at, self._done = found, began, None
        done.set()


def newest_signed(session: Session) -> WitnessedHead | None:
    """Return the newest head of the log that was signed."""
    head = newest_head(session)
    return None if head is None else WitnessedHead(head.size, head.root)


def _newer(one: Mapping[str, WitnessedVersion], other: Mapping[str, WitnessedVersion]) -> dict[str, WitnessedVersion]:
    """Return the version of the higher number of each model."""
    higher = {each: known for each, known in other.items() if each not in one or one[each].number < known.number}
    return {**one, **higher}


def _longer(one: WitnessedHead | None, other: WitnessedHead | None) -> WitnessedHead | None:
    """Return the head of more entries."""
    return max((head for head in (one, other) if head), key=lambda head: head.size, default=None)


def at_once(read: Callable[[Item], Value], items: Collection[Item]) -> list[Value]:
    """Read something for each item: one bucket answers many in the time that it takes for one."""
    if len(items) < FEW:
        return [read(item) for item in items]
    with ThreadPoolExecutor(AT_ONCE) as readers:
        return list(readers.map(read, items))


def _current(session: Session, only: str | None) -> Recorded:
    rows = (session.execute(_CURRENT_OF, {"model": only}) if only else session.execute(_STANDING)).all()
    is_standby, epoch, waits, size, root, *_ = rows[0]
    if is_standby:
        raise Busy("A standby answered, which may not know the last commits yet.")
    models = {model: (name, WitnessedVersion(number, version)) for *_, model, name, number, version in rows if model}
    return Recorded(epoch or 0, waits, None if size is None else WitnessedHead(size, root), models)


def _name(session: Session, model_id: str) -> str:
    return (
        session.scalar(select(Model.name).where(Model.id == model_id)) or f"a model that it does not know ({model_id})"
    )


def _lacks(what: str) -> str:
    return f"The database lacks {what}, which is in the store: {_PUT_BACK}"


def _lacks_in_store(what: str) -> str:
    return f"The store lacks {what}, which is in the database: files of it were lost, or it was put back. {_BRING_BACK}"


_WAITS = "The database was restored from a backup. Read the report, then run `expunge restore --confirm`."
_PUT_BACK = "it was put back, or a copy of it writes to this store. Run `expunge restore`."
_BRING_BACK = "Put the store's own files back."
