"""Keys live until they are destroyed; then no file of the store, its database or its logs opens what they sealed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from expunge_service.infra.files import DiskFolder
from expunge_workers.storage.key_store import ERASED, SHARE_BYTES, HolderKey, KeyFiles, KeysMissing, KeyStore
from tests.harness.powercut import Operation, Recorded, states_after_power_cut
from tests.harness.residue import share_in_file
from tests.harness.seams import at
from tests.harness.servers import Postgres

Everything = Callable[[], bytes]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'keys.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def keys(url: str, tmp_path: Path) -> Iterator[KeyStore]:
    store = KeyStore(url, KeyFiles(DiskFolder(tmp_path / "keys")))
    yield store
    store.close()


@pytest.fixture
def everything(url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Everything:
    """Every byte that the store has written: its key files, and its database with the write-ahead log."""
    folders = [tmp_path]
    server: Postgres | None = None
    if url.startswith("postgresql"):
        server = request.getfixturevalue("postgres_server")
        folders.append(server.folder)

    def read() -> bytes:
        if server is not None:
            server.execute("CHECKPOINT")
        return b"".join(path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file())

    return read


@pytest.mark.both_engines
def test_keys_come_back_by_id_until_they_are_destroyed(keys: KeyStore) -> None:
    made = dict(keys.create(1, 1200))
    assert len(set(made.values())) == 1200
    assert keys.fetch(made) == made
    gone, *rest = made
    keys.destroy([gone])
    keys.destroy([gone])
    assert keys.fetch(made) == {key_id: made[key_id] for key_id in rest}


@pytest.mark.both_engines
def test_a_generation_ends_with_all_its_keys_and_no_others(keys: KeyStore, tmp_path: Path) -> None:
    first, second = dict(keys.create(1, 3)), dict(keys.create(2, 3))
    keys.destroy_generation(1)
    assert keys.fetch([*first, *second]) == second
    assert len(list((tmp_path / "keys").iterdir())) == 1


def test_a_generation_of_which_a_key_was_destroyed_before_ends_like_any_other(keys: KeyStore, tmp_path: Path) -> None:
    """The row of a destroyed key stays and names no file: the folder of the key files must not be taken for one."""
    for number in (1, 2):
        ((first, _), *_) = keys.create(number, 3)
        keys.destroy([first])
    keys.destroy_generation(1)
    assert (keys.generations(), keys.last_generation()) == ({2}, 2)
    assert len(list((tmp_path / "keys").iterdir())) == 1


def test_opening_a_store_again_changes_nothing(url: str, keys: KeyStore, tmp_path: Path) -> None:
    made = dict(keys.create(1, 3))
    again = KeyStore(url, KeyFiles(DiskFolder(tmp_path / "keys")))
    assert again.fetch(made) == made
    again.close()


def test_nothing_opens_what_a_destroyed_key_sealed(keys: KeyStore, everything: Everything) -> None:
    (key_id, key), (kept_id, kept) = keys.create(1, 2)
    row, share, other = row_of(keys, key_id), share_in_file(keys, key_id), share_in_file(keys, kept_id)
    before = everything()
    assert row.share in before and share in before, "the search finds what is there"
    assert key not in before, "a whole key is written nowhere"
    keys.destroy([key_id])
    after = everything()
    assert row.share in after or keys._database.dialect == "sqlite", "PostgreSQL keeps what it deletes"
    assert share not in after and key not in after
    assert other in after and keys.fetch([kept_id]) == {kept_id: kept}


def test_a_reader_that_keeps_the_databases_log_does_not_keep_the_key(tmp_path: Path) -> None:
    store = KeyStore(f"sqlite:///{tmp_path / 'keys.db'}", KeyFiles(DiskFolder(tmp_path / "keys")))
    ((key_id, _), _) = store.create(1, 2)
    share = share_in_file(store, key_id)
    with store._database.read() as session:
        session.connection().exec_driver_sql("SELECT count(*) FROM holder_keys").scalar()
        store.destroy([key_id])
        assert not any(share in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    store.close()


def test_a_share_that_was_erased_before_its_row_was_deleted_is_no_key(keys: KeyStore, tmp_path: Path) -> None:
    (key_id, _), (kept_id, kept) = keys.create(1, 2)
    row = row_of(keys, key_id)
    KeyFiles(DiskFolder(tmp_path / "keys")).erase(row.file, [row.slot])  # and there the process died
    assert keys.fetch([key_id, kept_id]) == {kept_id: kept}
    keys.destroy([key_id])
    assert keys.fetch([key_id, kept_id]) == {kept_id: kept}


def test_a_process_without_the_key_folder_neither_reads_nor_destroys(url: str, keys: KeyStore, tmp_path: Path) -> None:
    made = dict(keys.create(1, 2))
    elsewhere = KeyStore(url, KeyFiles(DiskFolder(tmp_path / "not-mounted")))
    for act in (elsewhere.fetch, elsewhere.destroy):
        with pytest.raises(KeysMissing, match="EXPUNGE_KEY_FOLDER"):
            act(made)
    assert keys.fetch(made) == made
    elsewhere.close()


@pytest.mark.both_engines
def test_a_key_that_is_destroyed_between_its_row_and_its_file_is_gone(
    keys: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((key_id, _),) = keys.create(1, 1)
    read = keys._files.read
    happens = iter([lambda: keys.destroy([key_id])])

    def late(name: str, slots: Iterator[int]) -> dict[int, bytes]:
        next(happens, lambda: None)()
        return read(name, slots)

    monkeypatch.setattr(keys._files, "read", late)
    assert keys.fetch([key_id]) == {}


def test_the_last_key_of_a_file_takes_it_away_and_a_sweep_what_nobody_named(keys: KeyStore, tmp_path: Path) -> None:
    made = [key_id for key_id, _ in keys.create(1, 2)]
    orphan = keys._files.write([b"s" * SHARE_BYTES])  # its worker died before it wrote the rows
    assert keys.sweep(3600) == 0
    assert keys.sweep(0) == 1
    folder = tmp_path / "keys"
    assert not (folder / orphan).exists() and len(keys.fetch(made)) == 2
    keys.destroy(made[:1])
    assert len(list(folder.iterdir())) == 1
    keys.destroy(made[1:])
    assert list(folder.iterdir()) == []


def test_no_power_cut_loses_a_living_key_or_brings_back_a_destroyed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Recorded()
    store = KeyStore(f"sqlite:///{tmp_path / 'keys.db'}", KeyFiles(DiskFolder(tmp_path / "keys", files)))
    (tmp_path / "keys").mkdir()
    (gone_id, _), (kept_id, _) = store.create(1, 2)
    gone, kept, made = share_in_file(store, gone_id), share_in_file(store, kept_id), len(files.log)
    reached: list[int] = []
    with at("keys-erased", lambda: reached.append(len(files.log))):
        store.destroy([gone_id])
    assert reached == [len(files.log)], "the row is deleted after the share, and its file is kept"
    assert broken_promises(files.log, made, gone, kept) == []
    store.close()


@pytest.mark.parametrize("forgotten", ["sync", "sync_folder"])
def test_the_double_finds_a_missing_fsync(tmp_path: Path, forgotten: str) -> None:
    files = Recorded()
    (tmp_path / "keys").mkdir()
    shares = KeyFiles(DiskFolder(tmp_path / "keys", files))
    name, made = shares.write([b"g" * SHARE_BYTES, b"k" * SHARE_BYTES]), len(files.log)
    shares.erase(name, [0])
    log = [each for each in files.log if each.kind != forgotten]
    found = broken_promises(log, made, b"g" * SHARE_BYTES, b"k" * SHARE_BYTES)
    assert found


def broken_promises(log: list[Operation], made: int, gone: bytes, kept: bytes) -> list[str]:
    """What goes wrong after a power cut at any moment since the keys were made."""
    found = []
    for end in range(min(made, len(log)), len(log) + 1):
        for state in states_after_power_cut(log[:end]):
            everything = b"".join(state.values())
            found += ["a living key is lost"] if kept not in everything else []
            if end == len(log) and (gone in everything or ERASED not in everything):
                found.append("a destroyed key is there")
    return found


def test_both_shares_are_needed_and_drawn_for_every_key(keys: KeyStore) -> None:
    made = dict(keys.create(1, 20))
    halves = [half for key_id in made for half in (row_of(keys, key_id).share, share_in_file(keys, key_id))]
    assert len({*halves, *made.values()}) == 60
    for key_id, key in made.items():
        one, other = row_of(keys, key_id).share, share_in_file(keys, key_id)
        assert bytes(a ^ b for a, b in zip(one, other, strict=True)) == key
    for one, other in itertools.combinations(halves, 2):
        assert len(one) == SHARE_BYTES and one != other


def row_of(store: KeyStore, key_id: str) -> HolderKey:
    with store._database.read() as session:
        return session.get_one(HolderKey, key_id)
