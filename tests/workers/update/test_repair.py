"""A repaired update carries the vectors of those who stay, in the transaction that publishes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sqlalchemy import select
from torch import Tensor

from expunge_service.infra.tables import StoredVector
from expunge_service.queue import Deletions, Preparation, Stale
from expunge_workers.runtime.heartbeat import Stopwatch
from expunge_workers.storage import private_state
from expunge_workers.training import prepare
from tests.workers.storage.test_residue import found
from tests.workers.test_crashes import die_at
from tests.workers.worlds import World
from unlearning.accounting.certificate import Claim, Guarantee
from unlearning.methods.recollection import Recollection as Method
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.quality.simulate import forget_set, left_by, release
from unlearning.types import State, Vectors

REPAIR = {"options": {"repair_epochs": 2}, "threshold": 10.0}
SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""what does not differ between the databases"""
POINTS = ("publish-after-audit", "publish-inside-commit", "worker-after-commit")


def everyones(world: World, model_id: str) -> dict[str, Tensor]:
    """The vectors as rows have them, by holder."""
    generation = world.generation(model_id).id
    with world.database.read() as session:
        holders = session.scalars(select(StoredVector.holder).where(StoredVector.generation_id == generation))
        return private_state.read_vectors(session, world.storage.keys, generation, holders, torch.device("cpu"))


def weights_of(world: World, model_id: str) -> Tensor:
    """w~ of the current version."""
    return world.state(world.head(model_id)).weights


def in_memory(world: World, *people: str) -> list[State]:
    """The states after one update each, without the service."""
    recipe = world.recipe("steps")
    problem, examples = Problem(recipe), recipe.samples.examples()
    method = Method(repair_epochs=2)
    states = [method.prepare(problem, examples, train(problem, examples))]
    gone: list[str] = []
    for person in people:
        gone.append(person)
        retain = left_by(examples, forget_set(examples, gone))
        mine = forget_set(examples, [person])
        states.append(release(method, problem, states[-1], mine, retain, generator=torch.Generator()).state)
    return states


def test_a_second_deletion_uses_the_vector_that_the_first_release_carried(world: World) -> None:
    """On both databases: equal to the same two updates in memory, and not to those with the first vectors."""
    model_id = world.live("steps", **REPAIR)
    untouched = everyones(world, model_id)
    start, first, second = in_memory(world, "p3", "p5")
    world.delete("p3")
    world.work(model_id)
    assert torch.allclose(weights_of(world, model_id), first.weights, atol=1e-6)
    carried = everyones(world, model_id)
    assert len(carried) == 11 and all(not torch.equal(carried[name], untouched[name]) for name in carried)
    request = world.delete("p5")
    world.work(model_id)
    assert world.request(request).status == "completed"
    assert torch.allclose(weights_of(world, model_id), second.weights, atol=1e-6)
    stale = Method(repair_epochs=2)
    recipe = world.recipe("steps")
    problem, examples = Problem(recipe), recipe.samples.examples()
    retain = left_by(examples, forget_set(examples, ["p3", "p5"]))
    kept = State(first.weights, {}, first.facts)
    asked = replace(forget_set(examples, ["p5"]), vectors=Vectors({"p5": start.vectors["p5"]}))
    wrong = stale.forget(problem, kept, asked, retain, torch.Generator()).state
    assert float((wrong.weights - second.weights).norm()) > 1e-4, "the test could not tell"
    claim = Claim.from_json(world.head(model_id).claim)
    assert (claim.guarantee, claim.epsilon) == (Guarantee.NONE, None)


@pytest.mark.both_engines
@pytest.mark.parametrize(
    ("database_url", "point"),
    [*(("sqlite", point) for point in POINTS), ("postgresql", "publish-inside-commit")],
    indirect=["database_url"],
)
def test_a_worker_that_dies_in_a_repaired_release_carries_the_vectors_once(world: World, point: str) -> None:
    model_id = world.live("steps", **REPAIR)
    request = world.delete("p3")
    world.storage.database.close()
    world.storage.keys.close()
    die_at(world, point, lambda other: other.work(model_id))
    world.expire_lease(model_id)
    world.work(model_id)
    expected = in_memory(world, "p3")[-1]
    assert world.request(request).status == "completed"
    # a number that was drafted and not committed is never given again
    assert [version.number for version in world.versions(model_id)] in ([1, 2], [1, 3])
    by_norm = sorted(float(vector.norm()) for vector in everyones(world, model_id).values())
    assert by_norm == pytest.approx(sorted(float(vector.norm()) for vector in expected.vectors.values()), rel=1e-4)
    world.delete("p5")
    world.work(model_id)
    assert torch.allclose(weights_of(world, model_id), in_memory(world, "p3", "p5")[-1].weights, atol=1e-6)


@SQLITE
def test_a_worker_whose_lease_was_taken_over_changes_no_vector(world: World) -> None:
    model_id = world.live("steps", **REPAIR)
    world.delete("p3")
    job = world.claim(model_id, seconds=0.0)
    before = {row.holder: row.sealed for row in world.rows_of(StoredVector)}
    world.work(model_id)
    after = {row.holder: row.sealed for row in world.rows_of(StoredVector)}
    assert isinstance(job, Deletions)
    with pytest.raises(Stale):
        world.update(job)
    assert {row.holder: row.sealed for row in world.rows_of(StoredVector)} == after
    assert all(before[holder] != sealed for holder, sealed in after.items())


@SQLITE
def test_carried_rows_keep_their_key_and_leave_nothing_readable(world: World, tmp_path: Path) -> None:
    model_id = world.live("steps", **REPAIR)
    rows = {row.holder: row for row in world.rows_of(StoredVector)}
    first = everyones(world, model_id)
    world.delete("p3")
    world.work(model_id)
    carried = everyones(world, model_id)
    again = {row.holder: row for row in world.rows_of(StoredVector)}
    assert all(rows[name].key_id == row.key_id and rows[name].sealed != row.sealed for name, row in again.items())
    (gone,) = set(first) - set(carried)
    keys = world.storage.keys.fetch([row.key_id for row in rows.values()])
    assert rows[gone].key_id not in keys and len(keys) == 11
    in_clear = [vector.numpy().tobytes() for vector in (*first.values(), *carried.values())]
    assert found(world, tmp_path, in_clear) == []
    assert found(world, tmp_path, [row.sealed[:64] for row in again.values()]), "the search finds what is there"


@SQLITE
@pytest.mark.usefixtures("reading")
def test_whoever_asked_during_training_is_repaired_away_with_version_1(world: World) -> None:
    model_id = world.register("steps", **REPAIR)
    job = world.claim(model_id)
    assert isinstance(job, Preparation)
    watch = Stopwatch(world.pulse())
    ready = prepare.make_ready(world.process, job, watch)
    request = world.delete("p3")
    assert prepare.bring_into_service(world.process, job, ready, watch)
    assert (world.request(request).status, world.head(model_id).number) == ("completed", 1)
    world.expire_lease(model_id)
    world.delete("p5")
    world.work(model_id)
    assert torch.allclose(weights_of(world, model_id), in_memory(world, "p3", "p5")[-1].weights, atol=1e-6)


@SQLITE
def test_what_repair_cannot_claim_or_serve_is_refused(world: World) -> None:
    for name, recipe, policy, word in (
        ("a", "steps", {**REPAIR, "guarantee": "calibrated"}, "how updates are cut"),
        ("b", "convex", REPAIR, "Leave repair_epochs out"),
        ("c", "steps", {**REPAIR, "guarantee": "proved"}, "the code of this recipe would compute it"),
    ):
        model_id = world.register(recipe, name=name, **policy)
        world.work(model_id)
        assert world.model(model_id).status == "refused"
        assert word in (world.model(model_id).reason or "")
