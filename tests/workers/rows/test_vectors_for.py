"""Vectors for a chosen part of the people, through the service: who has one is forgotten at once, the others by the
fallback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from expunge_service.infra.pseudonyms import subject_digest
from expunge_service.infra.tables import Membership, StoredVector
from expunge_workers.training import prepare
from tests.workers.rows.data import lay_out
from tests.workers.worlds import TENANT, World

SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
FALLBACK = {"fallback": "retrain", "threshold": 10.0}
RECIPE = """
import torch
import unlearning as ul


def recipe(rows: ul.Rows = ul.table("people.csv", person="person")) -> ul.Recipe:
    frame = rows.pandas()
    inputs = torch.tensor(frame[["x", "y"]].to_numpy(), dtype=torch.float32) / 4.0
    targets = (frame.x > 3).astype("int64").to_numpy()
    return ul.Recipe(
        model=lambda: torch.nn.Linear(2, 2, bias=False),
        samples=rows.samples(inputs, targets, at=frame["__row"]),
        holdout=(torch.tensor([[1.0, 0.1], [0.2, 0.1]]), torch.tensor([1, 0])),
        loss="cross_entropy",
        training=ul.Training(epochs=60, learning_rate=0.1, weight_decay=0.2),
        vectors_for=[f"p{number}" for number in range(6)],
    )
"""
"""twelve people by descent; only p0 to p5 have a vector"""
CONVERGING = RECIPE.replace("epochs=60, learning_rate=0.1", "epochs=0, converge=1e-8")


@pytest.fixture
def world(world: World, folder: Path) -> World:
    lay_out(folder, range(12), RECIPE)
    return world.configured(recipes=folder)


def whose(world: World, model_id: str) -> set[str]:
    """Return the people (p0, ...) who have a vector in the model's generation, and a sample."""
    names = {subject_digest(world.storage.pepper, TENANT, f"p{number}"): f"p{number}" for number in range(12)}
    here = world.generation(model_id).id
    with world.database.read() as session:
        rows = session.scalars(
            select(Membership.subject_digest)
            .join(StoredVector, StoredVector.holder == Membership.holder)
            .where(Membership.generation_id == here, StoredVector.generation_id == here)
        )
        return {names[row] for row in rows}


@SQLITE
def test_the_chosen_alone_have_vectors(world: World) -> None:
    model_id = world.live("rows", **FALLBACK)
    assert whose(world, model_id) == {f"p{number}" for number in range(6)}


@pytest.mark.both_engines
def test_in_one_batch_the_chosen_are_forgotten_at_once_and_the_others_by_a_retrain(world: World) -> None:
    model_id = world.live("rows", **FALLBACK)
    before = world.generation(model_id).id
    chosen, other = world.delete("p1"), world.delete("p9")
    world.work(model_id)
    task, waits = world.task(chosen), world.task(other)
    assert (task.status, task.method, task.samples) == ("completed", "recollection", 3)
    assert (waits.status, waits.reason) == ("queued", "awaiting_retrain")
    assert world.head(model_id).number == 2 and world.generation(model_id).id == before
    world.work(model_id)
    assert world.request(other).status == "completed" and world.task(other).method == "retrain"
    assert world.generation(model_id).id != before
    assert whose(world, model_id) == {"p0", "p2", "p3", "p4", "p5"}
    third = world.delete("p4")
    world.work(model_id)
    assert (world.task(third).status, world.task(third).method) == ("completed", "recollection")


@SQLITE
def test_someone_without_a_vector_who_asks_during_the_preparation_is_trained_without(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = world.register("rows", **FALLBACK)
    requests: list[str] = []
    trainings = []

    def prepared(*arguments: Any) -> Any:
        trainings.append(arguments)
        if not requests:
            requests.append(world.delete("p9"))
        return whole(*arguments)

    whole = prepare._prepared
    monkeypatch.setattr(prepare, "_prepared", prepared)
    world.work(model_id)
    assert len(trainings) == 2
    assert world.model(model_id).status == "live", world.model(model_id).reason
    assert world.request(requests[0]).status == "completed"
    assert world.generation(model_id).report["kept_out"]["requests"][0]["samples"] == 1, "the one unit of their rows"


@SQLITE
@pytest.mark.parametrize("policy", [{}, {**FALLBACK, "guarantee": "calibrated"}], ids=["no fallback", "calibrated"])
def test_a_policy_that_could_not_forget_the_others_is_refused(
    world: World, folder: Path, policy: dict[str, object]
) -> None:
    lay_out(folder, range(12), CONVERGING)
    model_id = world.register("rows", **{"threshold": 10.0, **policy})
    world.work(model_id)
    assert world.model(model_id).status == "refused"
    assert "vectors_for" in (world.model(model_id).reason or "")
