"""Keys live until they are destroyed, and then no file of the store holds them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.keystore import KeyStore


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'keys.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def keys(url: str) -> Iterator[KeyStore]:
    store = KeyStore(url)
    yield store
    store.close()


def test_keys_come_back_by_id_until_they_are_destroyed(keys: KeyStore) -> None:
    made = dict(keys.create(1, 1200))
    assert len(set(made.values())) == 1200
    assert keys.fetch(made) == made
    gone, *rest = made
    assert keys.destroy([gone]) and keys.destroy([gone])
    assert keys.fetch(made) == {key_id: made[key_id] for key_id in rest}


def test_a_lineage_ends_with_all_its_keys_and_no_others(keys: KeyStore) -> None:
    first, second = dict(keys.create(1, 3)), dict(keys.create(2, 3))
    assert keys.destroy_lineage(1)
    assert keys.fetch([*first, *second]) == second


def test_opening_a_store_again_changes_nothing(url: str, keys: KeyStore) -> None:
    made = dict(keys.create(1, 3))
    again = KeyStore(url)
    assert again.fetch(made) == made
    again.close()


def test_a_destroyed_key_is_in_no_file(tmp_path: Path) -> None:
    store = KeyStore(f"sqlite:///{tmp_path / 'keys.db'}")
    (key_id, key), (_, kept) = store.create(1, 2)

    def where(needle: bytes) -> list[str]:
        return [path.name for path in tmp_path.iterdir() if needle in path.read_bytes()]

    assert where(key) and where(kept)
    assert store.destroy([key_id])
    assert where(key) == []
    assert where(kept)
    store.close()


def test_a_reader_that_keeps_the_log_busy_is_reported(tmp_path: Path) -> None:
    store = KeyStore(f"sqlite:///{tmp_path / 'keys.db'}")
    ((key_id, _),) = store.create(1, 1)
    with store._database.read() as session:
        session.connection().exec_driver_sql("SELECT count(*) FROM holder_keys").scalar()
        assert not store.destroy([key_id])
    assert store.scrub()
    store.close()
