"""One read of the store a look answers for every model, and shows what a look at all of its files shows."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from expunge_service.api.dependencies import Service
from expunge_service.audit import Witness, record
from expunge_service.audit.log import extend
from expunge_service.audit.signed_note import Signer
from expunge_service.audit.witness import NEWEST
from expunge_service.infra.files import DiskFolder
from expunge_service.infra.tables import Model
from expunge_service.models import Guard, PutBack
from tests.harness.store_reads import CountedFolder, reads_a_second
from tests.service.worlds import live_model, publish

MODELS, PROCESSES, SECONDS = 30, 3, 4.0
GOAL = 3.0
"""reads a second, of all processes"""
STEPS = 60


class Copies:
    """Copies of an SQLite database, each of which can be put in its place."""

    def __init__(self, service: Service, folder: Path) -> None:
        self._service, self._folder = service, folder
        self._database = Path(service.database.engine.url.database or "")
        self._count = 0

    def take(self) -> Path:
        self._count += 1
        copy = self._folder / f"copy-{self._count}.db"
        connection = sqlite3.connect(self._database)
        connection.execute("VACUUM INTO ?", (str(copy),))
        connection.close()
        return copy

    def put_back(self, copy: Path) -> None:
        self._service.database.close()
        for ending in ("-wal", "-shm"):
            Path(f"{self._database}{ending}").unlink(missing_ok=True)
        shutil.copy(copy, self._folder / "again.db")
        (self._folder / "again.db").replace(self._database)


@pytest.fixture
def copies(service: Service, tmp_path: Path) -> Copies:
    if service.database.dialect != "sqlite":
        pytest.skip("copies are of SQLite's file; test_witness puts back both databases")
    return Copies(service, tmp_path)


def store_of(service: Service) -> Path:
    return Path(service.settings.store)


def guard_of(service: Service, asked: list[str] | None = None) -> Guard:
    return Guard(service.database, CountedFolder(store_of(service), [] if asked is None else asked))


def differs(guard: Guard) -> bool:
    try:
        guard.look()
    except PutBack:
        return True
    return False


def sign(service: Service) -> None:
    with service.database.write() as session:
        record(session, "default", "test.step")
    extend(service.database, Signer.of(service.settings), Witness(DiskFolder(store_of(service))))


def test_thirty_models_in_three_processes_cost_three_reads_a_second(service: Service) -> None:
    for number in range(MODELS):
        live_model(service, f"m{number}")
    assert reads_a_second(service.settings, PROCESSES, SECONDS) <= GOAL


@pytest.mark.parametrize("models", [1, 8])
def test_a_look_at_rest_is_one_read_however_many_models_there_are(service: Service, models: int) -> None:
    for number in range(models):
        live_model(service, f"m{number}")
    asked: list[str] = []
    guard = guard_of(service, asked)
    guard.look()
    asked.clear()
    guard.look()
    assert asked == [f"GET {NEWEST}"]


def test_a_new_version_costs_another_process_one_read_more(service: Service) -> None:
    models = [live_model(service, f"m{number}") for number in range(8)]
    asked: list[str] = []
    guard = guard_of(service, asked)
    guard.look()
    version = publish(service, models[3], b"version two")
    asked.clear()
    guard.look()
    assert asked == [f"GET {NEWEST}", f"GET {models[3].id}.{version.number}.release"]


class Walk:
    """Random publications, signatures and deaths in an installation, and databases that are put back."""

    def __init__(self, service: Service, copies: Copies, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.service, self.copies, self._patch = service, copies, monkeypatch
        self.chance = random.Random(seed)
        self.models = [live_model(service, f"m{number}", tenant_id=f"t{number % 2}") for number in range(3)]
        self.taken = [copies.take()]

    def step(self) -> None:
        acts: list[Callable[[], object]] = [
            *(self.publish, self.publish, self.die_before_the_note, self.die_after_the_note),
            *(self.sign, self.die_before_the_signature, self.register, self.copy),
        ]
        self.chance.choice(acts)()

    def publish(self) -> None:
        publish(self.service, self.chance.choice(self.models), self.chance.randbytes(8))

    def die_before_the_note(self) -> None:
        with self._patch.context() as dead:
            dead.setattr(Witness, "release", lambda *_: None)
            self.publish()

    def die_after_the_note(self) -> None:
        with self._patch.context() as dead:
            dead.setattr(Witness, "release", Witness.note_version)
            self.publish()

    def sign(self) -> None:
        sign(self.service)

    def die_before_the_signature(self) -> None:
        with self._patch.context() as dead:
            dead.setattr("expunge_service.audit.log._sign", lambda *_: None)
            self.sign()

    def register(self) -> None:
        self.models.append(live_model(self.service, f"m{len(self.models)}"))

    def copy(self) -> None:
        self.taken.append(self.copies.take())


@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.drill)])
def test_one_read_shows_what_all_files_show(
    service: Service, copies: Copies, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The slow twin is a process that starts, which reads every file of the store."""
    monkeypatch.setattr("expunge_service.models.restore_guard.AGAIN_SECONDS", 0.0)
    walk = Walk(service, copies, monkeypatch, seed)
    often, seldom = guard_of(service), guard_of(service)
    for guard in (often, seldom):
        guard.look()
    seen = []
    for _ in range(STEPS):
        walk.step()
        if walk.chance.random() < 0.3:
            now, before = copies.take(), walk.chance.choice(walk.taken)
            copies.put_back(before)
            seen.append(differs(guard_of(service)))
            assert [differs(often), differs(seldom)] == [seen[-1]] * 2
            copies.put_back(now)
        assert not differs(guard_of(service)) and not differs(often)
        if walk.chance.random() < 0.2:
            assert not differs(seldom)
    assert True in seen


def test_a_version_whose_publisher_died_between_note_and_file_is_missed_and_then_filed(
    service: Service, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = live_model(service, "m"), guard_of(service)
    other.look()
    before = copies.take()
    with monkeypatch.context() as dead:
        dead.setattr(Witness, "release", Witness.note_version)
        version = publish(service, model, b"version two")
    after = copies.take()
    copies.put_back(before)
    with pytest.raises(PutBack, match="The database lacks version 2 of m"):
        other.look()
    copies.put_back(after)
    assert other.witness.released(model.id, 2) is None
    other.look()
    assert other.witness.released(model.id, 2) == version.id


@pytest.mark.parametrize("dies", [False, True], ids=["signed", "unsigned"])
def test_a_head_that_a_process_has_not_seen_yet_is_missed(
    service: Service, copies: Copies, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    guard, before = guard_of(service), copies.take()
    guard.look()
    if dies:
        monkeypatch.setattr("expunge_service.audit.log._sign", lambda *_: None)
    sign(service)
    guard_of(service).look()
    copies.put_back(before)
    with pytest.raises(PutBack, match="The database lacks the signed head of 1 entries"):
        guard.look()


@pytest.mark.parametrize("left", [None, b'{"since": "', b""], ids=["gone", "half", "empty"])
def test_an_account_that_is_lost_hides_no_rollback_and_is_no_difference(
    service: Service, copies: Copies, left: bytes | None
) -> None:
    """A power cut may take it, a store of 0.2.0 has none, and a store that was put back has an older one."""
    model = live_model(service, "m")
    often, before = guard_of(service), copies.take()
    often.look()
    publish(service, model, b"version two")
    newest = store_of(service) / "updates" / NEWEST
    newest.unlink()
    if left is not None:
        newest.write_bytes(left)
    after = copies.take()
    copies.put_back(before)
    assert differs(often) and differs(guard_of(service)), "the files still say so"
    copies.put_back(after)
    assert not differs(often) and not differs(guard_of(service))
    publish(service, live_model(service, "n"), b"version two")
    copies.put_back(after)
    assert differs(often) and differs(guard_of(service)), "a new account is read"


def test_a_store_and_a_database_that_go_back_together_are_noticed_by_a_process_that_knew_more(
    service: Service, copies: Copies, tmp_path: Path
) -> None:
    model = live_model(service, "m")
    guard, before = guard_of(service), copies.take()
    shutil.copytree(store_of(service), tmp_path / "store-before")
    publish(service, model, b"version two")
    guard.look()
    copies.put_back(before)
    shutil.rmtree(store_of(service))
    shutil.copytree(tmp_path / "store-before", store_of(service))
    assert differs(guard) and not differs(guard_of(service))


def test_a_version_published_after_the_store_went_back_is_missed_all_the_same(
    service: Service, copies: Copies, tmp_path: Path
) -> None:
    """Its account is an older one, which is continued."""
    model, other = live_model(service, "m"), live_model(service, "n")
    guard = guard_of(service)
    shutil.copytree(store_of(service) / "updates", tmp_path / "updates")
    publish(service, model, b"version two")
    guard.look()
    shutil.rmtree(store_of(service) / "updates")
    shutil.copytree(tmp_path / "updates", store_of(service) / "updates")
    assert not differs(guard), "what this process knew is in the database"
    before = copies.take()
    publish(service, other, b"version two")
    copies.put_back(before)
    with pytest.raises(PutBack, match="The database lacks version 2 of n"):
        guard.look()


def test_the_versions_of_a_retired_model_are_compared_once(service: Service) -> None:
    model = live_model(service, "m")
    guard = guard_of(service)
    guard.look()
    publish(service, model, b"version two")
    with service.database.write() as session:
        session.get_one(Model, model.id).status = "retired"
    guard.look()
    assert guard._released(guard.witness.newest(), None) == {}
