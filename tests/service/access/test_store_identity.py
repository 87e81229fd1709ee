"""Every place carries the installation's mark: another's, an empty one or a swapped one is refused at the start."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from expunge_service.access.store_identity import check_places, claim_places
from expunge_service.infra.db import Busy, Database
from expunge_service.infra.files import MARK, DiskFolder
from expunge_service.infra.settings import SettingsError
from expunge_service.infra.stores import folder_at
from tests.harness.databases import MakeDatabase, sqlite_databases, sqlite_template

Make = Callable[[str], Database]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a migrated database of that name."""
    (tmp_path / "template").mkdir()
    databases: MakeDatabase = sqlite_databases(sqlite_template(tmp_path / "template"))
    return lambda name: Database(databases(tmp_path / name))


@pytest.fixture(params=["disk", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    return tmp_path / "store" if request.param == "disk" else str(request.getfixturevalue("bucket"))


def test_a_place_is_claimed_once_and_known_from_then_on(make: Make, place: Path | str) -> None:
    ours, folder = make("ours"), folder_at(place)
    check_places(ours, {"store": folder})
    assert folder.mark() is None, "looking writes nothing"
    claim_places(ours, {"store": folder})
    mark = folder.mark() or ""
    assert mark.startswith("Expunge store of installation ")
    claim_places(ours, {"store": folder})
    check_places(ours, {"store": folder})
    assert folder.mark() == mark


@pytest.mark.both_engines
def test_processes_that_start_at_once_claim_the_same_places(database_url: str, tmp_path: Path) -> None:
    def start(_: int) -> str | None:
        folders = {name: DiskFolder(tmp_path / name) for name in ("store", "private_store")}
        together.wait()
        claim_places(Database(database_url), folders)
        return folders["store"].mark()

    together = Barrier(6)
    with ThreadPoolExecutor(6) as processes:
        assert len(set(processes.map(start, range(6)))) == 1


def test_another_installations_place_is_refused_with_the_remedy(make: Make, place: Path | str) -> None:
    ours, theirs, folder = make("ours"), make("theirs"), folder_at(place)
    claim_places(theirs, {"store": folder})
    for act in (claim_places, check_places):
        with pytest.raises(SettingsError, match=r"EXPUNGE_STORE.*EXPUNGE_DATABASE_URL"):
            act(ours, {"store": folder})


def test_a_host_without_the_folder_is_refused_with_the_remedy(make: Make, tmp_path: Path) -> None:
    ours = make("ours")
    claim_places(ours, {"store": DiskFolder(tmp_path / "store")})
    for act in (claim_places, check_places):
        with pytest.raises(SettingsError, match="carries no mark"):
            act(ours, {"store": DiskFolder(tmp_path / "another hosts folder")})
    assert not (tmp_path / "another hosts folder").exists()


def test_the_store_and_the_private_store_are_not_swapped(make: Make, tmp_path: Path) -> None:
    ours = make("ours")
    store, private = DiskFolder(tmp_path / "store"), DiskFolder(tmp_path / "private")
    claim_places(ours, {"store": store, "private_store": private})
    with pytest.raises(SettingsError, match="EXPUNGE_STORE"):
        claim_places(ours, {"store": private, "private_store": store})


def test_a_place_with_foreign_files_is_not_claimed(make: Make, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(SettingsError, match="Name an empty place"):
        claim_places(make("ours"), {"store": DiskFolder(tmp_path / "photos")})


def test_a_process_that_died_between_mark_and_row_is_no_obstacle(make: Make, tmp_path: Path) -> None:
    ours, folder = make("ours"), DiskFolder(tmp_path / "store")
    claim_places(ours, {"private_store": DiskFolder(tmp_path / "private")})
    mark = (tmp_path / "private" / MARK).read_text().replace("private_store", "store")
    folder.set_mark(mark)
    claim_places(ours, {"store": folder})
    check_places(ours, {"store": folder})


def test_tenants_with_a_key_store_of_their_own_claim_it_apart(make: Make, tmp_path: Path) -> None:
    ours = make("ours")
    claim_places(ours, {"key_folder acme": DiskFolder(tmp_path / "acme")})
    claim_places(ours, {"key_folder zeta": DiskFolder(tmp_path / "zeta")})
    claim_places(ours, {"key_folder acme,zeta": DiskFolder(tmp_path / "zeta")})
    with pytest.raises(SettingsError, match="EXPUNGE_KEY_FOLDER"):
        claim_places(ours, {"key_folder acme": DiskFolder(tmp_path / "nowhere")})


def test_a_place_that_does_not_answer_is_waited_for(make: Make, tmp_path: Path) -> None:
    class Away(DiskFolder):
        def mark(self) -> str | None:
            raise OSError(5, "away")

    for act in (claim_places, check_places):
        with pytest.raises(Busy, match="away"):
            act(make(act.__name__), {"store": Away(tmp_path / "store")})
