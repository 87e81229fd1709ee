"""A preparation in work units: shared out, taken up after a SIGKILL, and the same numbers as in one piece."""

from __future__ import annotations

from typing import Any, Never

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from expunge.service.api.traffic import Traffic
from expunge.service.api.views.metrics import render
from expunge.service.infra.tables import Lease, StoredVector, WorkUnit
from expunge.service.models import model_lease
from expunge.service.models.retrain_plan import work_units_of
from expunge.workers.scheduler.run import open_scheduler
from expunge.workers.storage import private_state
from expunge.workers.training import prepare, units
from tests.harness.files import names_in, path_in
from tests.workers import meanwhile
from tests.workers.test_crashes import die_at
from tests.workers.training.test_calibrate import release_connections
from tests.workers.worlds import World, open_world
from unlearning.methods.recollection import Recollection as Method
from unlearning.model.training import train
from unlearning.quality.distance_left import mean_distance_left
from unlearning.types import Vectors

pytestmark = pytest.mark.both_engines

ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""what does not depend on the database"""


def opened(world: World, model_id: str) -> units.VectorUnits:
    """Open the units that a preparation has laid out."""
    found = units.VectorUnits.opened(world.process, world.generation(model_id), "shared_out")
    assert found is not None
    return found


def test_work_units_give_the_vectors_that_one_piece_gives(world: World) -> None:
    model_id = world.register("shared_out")
    release_connections(world)
    die_at(world, "prepare-after-work-units", lambda other: other.work(model_id))
    course = opened(world, model_id)
    learned = train(course.bench.problem, course.examples)
    whole = Method().prepare(course.bench.problem, course.examples, learned)
    world.expire_lease(model_id)
    world.work(model_id)
    assert world.model(model_id).status == "live", world.model(model_id).reason
    stored = vectors_of(world, model_id)
    assert stored.keys() == whole.vectors.keys() and len(stored) == 264
    for holder, vector in whole.vectors.items():
        assert torch.allclose(stored[holder], vector, rtol=1e-4, atol=1e-7)
    problem, vectors = course.bench.problem, Vectors(whole.vectors)
    left = mean_distance_left(Method(), problem, course.examples, learned, whole, vectors=vectors)
    assert world.report(model_id)["distance_left"] == pytest.approx(left, rel=1e-3)


@ON_SQLITE
def test_units_of_people_with_one_sample_each_take_batches_that_hold_none_of_them(world: World) -> None:
    """A convolution computes nothing for no sample. ``test_deletions.py`` has 1,437 people over HTTP."""
    model_id = world.live("one_sample_each")
    assert world.generation(model_id).method == "recollection"
    assert len(vectors_of(world, model_id)) == 130


@pytest.mark.parametrize(
    ("database_url", "point"),
    [
        ("sqlite", "work-unit-inside"),
        ("postgresql", "work-unit-inside-rows"),
        ("sqlite", "work-unit-after"),
        pytest.param("postgresql", "work-unit-inside", marks=pytest.mark.drill),
        pytest.param("sqlite", "work-unit-inside-rows", marks=pytest.mark.drill),
        pytest.param("postgresql", "work-unit-after", marks=pytest.mark.drill),
    ],
    indirect=["database_url"],
)
def test_a_killed_worker_loses_at_most_its_own_work_unit(
    world: World, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = world.register("shared_out")
    release_connections(world)
    die_at(world, point, lambda other: other.work(model_id))
    done = {row.number: (row.owner, row.done_at) for row in world.rows_of(WorkUnit) if row.done_at}
    assert len(done) == (1 if point == "work-unit-after" else 0)
    assert len(world.rows_of(WorkUnit)) == 4

    keep_lease(world, model_id)
    release_connections(world)
    die_at(
        world, "work-unit-after", lambda other: other.work(model_id)
    )  # a helper: the lease is the dead worker's still
    done = {row.number: (row.owner, row.done_at) for row in world.rows_of(WorkUnit) if row.done_at}
    assert len(done) == (2 if point == "work-unit-after" else 1) and world.model(model_id).status == "preparing"

    monkeypatch.setattr(prepare, "begin", never)
    world.expire_lease(model_id)
    world.work(model_id)
    assert world.model(model_id).status == "live", world.model(model_id).reason
    assert len(world.rows_of(StoredVector)) == 264 and world.rows_of(WorkUnit) == []
    assert names_in(world.storage.private) == {world.head(model_id).state}
    assert len(vectors_of(world, model_id)) == 264, "every row opens under its key"


@ON_SQLITE
def test_a_helper_computes_work_units_while_the_first_worker_is_at_it(world: World) -> None:
    model_id = world.register("shared_out")
    release_connections(world)
    die_at(world, "prepare-after-work-units", lambda other: other.work(model_id))
    keep_lease(world, model_id)
    helper = open_world(world.settings)
    for _ in range(6):
        helper.work(model_id)
    owners = [row.owner for row in world.rows_of(WorkUnit) if row.done_at]
    assert owners == [helper.process.owner] * 4 and world.model(model_id).status == "preparing"
    helper.storage.close()
    world.expire_lease(model_id)
    world.work(model_id)
    assert world.model(model_id).status == "live"


@ON_SQLITE
def test_a_worker_that_was_given_up_writes_nothing_into_its_work_unit(world: World) -> None:
    model_id = world.register("shared_out")
    release_connections(world)
    die_at(world, "work-unit-inside", lambda other: other.work(model_id))
    course = opened(world, model_id)
    late = open_world(world.settings)
    with late.database.write() as session:
        pieces = units.pieces_of(late.process, WorkUnit, course.generation_id)
        number = pieces.take(session)
    world.change(WorkUnit, (course.generation_id, number), owner="somebody else")
    opened(late, model_id).attempt(int(number or 0), lambda _: None)
    late.storage.close()
    assert world.rows_of(StoredVector) == []


def test_who_asks_while_work_units_are_computed_is_not_in_version_1(world: World) -> None:
    model_id = world.register("shared_out")
    release_connections(world)
    die_at(world, "work-unit-after", lambda other: other.work(model_id))
    request = world.delete("p3")
    world.expire_lease(model_id)
    world.work(model_id)
    head = world.head(model_id)
    assert (head.number, head.samples, world.request(request).status) == (1, 1, "completed")
    assert len(world.rows_of(StoredVector)) == 263
    later = world.delete("p200")
    world.work(model_id)
    assert world.request(later).status == "completed" and world.head(model_id).number == 2


@ON_SQLITE
def test_a_changed_recipe_begins_anew(world: World) -> None:
    model_id = world.register("shared_out")
    release_connections(world)
    die_at(world, "work-unit-after", lambda other: other.work(model_id))
    meanwhile.DROPPED.update({"s0"})
    world.expire_lease(model_id)
    world.work(model_id)
    assert world.model(model_id).status == "live"
    assert len(world.rows_of(StoredVector)) == 263


@ON_SQLITE
def test_a_scheduler_leaves_the_trajectory_of_open_work_units_alone(world: World) -> None:
    model_id = world.register("shared_out")
    release_connections(world)
    die_at(world, "work-unit-after", lambda other: other.work(model_id))
    kept = (world.generation(model_id).manifest or {})["trained"]["state"]
    open_scheduler(world.settings).tick()
    assert path_in(world.storage.private, kept).exists()


@ON_SQLITE
def test_vectors_that_take_too_much_room_are_refused_with_advice(world: World) -> None:
    small = world.limited(vector_bytes=4 * 10 * 263)
    model_id = small.register("shared_out")
    small.work(model_id)
    reason = small.model(model_id).reason or ""
    assert small.model(model_id).status == "refused" and "10,560 bytes" in reason and "recollection_sketch" in reason
    small.storage.close()


def keep_lease(world: World, model_id: str) -> None:
    """However slow this machine is, the dead worker's lease has not run out."""
    world.change(Lease, model_lease(model_id), expires_at=2**62)


def vectors_of(world: World, model_id: str) -> dict[str, Any]:
    names = tuple(sorted(row.holder for row in world.rows_of(StoredVector)))
    generation = world.generation(model_id)
    return dict(
        private_state.VectorStore(
            world.storage.database, world.storage.keys, generation.id, 10, torch.device("cpu")
        ).read(names)
    )


def never(*_: object) -> Never:
    raise AssertionError("a preparation that had trained began anew")


@ON_SQLITE
def test_progress_is_shown_by_work_units(world: World) -> None:
    model_id = world.register("shared_out")
    release_connections(world)
    die_at(world, "work-unit-after", lambda other: other.work(model_id))
    with world.database.read() as session:
        assert work_units_of(session, world.generation(model_id).id) == (1, 4)
    assert samples(world)["expunge_preparation_work_units", "done"] == 1.0
    assert samples(world)["expunge_preparation_work_units", "waiting"] == 3.0
    assert 0.0 < samples(world)["expunge_preparation_progress", None] < 1.0
    world.expire_lease(model_id)
    world.work(model_id)
    assert not [name for name, _ in samples(world) if name.startswith("expunge_preparation")]


def samples(world: World) -> dict[tuple[str, str | None], float]:
    families = text_string_to_metric_families(render(world.database, world.settings, Traffic(), differs=False).decode())
    return {(each.name, each.labels.get("state")): each.value for family in families for each in family.samples}
