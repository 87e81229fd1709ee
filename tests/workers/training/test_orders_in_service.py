"""What `late` and `shards` do where few are left, and what registration and an estimate say of their cost."""

from __future__ import annotations

import pytest
import torch
from sqlalchemy.orm import Session

from expunge.service.infra.pseudonyms import subject_digest
from expunge.service.requests import intake
from expunge.service.requests.estimation import estimate
from expunge.workers.runtime.model import build
from tests.service.queue.test_batch import core_and_late
from tests.workers.training.test_own_training import published
from tests.workers.worlds import TENANT, World
from unlearning.accounting.policy import Policy
from unlearning.methods.shards import Shards

PEOPLE = [f"p{number}" for number in range(24)]


def test_a_core_of_nobody_is_said_and_not_trained(world: World) -> None:
    model_id = world.live("unshared", "late")
    before = world.head(model_id).id
    core, _ = core_and_late(world, model_id)
    requests = [world.delete(person) for person in core]
    world.work(model_id)
    assert {(world.task(each).status, world.task(each).reason) for each in requests} == {("blocked", "needs_retrain")}
    assert world.head(model_id).id == before


def test_where_the_core_is_nobody_the_fallback_retrains_without_phases(world: World) -> None:
    model_id = world.live("unshared", "late", fallback="retrain")
    core, _ = core_and_late(world, model_id)
    requests = [world.delete(person) for person in core]
    world.work(model_id)
    assert {world.task(each).reason for each in requests} == {"awaiting_retrain"}
    world.work(model_id)
    assert {world.task(each).status for each in requests} == {"completed"}
    generation = world.generation(model_id)
    assert (generation.method, generation.guarantee) == ("retrain", "exact")
    assert "Nobody is in phase" in (generation.report or {})["switched"]["why"]


def test_a_shard_of_nobody_keeps_its_start_as_in_a_cold_training(world: World) -> None:
    options = {"shards": 3, "slices": 2}
    model_id = world.live("unshared", "shards", name="deleted", options=options)
    bench = build(world.settings, TENANT, "unshared", Policy.from_json(world.model(model_id).policy))
    assert isinstance(bench.method, Shards)
    names = {person: subject_digest(world.storage.pepper, TENANT, person) for person in PEOPLE}
    first = [person for person, name in names.items() if bench.method._shard_of(bench.problem, (name,)) == 0]
    for person in first:
        world.delete(person, models=("deleted",))
    world.work(model_id)
    assert world.head(model_id).people == len(first)
    for person in first:
        world.delete(person)
    never = world.register("unshared", "shards", name="never", options=options, leave_out_forgotten=True)
    world.work(never)
    assert world.head(never).checkpoint == world.head(model_id).checkpoint
    assert all(bool(torch.isfinite(value).all()) for value in published(world, model_id).values())


@pytest.mark.parametrize("method", ["late", "shards"])
def test_when_everybody_asks_nothing_is_trained(world: World, method: str) -> None:
    model_id = world.live("unshared", method)
    requests = [world.delete(person) for person in PEOPLE]
    world.work(model_id)
    assert {(world.task(each).status, world.task(each).reason) for each in requests} == {("blocked", "no_data_left")}
    assert world.head(model_id).number == 1


def asked(session: Session, world: World, person: str) -> intake.NewRequest:
    return intake.decide(session, world.storage.pepper, TENANT, intake.Order(subject_id=person), intake.NO_WINDOWS)


def test_registration_and_an_estimate_say_what_an_update_repeats(world: World) -> None:
    model_id = world.live("unshared", "late")
    report = world.report(model_id)
    assert [row["requests"] for row in report["expected_repeats"]] == [1, 10], "there are 24 people"
    assert report["expected_repeats"][0]["share"] == pytest.approx(0.9 * 0.5 + 0.1)
    assert report["state_bytes"] > 2 * 4 * report["dimension"]
    assert len(report["dry_run"]) == 1 and 0.0 <= report["dry_run"][0]["accuracy"] <= 1.0
    with world.database.read() as session:
        ((_, cost),) = estimate(session, asked(session, world, "p1"))
    assert (cost.repeats, cost.seconds) == (pytest.approx(0.55), pytest.approx(0.55 * report["seconds"]))
    world.delete("p1")
    world.work(model_id)
    with world.database.read() as session:
        ((_, cost),) = estimate(session, asked(session, world, "p2"))
    assert cost.repeats == pytest.approx(0.55), "it follows from the options, not from the people"
