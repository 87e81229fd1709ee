"""A worker that dies by SIGKILL at each of its crash points: the deletion completes afterwards, once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from expunge_service.infra.tables import BudgetEntry, Erasure, Lease, Membership, Removal, StoredVector
from expunge_service.models.retrain_plan import retrain_lease
from expunge_workers.scheduler.run import open_scheduler, sweep_files
from tests.faults.invariants import broken
from tests.harness.files import names_in, root_of
from tests.workers.worlds import World, fork, open_world

pytestmark = pytest.mark.both_engines

UPDATE_POINTS = (
    "worker-after-claim",
    "worker-after-digest",
    "worker-after-load",
    "worker-after-compute",
    "worker-after-noise",
    "store-half-file",
    "store-written",
    "store-synced",
    "store-renamed",
    "store-folder-synced",
    "worker-before-publish",
    "publish-after-charge",
    "publish-after-version",
    "publish-after-audit",
    "publish-inside-commit",
    "worker-after-commit",
    "keys-erased",
    "worker-after-erasure",
    "worker-before-ack",
)
PREPARATION_POINTS = (
    "prepare-after-manifest",
    "prepare-after-train",
    "keys-before-rows",
    "prepare-after-rows",
    "store-half-file",
    "publish-after-version",
    "publish-inside-commit",
)


IN_DATABASE = ("worker-after-claim", "publish-after-audit", "publish-inside-commit", "worker-after-commit")
ALWAYS = {
    *(("sqlite", point) for point in ("worker-after-claim", "worker-after-noise", "store-half-file", "store-renamed")),
    *(("sqlite", point) for point in ("prepare-after-train", "prepare-after-rows", "publish-after-charge")),
    *(("sqlite", point) for point in ("worker-before-publish", "worker-after-commit", "keys-erased")),
    ("postgresql", "publish-inside-commit"),
}
"""one point of each kind: before anything is written, a file half there, before and inside the transaction, after it"""


def rare(points: list[tuple[str, str]]) -> list[Any]:
    """Mark as a drill what stands beside a point of its kind; the drill ``crash_points`` has them all, twenty times."""
    return [point if point in ALWAYS else pytest.param(*point, marks=pytest.mark.drill) for point in points]


UPDATES = rare([*(("sqlite", point) for point in UPDATE_POINTS), *(("postgresql", point) for point in IN_DATABASE)])
PREPARATIONS = rare([*(("sqlite", point) for point in PREPARATION_POINTS), ("postgresql", "publish-inside-commit")])
"""what happens to files, or between transactions, does not depend on the database: those points run on SQLite alone"""


def die_at(world: World, point: str, act: Callable[[World], object]) -> None:
    """``act`` in a process of its own that is to die at ``point``; it must not get past it."""

    def child() -> None:
        act(open_world(world.settings))  # connections do not survive a fork
        time.sleep(1)  # inside COMMIT a timer kills

    status = fork(child, TESTS_DIE_AT=point)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"{point} was never reached"


@pytest.mark.parametrize(("database_url", "point"), UPDATES, indirect=["database_url"])
def test_a_deletion_survives_the_death_of_its_worker_and_happens_once(world: World, point: str) -> None:
    model_id = world.live(guarantee="proved")
    request = world.delete("p3")
    world.storage.database.close()
    world.storage.keys.close()
    die_at(world, point, lambda other: other.work(model_id))
    assert world.request(request).status in ("queued", "running", "completed")
    world.expire_lease(model_id)
    world.work(model_id)
    assert open_scheduler(world.settings).tick()
    assert (world.request(request).status, world.task(request).samples) == ("completed", 3)
    first, last = (version.number for version in world.versions(model_id))
    assert (first, last) in ((1, 2), (1, 3)), "a number that was drafted and not committed is never given again"
    assert (world.count(Removal), world.count(StoredVector)) == (3, 11)
    generation = world.generation(model_id)
    assert generation.spent == (last - 1) * generation.budget_cost, "and counts as charged"
    assert generation.spent == sum(entry.budget_cost for entry in world.rows_of(BudgetEntry))
    assert all(erasure.destroyed_at is not None for erasure in world.rows_of(Erasure))
    assert world.storage.store.read(world.head(model_id).checkpoint)
    assert world.storage.private.read(world.head(model_id).state)
    assert broken(world.database) == []


@pytest.mark.parametrize(("database_url", "point"), PREPARATIONS, indirect=["database_url"])
def test_a_preparation_survives_the_death_of_its_worker(world: World, point: str) -> None:
    model_id = world.register(guarantee="proved")
    request = world.delete("p3")
    world.storage.database.close()
    world.storage.keys.close()
    die_at(world, point, lambda other: other.work(model_id))
    world.expire_lease(model_id)
    world.work(model_id)
    assert (world.model(model_id).status, world.request(request).status) == ("live", "completed")
    assert [version.number for version in world.versions(model_id)] in ([1], [2])
    assert world.count(StoredVector) == 11
    assert broken(world.database) == []


RETRAINS = [
    pytest.param("sqlite", "prepare-after-rows", marks=pytest.mark.drill),
    pytest.param("sqlite", "worker-before-publish", marks=pytest.mark.drill),
    pytest.param("sqlite", "publish-after-version", marks=pytest.mark.drill),
    pytest.param("sqlite", "switch-after-version", marks=pytest.mark.drill),
    ("sqlite", "worker-after-commit"),
    pytest.param("postgresql", "switch-after-tasks", marks=pytest.mark.drill),
    ("postgresql", "publish-inside-commit"),
    pytest.param("postgresql", "worker-after-commit", marks=pytest.mark.drill),
]


@pytest.mark.parametrize(("database_url", "point"), RETRAINS, indirect=["database_url"])
def test_a_retrain_survives_the_death_of_its_worker(world: World, point: str) -> None:
    model_id = world.live(guarantee="proved", epsilon=1.0, noise_std=0.01, max_distance=0.0018, fallback="retrain")
    for person in ("p0", "p1"):
        world.delete(person)
        world.work(model_id)
    assert world.model(model_id).status == "exhausted"
    old = world.generation(model_id).id
    request = world.delete("p3")
    world.storage.database.close()
    world.storage.keys.close()
    die_at(world, point, lambda other: other.work(model_id))
    world.change(Lease, retrain_lease(model_id), expires_at=min(1, named_lease(world, model_id).expires_at))
    world.work(model_id)
    assert open_scheduler(world.settings).tick()
    assert (world.request(request).status, world.task(request).samples) == ("completed", 3)
    assert [version.number for version in world.versions(model_id)] in ([1, 2, 3, 4], [1, 2, 3, 5])
    assert world.generation(model_id).id != old
    assert (world.count(StoredVector), world.count(Membership)) == (9, 27)
    assert all(erasure.destroyed_at is not None for erasure in world.rows_of(Erasure))
    assert world.storage.private.read(world.head(model_id).state)
    assert broken(world.database) == []


def named_lease(world: World, model_id: str) -> Lease:
    with world.database.read() as session:
        return session.get_one(Lease, retrain_lease(model_id))


def test_a_scheduler_that_dies_while_purging_purges_once_more(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    world.work(model_id)
    world.storage.database.close()
    world.storage.keys.close()
    hasty = world.settings.model_copy(update={"grace": 0.0})
    die_at(world, "scheduler-during-purge", lambda _: open_scheduler(hasty).tick())
    assert [version.status for version in world.versions(model_id)] == ["retired", "current"]
    world.database.close()
    take_over(world)
    open_scheduler(hasty).tick()
    assert [version.status for version in world.versions(model_id)] == ["purged", "current"]
    assert world.kinds().count("version.purged") == 1
    assert world.storage.store.read(world.head(model_id).checkpoint)


def test_files_of_a_worker_that_died_are_swept_and_the_heads_are_not(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    world.storage.database.close()
    world.storage.keys.close()
    for point in ("store-half-file", "worker-before-publish"):
        die_at(world, point, lambda other: other.work(model_id))
        world.expire_lease(model_id)
    for store in (world.storage.store, world.storage.private):
        for path in filter(Path.is_file, root_of(store).iterdir()):
            os.utime(path, (0, 0))
    assert sweep_files(world.database, world.storage.store, world.storage.private) >= 2
    names = names_in(world.storage.store)
    assert names == {world.head(model_id).checkpoint}
    assert names_in(world.storage.private) == {world.head(model_id).state}


def take_over(world: World) -> None:
    """The dead scheduler's lease runs out."""
    world.change(Lease, "scheduler", expires_at=0)
