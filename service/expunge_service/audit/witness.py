"""The store as witness of the database: what was published and signed, in files that are made once and never changed.

One file is changed, ``updates/newest``: it says what was witnessed last, so that one read answers for every model.

A database can go back: a failover that loses its last commits, a backup put back, a copy that writes to the same store.
The store does not go back with it. ``expunge_service.models.restore_guard`` compares the two.

``updates/MODEL.NUMBER.draft``: a version, before its commit; ``.release``: after it; ``.set-aside``: no database knows
it. ``heads/EPOCH.SIZE``: the head that was signed next after the one of this size, so that only one ever can be.
``epochs/N``: a restore on purpose (``expunge restore --confirm``); heads of an older epoch do not bind the signer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from expunge_service.infra.files import Folder
from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.tables import Restoration

UPDATES, HEADS, EPOCHS = "updates", "heads", "epochs"
"""folders in the store"""
DRAFT, RELEASE, SET_ASIDE = ".draft", ".release", ".set-aside"
NEWEST = "newest"
"""the file in ``updates`` that is changed; it has none of those endings"""


class Contradicted(RuntimeError):
    """The store says something else: another database wrote to it, or this one or the store was put back."""


@dataclass(frozen=True)
class WitnessedHead:
    """A head of the audit log: its number of entries, and its root in hex."""

    size: int
    root: str


@dataclass(frozen=True)
class WitnessedVersion:
    """A version whose commit the store knows: its number in its model, and its id."""

    number: int
    version_id: str


@dataclass(frozen=True)
class Newest:
    """What was witnessed last. A version is noted here after its commit, a head before its signature.

    ``since``: the id of this account, which is begun anew in each epoch and where the file was lost: who read another
    one reads all other files again. Empty: there is none yet. ``epoch``: that of the head.
    """

    since: str = ""
    epoch: int = 0
    head: WitnessedHead | None = None
    versions: Mapping[str, WitnessedVersion] = field(default_factory=dict)
    """the newest of each model, by its id"""

    @classmethod
    def parse(cls, data: bytes | None) -> Newest:
        """Read the file; a half, which a power cut leaves, is as good as none."""
        try:
            facts = json.loads(data or b"")
            head = WitnessedHead(*facts["head"]) if facts["head"] else None
            versions = {model: WitnessedVersion(*version) for model, version in facts["versions"].items()}
            return cls(facts["since"], facts["epoch"], head, versions)
        except (ValueError, KeyError, TypeError):
            return cls()

    def written(self) -> bytes:
        head = self.head and [self.head.size, self.head.root]
        versions = {model: [version.number, version.version_id] for model, version in self.versions.items()}
        facts = {"since": self.since or new_id(), "epoch": self.epoch, "head": head, "versions": versions}
        return json.dumps(facts, sort_keys=True).encode()

    def with_version(self, model_id: str, version: WitnessedVersion) -> Newest:
        newest = self.versions.get(model_id)
        if newest is not None and newest.number >= version.number:
            return self
        return replace(self, versions={**self.versions, model_id: version})

    def with_head(self, epoch: int, head: WitnessedHead) -> Newest:
        newest = 0 if self.head is None else self.head.size
        return self if (self.epoch, newest) >= (epoch, head.size) else replace(self, epoch=epoch, head=head)


@dataclass(frozen=True)
class Epoch:
    """What began with a restore on purpose; number 0 with the installation.

    ``begins``: the size of the log at its begin, from which its first head continues. ``last``: the last head of the
    epoch before, as far as the store knows.
    """

    number: int
    begins: int
    last: WitnessedHead | None = None


def epoch_of(session: Session) -> int:
    """Return the number of the epoch that the database is in."""
    return session.scalar(select(func.max(Restoration.epoch))) or 0


class Witness:
    """The files of one store. Every method raises OSError where the store does not answer. None lists a folder."""

    def __init__(self, store: Folder) -> None:
        self.updates, self.heads, self.epochs = (store.inside(name).promptly() for name in (UPDATES, HEADS, EPOCHS))

    def newest(self) -> Newest:
        """Return what was witnessed last, by one read."""
        with suppress(FileNotFoundError):
            return Newest.parse(self.updates.read(NEWEST))
        return Newest()

    def _note(self, change: Callable[[Newest], Newest]) -> None:
        self.updates.update(NEWEST, lambda data: change(Newest.parse(data)).written())

    def epoch(self, known: int = 0) -> Epoch:
        """Return the newest epoch, looking from ``known`` on. An installation that was never restored is in epoch 0."""
        newest = Epoch(0, 0)
        for number in range(max(known, 1), 1 << 62):
            found = _read(self.epochs, str(number))
            if found is None:
                break
            facts = json.loads(found)
            newest = Epoch(number, facts["begins"], WitnessedHead(**facts["last"]) if facts["last"] else None)
        return newest

    def begin(self, epoch: Epoch) -> None:
        """Write an epoch, with a number above every other. Raises Contradicted where that number is another's."""
        last = None if epoch.last is None else vars(epoch.last)
        _write(self.epochs, str(epoch.number), json.dumps({"begins": epoch.begins, "last": last}, sort_keys=True))
        self._note(lambda _: Newest(epoch=epoch.number))

    def head_after(self, epoch: int, size: int) -> WitnessedHead | None:
        """Return the head that was signed in the epoch next after the head of this size; None: there is none yet."""
        found = _read(self.heads, f"{epoch}.{size}")
        if found is None:
            return None
        following, root = found.split()
        return WitnessedHead(int(following), root)

    def last_head(self, epoch: int, size: int) -> WitnessedHead | None:
        """Return the last head of the epoch that follows the head of this size, however many are between them."""
        found = None
        while (following := self.head_after(epoch, size)) is not None:
            found, size = following, following.size
        return found

    def add_head(self, epoch: int, size: int, head: WitnessedHead) -> None:
        """Write which head follows the one of this size; it may be signed then. Raises Contradicted."""
        _write(self.heads, f"{epoch}.{size}", f"{head.size} {head.root}")

    def note_version(self, model_id: str, number: int, version_id: str) -> None:
        """Say that a version was committed."""
        self._note(lambda newest: newest.with_version(model_id, WitnessedVersion(number, version_id)))

    def note_head(self, epoch: int, head: WitnessedHead) -> None:
        """Say that the head was witnessed last. It was added before, and is signed after this.

        A signer that died before it left no signature, and the next one comes here again.
        """
        self._note(lambda newest: newest.with_head(epoch, head))

    def drafted(self, model_id: str, number: int) -> str | None:
        """Return the id of the version that was drafted under this number; None: the number is free."""
        found = _read(self.updates, version_file(model_id, number) + DRAFT)
        return None if found is None else found.partition("\n")[0]

    def released(self, model_id: str, number: int) -> str | None:
        """Return the id of the version whose commit under this number is known."""
        return _read(self.updates, version_file(model_id, number) + RELEASE)

    def is_set_aside(self, model_id: str, number: int) -> bool:
        """Return whether a restore has decided that no database will know the version of this number."""
        return self.updates.holds(version_file(model_id, number) + SET_ASIDE)

    def release(self, model_id: str, number: int, version_id: str) -> None:
        """Write that the version was committed. A power cut may take it until ``updates.sync``. Raises Contradicted.

        It is noted first: a process that dies between the two has told the others, and the next look writes the file.
        """
        self.note_version(model_id, number, version_id)
        _write(self.updates, version_file(model_id, number) + RELEASE, version_id, lasting=False)

    def confirm(self, model_id: str, number: int, version_id: str) -> None:
        """Release a version that the database has, where its worker died after the commit.

        Raises Contradicted where the store never had it, or has another of this number.
        """
        found = self.released(model_id, number)
        if found is None:
            found = self.drafted(model_id, number) or (version_id if self._of_before(version_id) else None)
            if found == version_id:
                self.release(model_id, number, version_id)
        if found != version_id:
            raise Contradicted(
                f"{self.updates}/{version_file(model_id, number)} is of {found}, in the database of {version_id}"
            )

    def _of_before(self, version_id: str) -> bool:
        """Return whether a release before 0.2 wrote the version's file, which it named by the version alone."""
        return any(self.updates.holds(version_id + ending) for ending in (RELEASE, DRAFT))

    def set_aside(self, model_id: str, number: int, version_id: str) -> None:
        """Write that no database will know the version. Raises Contradicted."""
        _write(self.updates, version_file(model_id, number) + SET_ASIDE, version_id)


def version_file(model_id: str, number: int) -> str:
    """Return the name of a version's files, without their ending."""
    return f"{model_id}.{number}"


def _read(folder: Folder, name: str) -> str | None:
    with suppress(FileNotFoundError):
        return folder.read(name).decode(errors="replace")
    return None


def _write(folder: Folder, name: str, text: str, *, lasting: bool = True) -> None:
    """Write a file once; the same again is no harm. Raises Contradicted."""
    try:
        folder.add(name, [text.encode()], lasting=lasting)
    except FileExistsError:
        found = _read(folder, name)
        if found != text:
            raise Contradicted(f"{folder}/{name} says {found!r}, and this database {text!r}") from None
