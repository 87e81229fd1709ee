"""Power is cut after every step of preparing a model, of two updates and of a purge; each legal disk is recovered.

The databases are cut at every commit: SQLite syncs its log before it answers, so what was committed is there. Of
the files, each state that is legal after that prefix of the recorded operations is written out, a worker and a
scheduler start on it, and the invariants are checked.
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from sqlalchemy import event, select
from sqlalchemy.orm import Session

from expunge_service.audit.witness import UPDATES
from expunge_service.infra.files import MARK, DiskFolder
from expunge_service.infra.stores import DIGEST, Damaged, Store
from expunge_service.infra.tables import Version
from expunge_service.models.figures import FIGURES
from expunge_workers.scheduler.run import open_scheduler
from expunge_workers.storage.key_store import KeyFiles, KeyStore
from tests.faults.invariants import Broken, broken, counted, left_behind, unfinished, unreadable
from tests.faults.result import Result
from tests.harness.databases import sqlite_databases, sqlite_template
from tests.harness.powercut import Recorded, State, states_after_power_cut
from tests.workers.worlds import World, end_schedulers_lease, open_world, settings_of

FOLDERS = ("store", "private", "keys", f"store/{UPDATES}", f"store/{FIGURES}")
"""the journal of updates lies with the published checkpoints"""
MARKED = ("store", "private", "keys")


@dataclass(frozen=True)
class Cut:
    """A moment: so many file operations were done, and this was committed."""

    operations: int
    database: bytes
    keys: bytes


@dataclass
class Rehearsal:
    """A run without any fault, recorded."""

    home: Path
    files: Recorded = field(default_factory=Recorded)
    cuts: list[Cut] = field(default_factory=list)
    model_id: str = ""

    def mark(self, *_: object) -> None:
        """Remember this moment, unless nothing changed since the last one."""
        cut = Cut(len(self.files.log), copy_of(self.home / "expunge.db"), copy_of(self.home / "keys.db"))
        if not self.cuts or cut != self.cuts[-1]:
            self.cuts.append(cut)


def run(seed: int, scale: float) -> Result:
    """Check every state at scale 1; below it, a share of them, spread evenly."""
    with tempfile.TemporaryDirectory(prefix="expunge-power-") as name:
        folder = Path(name)
        rehearsal = rehearse(folder / "rehearsal", sqlite_databases(sqlite_template(folder))(folder / "rehearsal"))
        legal = list(disks(rehearsal))
        step = max(1, round(1 / scale))
        chosen = legal[seed % step :: step]
        found = [each for cut, state in chosen for each in recovered(rehearsal, folder / "cut", cut, state)]
    words = sorted({each.words for each in found})
    return Result(
        "power cut",
        cases=len(chosen),
        faults=len(chosen),
        **counted(found),
        notes=(
            f"{len(legal)} legal disks after {len(rehearsal.files.log)} file operations, {len(rehearsal.cuts)} commits",
            *words[:10],
        ),
    )


def rehearse(home: Path, url: str) -> Rehearsal:
    """Prepare a model, update twice, purge; every operation on files and every commit is recorded."""
    rehearsal = Rehearsal(home)
    world = open_world(
        settings_of(home, url, grace=0.0),
        store=RecordedStore(home / "store", rehearsal.files),
        private=RecordedStore(home / "private", rehearsal.files),
        keys=KeyStore(f"sqlite:///{home / 'keys.db'}", RecordedKeyFiles(home / "keys", rehearsal)),
    )
    scheduler = replace(open_scheduler(world.settings), database=world.database, keys=world.storage.keys)
    scheduler = replace(scheduler, store=world.storage.store, private=world.storage.private)
    rehearsal.model_id = world.register(guarantee="proved")
    rehearsal.mark()
    event.listen(world.database.engine, "commit", rehearsal.mark)  # before it
    event.listen(Session, "after_commit", rehearsal.mark)  # what is written then follows a commit that is synced
    world.work(rehearsal.model_id)
    for person in ("p3", "p5"):
        world.delete(person)
        world.work(rehearsal.model_id)
    scheduler.tick()
    rehearsal.mark()
    event.remove(Session, "after_commit", rehearsal.mark)
    world.storage.close()
    return rehearsal


class RecordedStore(Store):
    """A store whose folders exist from the beginning: making them is not what is cut here."""

    def __init__(self, root: Path, files: Recorded) -> None:
        for folder in (UPDATES, FIGURES):
            (root / folder).mkdir(parents=True, exist_ok=True)
        super().__init__(DiskFolder(root, files))


class RecordedKeyFiles(KeyFiles):
    """Key files in a folder that exists from the beginning. What was committed before a key is destroyed is kept."""

    def __init__(self, folder: Path, rehearsal: Rehearsal) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(DiskFolder(folder, rehearsal.files))
        self._rehearsal = rehearsal

    def erase(self, name: str, slots: Iterable[int]) -> None:
        self._rehearsal.mark()
        super().erase(name, slots)


def disks(rehearsal: Rehearsal) -> Iterator[tuple[Cut, State]]:
    """Yield every legal disk, each once: at every commit, and between two commits after every file operation."""
    for before, after in zip(rehearsal.cuts, [*rehearsal.cuts[1:], rehearsal.cuts[-1]], strict=True):
        for operations in range(before.operations, after.operations + 1):
            seen: set[str] = set()
            for state in states_after_power_cut(rehearsal.files.log[:operations]):
                name = hashlib.sha256(repr(sorted(state.items())).encode()).hexdigest()
                if name not in seen:
                    seen.add(name)
                    yield replace(before, operations=operations), state


def recovered(rehearsal: Rehearsal, home: Path, cut: Cut, state: State) -> list[Broken]:
    """Write the disk out, start on it, and say what does not hold afterwards."""
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(rehearsal.home / "secrets", home / "secrets")
    (home / "expunge.db").write_bytes(cut.database)
    (home / "keys.db").write_bytes(cut.keys)
    for folder in FOLDERS:
        (home / folder).mkdir()
    for folder in MARKED:  # written before the first operation that is cut
        shutil.copy(rehearsal.home / folder / MARK, home / folder / MARK)
    for path, data in state.items():
        place = home / Path(path).relative_to(rehearsal.home)
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(data)
    world = open_world(settings_of(home, f"sqlite:///{home / 'expunge.db'}", grace=0.0))
    found = unreadable(world.database, world.storage.store, world.storage.private) + other_bytes(home)
    found += unjournalled(world)
    if not found:  # else the service stops, and says why
        found += finish(world, rehearsal.model_id)
    world.storage.close()
    return found


def finish(world: World, model_id: str) -> list[Broken]:
    """Let the restarted service work until nothing is left, and check it."""
    world.expire_lease(model_id)
    world.work(model_id)
    scheduler = open_scheduler(world.settings)
    end_schedulers_lease(world)
    scheduler.tick()
    scheduler.database.close()
    scheduler.keys.close()
    storage, database = world.storage, world.database
    found = broken(database) + unfinished(database) + unreadable(database, storage.store, storage.private)
    if world.model(model_id).status not in ("live", "exhausted"):
        found.append(Broken("lost", "the model is not served"))
    return found + left_behind(database, storage.keys)


def unjournalled(world: World) -> list[Broken]:
    """Return the versions that were committed and that the journal does not know: a restored backup would lose them."""
    try:
        told = {entry.version["id"] for entry in world.storage.journal.entries() if entry.version is not None}
    except Damaged:
        return [Broken("undetected_corruptions", "the journal holds a damaged entry")]
    with world.database.read() as session:
        missing = set(session.scalars(select(Version.id))) - told
    return [Broken("lost", "a version was committed without its entry in the journal")] * len(missing)


def other_bytes(home: Path) -> list[Broken]:
    """Find a file under the name of other bytes: it would be refused, but it should never exist."""
    files = [path for folder in FOLDERS for path in (home / folder).iterdir() if DIGEST.fullmatch(path.name)]
    wrong = [path for path in files if hashlib.sha256(path.read_bytes()).hexdigest() != path.name]
    return [Broken("undetected_corruptions", "a file bears the name of other bytes")] * len(wrong)


def copy_of(path: Path) -> bytes:
    """Return what a SQLite database holds now: committed transactions, those in its write-ahead log included."""
    with sqlite3.connect(path) as source, sqlite3.connect(":memory:") as target:
        source.backup(target)
        return target.serialize()
