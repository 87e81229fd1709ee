"""A worker that dies between two requests to the bucket: the deletion completes once, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from expunge_service.audit.witness import RELEASE
from expunge_service.infra.tables import Erasure, Removal, StoredVector, Version
from expunge_workers.scheduler.run import open_scheduler, sweep_files
from tests.faults.deaths import OF_A_BUCKET
from tests.faults.invariants import broken, left_behind, unreadable
from tests.harness.databases import sqlite_databases, sqlite_template
from tests.harness.files import names_in
from tests.harness.seams import DIE_AT
from tests.workers.worlds import World, end_schedulers_lease, open_world, settings_of

ACT = (
    "import json, sys; from expunge_service.infra.settings import Settings; "
    "from tests.harness.seams import arm_from_environment; from tests.workers.worlds import open_world; "
    "arm_from_environment(); "
    "open_world(Settings(**json.loads(sys.argv[1]))).work(sys.argv[2])"
)
"""in a new process: the threads of obstore do not survive a fork"""
POINTS = ("bucket-created",)
IN_A_PREPARATION = ("bucket-created", "bucket-put")
LONG = sorted({*OF_A_BUCKET, "worker-before-publish", "worker-after-commit"} - {*POINTS})


@pytest.fixture
def world(bucket: str, tmp_path: Path) -> World:
    (tmp_path / "template").mkdir()
    url = sqlite_databases(sqlite_template(tmp_path / "template"))(tmp_path / "home")
    places = {name: f"{bucket}/{name}" for name in ("store", "private_store", "key_folder")}
    return open_world(settings_of(tmp_path / "home", url, grace=0.0, **places))


def dies_at(world: World, point: str, model_id: str) -> None:
    """Let another process work for the model until it dies at ``point``."""
    world.storage.close()
    told = world.settings.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    environment = os.environ | {DIE_AT: point, "OMP_NUM_THREADS": "1"}
    died = subprocess.run(
        [sys.executable, "-c", ACT, json.dumps(told), model_id],
        env=environment,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, f"{point} was never reached: {died.stderr[-2000:]}"


def journal_of(world: World) -> list[str]:
    return sorted(entry.name for entry in world.storage.guard.witness.updates.entries())


def wrong(world: World) -> list[object]:
    storage = world.storage
    return [
        *broken(world.database),
        *unreadable(world.database, storage.store, storage.private),
        *left_behind(world.database, storage.keys),
    ]


@pytest.mark.parametrize("point", [*POINTS, *(pytest.param(each, marks=pytest.mark.drill) for each in LONG)])
def test_a_deletion_survives_the_death_of_its_worker_and_happens_once(world: World, point: str) -> None:
    model_id = world.live(guarantee="proved")
    request = world.delete("p3")
    dies_at(world, point, model_id)
    world.expire_lease(model_id)
    world.work(model_id)
    end_schedulers_lease(world)
    assert open_scheduler(world.settings).tick()
    assert (world.request(request).status, world.task(request).samples) == ("completed", 3)
    assert [version.number for version in world.versions(model_id)] in ([1, 2], [1, 3])
    assert (world.count(Removal), world.count(StoredVector)) == (3, 11)
    assert all(erasure.destroyed_at is not None for erasure in world.rows_of(Erasure))
    assert wrong(world) == []

    released = {f"{model_id}.{version.number}{RELEASE}" for version in world.versions(model_id)}
    assert {name for name in journal_of(world) if name.endswith(RELEASE)} == released
    sweep_all(world)
    assert names_in(world.storage.store) == {world.head(model_id).checkpoint}, "orphans are swept"
    assert names_in(world.storage.private) == {world.head(model_id).state}


@pytest.mark.drill
@pytest.mark.parametrize("point", IN_A_PREPARATION)
def test_a_preparation_survives_the_death_of_its_worker(world: World, point: str) -> None:
    model_id = world.register(guarantee="proved")
    dies_at(world, point, model_id)
    world.expire_lease(model_id)
    world.work(model_id)
    assert (world.model(model_id).status, world.count(Version), world.count(StoredVector)) == ("live", 1, 12)
    assert wrong(world) == []
    orphans = [entry.name for entry in world.storage.keys.folder.entries()]
    world.storage.keys.sweep(-5)
    assert len(orphans) - len(list(world.storage.keys.folder.entries())) == (point == "bucket-created")
    assert wrong(world) == [] and len(dict(world.storage.keys.fetch(keys_of(world)))) == 12


def keys_of(world: World) -> list[str]:
    return [row.key_id for row in world.rows_of(StoredVector)]


def sweep_all(world: World) -> None:
    """Sweep as the scheduler does, with every file old enough."""
    storage = world.storage
    sweep_files(world.database, storage.store, storage.private, older_than=-5)
