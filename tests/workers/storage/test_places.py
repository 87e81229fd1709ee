"""Wrong places are refused where a process starts, and a key store that lacks a key certifies nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from expunge_service.app import create_app
from expunge_service.cli.checks import examine
from expunge_service.infra.files import DiskFolder
from expunge_service.infra.settings import Settings, SettingsError
from expunge_service.infra.stores import folder_at
from expunge_service.infra.tables import Certificate, Erasure
from expunge_workers.scheduler.run import open_scheduler
from expunge_workers.storage import erase_due
from expunge_workers.storage.key_store import KeyFiles, KeysMissing, KeyStore
from tests.faults.invariants import uncertified
from tests.harness.databases import sqlite_databases
from tests.harness.residue import share_in_file
from tests.harness.s3 import S3
from tests.workers.scheduler.test_bucket_deaths import world as in_a_bucket
from tests.workers.worlds import World, end_schedulers_lease, fork, open_world, settings_of

__all__ = ["in_a_bucket"]

PLACES = ["store", "private_store", "key_folder"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("start", [open_world, open_scheduler])
def test_no_process_starts_on_another_hosts_folder(
    world: World, tmp_path: Path, place: str, start: Callable[[Settings], object]
) -> None:
    settings = world.settings.model_copy(update={place: tmp_path / "local"})
    with pytest.raises(SettingsError, match=f"EXPUNGE_{place.upper()}.*carries no mark"):
        start(settings)


def test_no_process_starts_on_another_key_store(world: World, tmp_path: Path) -> None:
    settings = world.settings.model_copy(update={"key_store_url": f"sqlite:///{tmp_path / 'other.db'}"})
    with pytest.raises(SettingsError, match=r"EXPUNGE_KEY_STORE_URL.*carries no mark"):
        open_world(settings)


@pytest.mark.parametrize("start", [open_world, open_scheduler])
def test_no_process_starts_on_another_bucket_or_on_ours_with_another_database(
    in_a_bucket: World, tmp_path: Path, start: Callable[[Settings], object]
) -> None:
    ours = in_a_bucket.settings
    for place in PLACES:
        elsewhere = ours.model_copy(update={place: f"{ours.store}-elsewhere"})
        with pytest.raises(SettingsError, match=f"EXPUNGE_{place.upper()}.*carries no mark"):
            start(elsewhere)
    other = sqlite_databases(tmp_path / "template" / "template.db")(tmp_path / "other")
    with pytest.raises(SettingsError, match=r"EXPUNGE_STORE.*is marked.*EXPUNGE_DATABASE_URL"):
        start(ours.model_copy(update={"database_url": other}))


@pytest.mark.parametrize("start", [open_world, open_scheduler])
def test_no_process_starts_on_a_bucket_that_is_not_there_or_keeps_versions_by_now(
    in_a_bucket: World,
    s3_server: S3,
    tmp_path: Path,
    start: Callable[[Settings], object],
    request: pytest.FixtureRequest,
) -> None:
    bucket = f"versions-{request.node.callspec.id.replace('_', '-')}"
    places = {name: f"s3://{bucket}/{name}" for name in PLACES}
    url = sqlite_databases(tmp_path / "template" / "template.db")(tmp_path / "ours")
    settings = settings_of(tmp_path / "ours", url, **places)
    with pytest.raises(SettingsError, match="there is no such bucket"):
        start(settings)
    folder_at(f"s3://{bucket}/elsewhere").write("ready", [b"yes"])  # the server makes the bucket
    open_world(settings).storage.close()
    s3_server.keep_versions(bucket)
    with pytest.raises(SettingsError, match="keeps old versions"):
        start(settings)


def test_readiness_says_what_is_wrong_with_the_store(world: World) -> None:
    root = Path(world.settings.store)
    with TestClient(create_app(world.settings)) as api:
        assert "No worker is alive" in api.get("/readyz").json()["detail"]
        root.rename(root.with_name("not-mounted"))
        answer = api.get("/readyz")
        assert answer.status_code == 503 and "EXPUNGE_STORE" in answer.json()["detail"]
        assert "carries no mark" in answer.json()["detail"]
    with pytest.raises(SettingsError, match="EXPUNGE_STORE"):
        create_app(world.settings)


@pytest.mark.parametrize("place", PLACES)
def test_the_doctor_names_the_wrong_place(world: World, tmp_path: Path, place: str) -> None:
    wrong = world.settings.model_copy(update={place: tmp_path / "local"})
    told = [each for each in examine(wrong) if "carries no mark" in each.what]
    assert [each.name for each in told] == [place] and f"EXPUNGE_{place.upper()}" in told[0].what
    assert not [each for each in examine(world.settings) if "mark" in each.what]


def test_a_key_store_that_never_held_the_key_reports_nothing_as_destroyed(world: World, tmp_path: Path) -> None:
    model_id = world.live(guarantee="proved")
    request = world.delete("p3")
    world.storage.close()
    fork(
        lambda: open_world(world.settings).work(model_id),
        TESTS_DIE_AT="worker-after-commit",
    )
    other = KeyStore(f"sqlite:///{tmp_path / 'other.db'}", KeyFiles(DiskFolder(tmp_path / "other")))
    with pytest.raises(KeysMissing, match="EXPUNGE_KEY_STORE_URL"):
        erase_due(world.database, world.storage.private, other, world.storage.guard.witness)
    assert [row.destroyed_at for row in world.rows_of(Erasure)] == [None]
    end_schedulers_lease(world)
    scheduler = replace(open_scheduler(world.settings), keys=other)
    with pytest.raises(ExceptionGroup) as failed:
        scheduler.tick()
    assert [type(each) for each in failed.value.exceptions] == [KeysMissing]
    assert uncertified(world.database) and world.request(request).status == "completed"

    end_schedulers_lease(world)
    assert open_scheduler(world.settings).tick(), "the right key store"
    assert all(row.destroyed_at for row in world.rows_of(Erasure))
    assert all(row.issued_at for row in world.rows_of(Certificate))
    other.close()


def test_destroying_again_is_well_and_the_keys_that_are_here_go_before_the_complaint(tmp_path: Path) -> None:
    keys = KeyStore(f"sqlite:///{tmp_path / 'keys.db'}", KeyFiles(DiskFolder(tmp_path / "keys")))
    (gone, _), (kept, _) = keys.create(1, 2)
    keys.destroy([gone])
    keys.destroy([gone, gone])
    with pytest.raises(KeysMissing, match="2 keys"):
        keys.destroy(["never-held", "nor-this", gone, kept])
    assert keys.fetch([gone, kept]) == {}
    keys.close()


def test_keys_in_a_bucket_are_destroyed_for_every_host(s3_server: S3, bucket: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    one, two = (KeyStore(url, KeyFiles(folder_at(bucket))) for _ in range(2))
    (gone, _), (kept, key) = one.create(1, 2)
    share = share_in_file(one, gone)
    assert share in written_by(s3_server), "the search finds what is there"
    assert two.fetch([kept]) == {kept: key}
    two.destroy([gone])
    assert one.fetch([gone, kept]) == {kept: key}
    deadline = time.monotonic() + 30
    while share in written_by(s3_server):  # the server frees replaced bytes after its answer, and then compacts
        assert time.monotonic() < deadline
        s3_server.compact()
        time.sleep(0.5)
    orphan = one._files.write([b"s" * 32])
    one.folder.set_mark("the installation's")
    assert one.sweep(-5) == 1 and not one.folder.holds(orphan) and one.folder.mark()
    one.folder.delete([each.name for each in one.folder.entries()])
    for act in (one.fetch, two.destroy):
        with pytest.raises(KeysMissing, match="EXPUNGE_KEY_FOLDER"):
            act([kept])
    one.close()
    two.close()


def written_by(server: S3) -> bytes:
    """Return every byte that the server holds on its disk."""
    return b"".join(path.read_bytes() for path in (server.folder / "data").rglob("*") if path.is_file())
