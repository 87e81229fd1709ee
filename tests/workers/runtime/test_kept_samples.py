"""Between two updates a worker keeps the samples that are still in the model, and nobody's who left it."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator

import pytest
import torch

from expunge.workers.app import Worker
from expunge.workers.runtime import model, recipes
from expunge.workers.runtime.model import Left, ModelCache
from expunge.workers.storage.manifest import FoundSamples
from expunge.workers.update import run
from expunge.workers.update.samples import UpdateSamples
from tests.workers import meanwhile
from tests.workers.update.test_update import entries
from tests.workers.worlds import World


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the recipes that were run, in order."""
    seen: list[str] = []
    load = recipes.load

    def counted(*given: object) -> recipes.LoadedRecipe:
        seen.append(str(given[1]))
        return load(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(recipes, "load", counted)
    yield seen


def updated(world: World, worker: Worker, model_id: str, person: str) -> str:
    request = world.delete(person)
    worker.work(model_id)
    return str(world.task(request).status)


def left(world: World, worker: Worker, model_id: str) -> Left | None:
    """What the worker's last update of the model left there."""
    found = worker._benches._kept.get(world.generation(model_id).id)
    return None if found is None else found.left


def kept(world: World, worker: Worker, model_id: str) -> FoundSamples:
    found = left(world, worker, model_id)
    assert found is not None and found.version_id == world.head(model_id).id and found.samples is not None
    return found.samples


def slow_twin(world: World, model_id: str) -> FoundSamples:
    """The retained samples of the current version, each found in the recipe by its digests."""
    world.delete("p11")
    job = world.claim(model_id)
    samples = recipes.load(world.settings.recipes, job.recipe).recipe.samples
    _, found = UpdateSamples(job, world.storage, world.settings, (), False, True).one_by_one(samples)  # type: ignore[misc]
    assert found is not None
    return found


def same(one: FoundSamples, other: FoundSamples) -> bool:
    a, b = one.examples, other.examples
    tensors = ((a.positions, b.positions), (a.inputs, b.inputs), (a.targets, b.targets))
    names = (one.ids, a.people, a.subjects) == (other.ids, b.people, b.subjects)
    return names and all(torch.equal(left, right) for left, right in tensors)


def test_the_second_update_does_not_run_the_recipe_and_reads_the_same_samples(world: World, runs: list[str]) -> None:
    model_id, worker = world.live(method="newton"), world.worker()
    assert updated(world, worker, model_id, "p3") == "completed"
    before = len(runs)
    assert updated(world, worker, model_id, "p5") == "completed"
    assert len(runs) == before
    assert same(kept(world, worker, model_id), slow_twin(world, model_id))


def test_an_update_from_kept_samples_gives_the_weights_that_one_from_the_recipe_gives(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before noise, which is drawn anew: both start from the same version and end in the same float64 weights."""
    model_id, worker = world.live(method="newton"), world.worker()
    updated(world, worker, model_id, "p3")
    world.delete("p5")
    job, computed = world.claim(model_id), []
    compute = run.compute

    def without_publishing(*given: object, **named: object) -> None:
        computed.append(compute(*given, **named).certified.state.weights)  # type: ignore[arg-type,union-attr]
        raise ArithmeticError

    monkeypatch.setattr(run, "compute", without_publishing)
    for models in (worker._benches, ModelCache(world.settings)):
        with pytest.raises(ArithmeticError):
            world.update(job, models)
    assert torch.equal(computed[0], computed[1])


def test_nobody_who_was_forgotten_is_in_the_memory_of_the_worker(world: World) -> None:
    """Every tensor of the process is searched for the rows, before and after, but for those that were there before.

    The recipe's holdout is a part of the tensor of all samples, and stays in memory without them.
    """
    gc.collect()
    others = [each for each in gc.get_objects() if type(each) is torch.Tensor]  # of tests that failed, for example
    _, subjects, inputs, _ = meanwhile.people()
    hers = [row.numpy().tobytes() for row, person in zip(inputs, subjects, strict=True) if person == "p5"]
    del inputs
    model_id, worker = world.live(method="newton"), world.worker()
    updated(world, worker, model_id, "p3")
    assert held_in_memory(hers, others), "the search finds what is there"
    assert updated(world, worker, model_id, "p5") == "completed"
    assert not held_in_memory(hers, others)


def held_in_memory(rows: list[bytes], others: list[torch.Tensor]) -> bool:
    gc.collect()
    ignored = {id(each) for each in others}
    found = (each for each in gc.get_objects() if type(each) is torch.Tensor and id(each) not in ignored)
    tensors = [each for each in found if each.dtype == torch.float32]
    return any(row in each.detach().cpu().contiguous().numpy().tobytes() for each in tensors for row in rows)


def test_samples_that_were_compared_a_day_ago_are_compared_again(
    world: World, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id, worker = world.live(method="newton"), world.worker()
    updated(world, worker, model_id, "p3")
    before, first = len(runs), kept(world, worker, model_id)
    worker._benches.drop_old(world.database)
    assert kept(world, worker, model_id) is first
    monkeypatch.setattr(model, "COMPARED_SECONDS", 0.0)
    worker._benches.drop_old(world.database)
    assert left(world, worker, model_id) is None
    assert updated(world, worker, model_id, "p5") == "completed"
    assert len(runs) == before + 1
    assert kept(world, worker, model_id).compared_at > first.compared_at
    assert same(kept(world, worker, model_id), slow_twin(world, model_id))


def test_two_models_in_turn_are_both_kept(world: World, runs: list[str]) -> None:
    worker = world.worker()
    models = [world.live(method="newton", name=name) for name in ("m", "other")]
    for model_id in models:
        updated_alone(world, worker, model_id, "p3")
    before = len(runs)
    for model_id in models:
        updated_alone(world, worker, model_id, "p5")
    assert len(runs) == before
    for model_id in models:
        assert same(kept(world, worker, model_id), slow_twin(world, model_id))


def updated_alone(world: World, worker: Worker, model_id: str, person: str) -> None:
    request = world.delete(person, models=(world.model(model_id).name,))
    worker.work(model_id)
    assert world.task(request).status == "completed"


def test_what_was_used_longest_ago_is_dropped_where_all_take_too_much(
    world: World, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = world.worker()
    models = [world.live(method="newton", name=name) for name in ("m", "other", "third")]
    updated_alone(world, worker, models[0], "p3")
    size = worker._benches._kept[world.generation(models[0]).id].size
    monkeypatch.setattr(model, "KEPT_BYTES", 2 * size)
    for model_id in (models[1], models[0], models[2]):
        updated_alone(world, worker, model_id, "p5")
    assert list(worker._benches._kept) == [world.generation(each).id for each in (models[0], models[2])]
    before = len(runs)
    updated_alone(world, worker, models[0], "p6")
    updated_alone(world, worker, models[1], "p6")
    assert len(runs) == before + 1


@pytest.mark.both_engines
def test_one_heartbeat_drops_every_model_that_another_worker_updated(world: World) -> None:
    """Two workers serve two models. What the first kept of both holds the person whom the second forgets."""
    gc.collect()
    others = [each for each in gc.get_objects() if type(each) is torch.Tensor]
    _, subjects, inputs, _ = meanwhile.people()
    hers = [row.numpy().tobytes() for row, person in zip(inputs, subjects, strict=True) if person == "p5"]
    del inputs
    first, second = world.worker(), world.worker()
    models = [world.live(method="newton", name=name) for name in ("m", "other")]
    third = world.live(method="newton", name="third")
    for model_id in (*models, third):
        updated_alone(world, first, model_id, "p3")
    updated_alone(world, first, third, "p5")
    for model_id in models:
        updated_alone(world, second, model_id, "p5")
    assert held_in_memory(hers, others), "the first worker still holds her"
    first._benches.drop_old(world.database)
    assert not held_in_memory(hers, others)
    assert [left(world, first, each) is None for each in (*models, third)] == [True, True, False]


@pytest.mark.parametrize("missing, changed", [(2, 0), (0, 1), (1, 1)])
def test_data_that_changed_outside_are_noticed_by_a_fresh_worker(world: World, missing: int, changed: int) -> None:
    model_id = world.live(method="newton")
    updated(world, world.worker(), model_id, "p3")
    meanwhile.DROPPED.update(["s0", "s1"][:missing])
    meanwhile.SCALE.update(dict.fromkeys(["s5"][:changed], 2.0))
    assert updated(world, world.worker(), model_id, "p5") == "blocked"
    entry = json.loads(entries(world, "update.blocked")[0].body)
    assert (entry["reasons"], entry["missing"], entry["changed"]) == (["samples_changed"], missing, changed)


def test_more_samples_than_fit_are_not_kept(world: World, runs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "KEPT_BYTES", 10)
    model_id, worker = world.live(method="newton"), world.worker()
    updated(world, worker, model_id, "p3")
    before = len(runs)
    assert updated(world, worker, model_id, "p5") == "completed"
    assert len(runs) == before + 1


def another_publishes(world: World, worker: Worker, model_id: str) -> None:
    """Another worker publishes, and the heart of this one beats."""
    world.delete("p7")
    world.work(model_id)
    worker._benches.drop_old(world.database)


def the_lease_is_lost(world: World, worker: Worker, model_id: str) -> None:
    """Another worker claims another model while this one reads its recipe."""
    other = world.live(method="newton", name="other", leave_out_forgotten=True)
    meanwhile.HAPPENINGS.extend([lambda: world.expire_lease(other), lambda: world.claim(other)])
    world.delete("p7", models=("other",))
    worker.work(other)


def a_preparation_begins(world: World, worker: Worker, model_id: str) -> None:
    worker.work(world.register(name="other"))


@pytest.mark.parametrize("event", [another_publishes, the_lease_is_lost, a_preparation_begins])
def test_what_was_kept_is_dropped_when(world: World, event: Callable[[World, Worker, str], None]) -> None:
    model_id, worker = world.live(method="newton"), world.worker()
    updated(world, worker, model_id, "p3")
    assert left(world, worker, model_id) is not None
    event(world, worker, model_id)
    assert left(world, worker, model_id) is None


def test_an_opened_model_holds_no_samples(world: World) -> None:
    model_id, worker = world.live(), world.worker()
    updated(world, worker, model_id, "p3")
    bench = next(iter(worker._benches._kept.values())).bench
    assert len(bench.recipe.samples) == len(bench.problem.recipe.samples) == 1
    assert bench.recipe.samples.people == (("none",),)
