"""Methods that train nothing anew, over rows that the service hands to worlds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load
from sqlalchemy import delete

import unlearning as ul
from expunge_service.infra.tables import Removal, StoredVector
from expunge_service.models import commitments
from tests.workers.rows.data import EVERYBODY, digest_of, forget, lay_out, published, trained_on
from tests.workers.rows.test_judge import PLAIN as HEAD
from tests.workers.worlds import World
from unlearning.accounting.certificate import Guarantee
from unlearning.methods import load as load_method
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import ForgetSet, Vectors

RECIPE = """
import torch
import unlearning as ul


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(2, {width})
        self.out = torch.nn.Linear({width}, 2)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))


def features(frame):
    return torch.tensor(frame[["x", "y"]].to_numpy(), dtype=torch.float32) / 4.0


def recipe(rows: ul.Rows = ul.table("people.csv", person="person", aside=0.2)) -> ul.Recipe:
    frame = rows.pandas()
    x = features(frame){scaled}
    return ul.Recipe(
        model=Net,
        samples=rows.samples(x, (frame.x > 3).astype("int64").to_numpy(), at=frame["__row"]),
        holdout=lambda aside: (features(aside.pandas()), torch.tensor((aside["x"] > 3).astype("int64"))),
        loss="cross_entropy",
        training=ul.Training(epochs={epochs}, batch_size=20, learning_rate=0.05, weight_decay=0.01),
    )
"""
NETWORK = RECIPE.format(width=3, scaled="", epochs=4)
SCALED = RECIPE.format(width=3, scaled="\n    x = x - x.mean(0)", epochs=4)
WEIGHED = NETWORK.replace(
    'at=frame["__row"])', 'at=frame["__row"], weight=1 / frame.groupby("word").word.transform("size"))'
)
BESIDE_ITSELF = NETWORK.replace(
    "self.out = torch.nn.Linear(3, 2)", "self.out = torch.nn.Linear(3, 2)\n        self.kept = [self.out.weight]"
).replace(
    "return self.out(torch.tanh(self.hidden(x)))",
    "return torch.nn.functional.linear(torch.tanh(self.hidden(x)), self.kept[0], self.out.bias)",
)
"""its forward reads a parameter that the module keeps in a list, beside the one that is trained"""
METHODS = ("recollection", "safe", "cns", "mini", "rewind")


def weights(world: World, model_id: str) -> torch.Tensor:
    """The published weights in one row."""
    tensors = load(published(world, model_id))
    return torch.cat([tensors[name].reshape(-1) for name in sorted(tensors)])


@pytest.mark.parametrize("method", ["retrain", "safe"])
def test_a_model_whose_outputs_do_not_follow_from_its_weights_is_refused(
    world: World, folder: Path, method: str
) -> None:
    lay_out(folder, recipe=BESIDE_ITSELF)
    world = world.configured(recipes=folder)
    model = world.register("rows", method)
    world.work(model)
    assert world.model(model).status == "refused"
    assert "do not follow from its parameters" in str(world.model(model).reason)


@pytest.mark.parametrize("method", METHODS)
def test_people_leave_one_by_one_and_together(world: World, folder: Path, method: str) -> None:
    lay_out(folder, recipe=NETWORK)
    world = world.configured(recipes=folder).limited(distance_left=1e9)
    model_id = world.live("rows", method)
    first, second, third, fourth = trained_on(world)[:4]
    for leaving in ((first,), (second, third), (fourth,)):
        before = weights(world, model_id)
        forget(world, model_id, *leaving)
        assert not torch.equal(weights(world, model_id), before)
    head = world.head(model_id)
    assert (head.number, head.claim["guarantee"]) == (4, "none")
    assert head.holdout_accuracy is not None
    assert head.claim["world"]["walls"] == "new root"


@pytest.mark.parametrize("method", ["retrain", "shards"])
def test_a_model_that_the_service_trains_is_exact(world: World, folder: Path, method: str) -> None:
    """Also where a column is scaled by all rows."""
    lay_out(folder, recipe=SCALED)
    world = world.configured(recipes=folder)
    held = world.live("rows", method, name="held")
    leaving = trained_on(world)[0]
    forget(world, held, leaving)
    after = published(world, held)
    lay_out(folder, (person for person in EVERYBODY if person != leaving), SCALED)
    never = world.live("rows", method, name="never")
    assert published(world, never) == after
    assert world.head(held).claim["guarantee"] == "exact" and world.head(held).holdout_accuracy is not None


def test_a_step_that_is_chosen_by_nobody_is_refused(world: World, folder: Path) -> None:
    lay_out(folder, recipe=NETWORK.replace(", aside=0.2", ""))
    world = world.configured(recipes=folder)
    model_id = world.register("rows", "safe")
    world.work(model_id)
    assert "safe chooses its step by people who are kept apart, and no source keeps any" in world.model(model_id).reason
    assert world.live("rows", "safe", name="told", options={"reach": 0.1})


@pytest.mark.parametrize("recipe", [SCALED, WEIGHED], ids=["scaled", "weighed"])
def test_samples_that_moved_with_who_leaves_are_trained_again(world: World, folder: Path, recipe: str) -> None:
    lay_out(folder, recipe=recipe)
    world = world.configured(recipes=folder).limited(distance_left=1e9)
    held = world.live("rows", "recollection", name="held", fallback="retrain")
    leaving = trained_on(world)[0]
    request = world.delete(f"p{leaving}", models=("held",))
    for _ in range(3):  # it finds that they moved, plans a retrain, and trains
        world.work(held)
    head = world.head(held)
    assert (world.request(request).status, head.method, head.claim["guarantee"]) == ("completed", "retrain", "exact")
    lay_out(folder, (person for person in EVERYBODY if person != leaving), recipe)
    never = world.live("rows", "retrain", name="never")
    assert torch.equal(weights(world, never), weights(world, held))


def by_the_library(written: ul.Recipe, name: str, people: Sequence[str], leaving: Sequence[str]) -> list[torch.Tensor]:
    """The weights before noise: trained on ``people`` in this process, and when ``leaving`` were forgotten."""
    samples = written.samples.examples()

    def of(some: Iterable[str]) -> torch.Tensor:
        chosen = frozenset((person,) for person in some)
        return samples.positions[written.samples.people.where(chosen.__contains__)]

    staying, apart = samples.only(of(people)), samples.without(of(people))
    problem = Problem(replace(written, holdout=(apart.inputs, apart.targets)))
    method = load_method(name)().under(Guarantee.NONE, written)
    state = method.prepare(problem, staying, train(problem, staying))
    gone = of(leaving)
    forget = ForgetSet(frozenset(leaving), tuple(gone.tolist()), staying.only(gone), Vectors(state.vectors))
    after = method.forget(problem, state, forget, staying.without(gone), torch.Generator().manual_seed(0)).state
    return [state.weights, after.weights]


@pytest.mark.parametrize("method", METHODS)
def test_worlds_compute_what_the_library_does_in_this_process(world: World, folder: Path, method: str) -> None:
    lay_out(folder, recipe=NETWORK)
    world = world.configured(recipes=folder).limited(distance_left=1e9)
    model_id, people = world.live("rows", method), trained_on(world)
    before = world.state(world.head(model_id)).weights
    forget(world, model_id, *people[:2])
    states = [before, world.state(world.head(model_id)).weights]
    (folder / "whole.py").write_text(NETWORK.replace(", aside=0.2", ""))
    whole = world.recipe("whole")
    # The service names people by digests, and the trial of safe draws among the names.
    digests = [digest_of(world, int(person[1:])) for (person,) in whole.samples.people]
    named = replace(whole, samples=ul.Samples([*whole.samples.names], digests, *whole.samples.tensors()))
    trained, leaving = ([digest_of(world, person) for person in some] for some in (people, people[:2]))
    for ours, theirs in zip(states, by_the_library(named, method, trained, leaving), strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)
    assert not torch.allclose(*states, rtol=0, atol=1e-6)


def test_a_recollection_is_a_row_until_its_person_leaves(world: World, folder: Path) -> None:
    lay_out(folder, recipe=NETWORK)
    world = world.configured(recipes=folder).limited(distance_left=1e9)
    model_id = world.live("rows", "recollection")
    people = trained_on(world)
    assert len(world.rows_of(StoredVector)) == len(people)
    forget(world, model_id, *people[:3])
    assert len(world.rows_of(StoredVector)) == len(people) - 3


def test_a_sample_leaves_with_its_row(world: World, folder: Path) -> None:
    lay_out(folder, recipe=NETWORK.replace('person="person"', 'person="person", id="id"'))
    world = world.configured(recipes=folder).limited(distance_left=1e9)
    model_id = world.live("rows", "mini", granularity="sample")
    person, other = trained_on(world)[:2]
    request = world.delete(samples=[str(person * 3)])
    world.work(model_id)
    assert (world.request(request).status, world.head(model_id).samples) == ("completed", 1)
    forget(world, model_id, person, other)
    assert world.head(model_id).samples == 5


def test_a_sample_of_rows_without_names_is_not_deleted_while_the_rows_stay(world: World, folder: Path) -> None:
    """Or the new version would be trained on it, and say that it was not."""
    lay_out(folder, recipe=HEAD)
    world = world.configured(recipes=folder)
    model_id = world.live("rows", "newton", max_distance=1e-5, noise_std=0.01)
    request = world.delete(samples=[f"p{trained_on(world)[0]}#1"])
    world.work(model_id)
    assert (world.request(request).status, world.request(request).reason) == ("blocked", "needs_retrain")
    assert world.head(model_id).number == 1


@pytest.mark.parametrize("method", ["mini", "safe", "newton"])
def test_a_person_whose_rows_became_no_sample_can_leave(world: World, folder: Path, method: str) -> None:
    """The recipe looked at the outlier that it drops, and the mean follows from it."""
    recipe = HEAD if method == "newton" else NETWORK
    outlier = "    frame = rows.pandas()\n    frame = frame[frame.person != 'p39']\n"
    lay_out(folder, recipe=recipe.replace("    frame = rows.pandas()\n", outlier).replace(", aside=0.2", ""))
    world = world.configured(recipes=folder).limited(distance_left=1e9)
    policy = {"newton": {"max_distance": 1e-5, "noise_std": 0.01}, "safe": {"options": {"reach": 0.1}}}.get(method, {})
    model_id = world.live("rows", method, **policy)
    request = world.delete("p39")
    world.work(model_id)
    task = world.task(request)
    assert (task.status, task.reason, task.samples) == ("completed", None, 1)


def test_a_method_that_does_not_help_gives_way_to_a_retrain(world: World, folder: Path) -> None:
    lay_out(folder, recipe=NETWORK)
    world = world.configured(recipes=folder).limited(distance_left=1e-9)
    model_id = world.live("rows", "recollection", fallback="retrain")
    assert world.head(model_id).method == "retrain"
    forget(world, model_id, trained_on(world)[0])
    assert world.head(model_id).claim["guarantee"] == "exact"


def test_what_is_trained_follows_from_nobody_who_is_kept_apart(world: World, folder: Path) -> None:
    """Though their rows choose the length of the step, and the recipe would start its model from them."""
    looking = NETWORK.replace("def features(frame):", "APART = [0.0]\n\n\ndef features(frame):")
    looking = looking.replace(
        "holdout=lambda aside: (", "holdout=lambda aside: APART.append(float(aside['x'].mean())) or ("
    )
    looking = looking.replace(
        "        self.out = torch.nn.Linear(3, 2)\n",
        "        self.out = torch.nn.Linear(3, 2)\n        torch.nn.init.constant_(self.out.weight, APART[-1])\n",
    )
    assert "APART[-1]" in looking and "APART.append" in looking
    lay_out(folder, recipe=looking)
    world = world.configured(recipes=folder)
    held = world.live("rows", "safe", name="held")
    told = world.live("rows", "safe", name="told", options={"reach": 0.1})  # for this one nobody is handed over
    assert torch.equal(world.state(world.head(held)).weights, world.state(world.head(told)).weights)


def test_an_update_reads_only_a_manifest_that_is_what_was_published(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mark that is gone would bring the rows of somebody who left back."""
    monkeypatch.setattr(commitments, "ROWS", 3)
    lay_out(folder, recipe=HEAD)
    world = world.configured(recipes=folder)
    model_id = world.live("rows", "newton", max_distance=1e-5, noise_std=0.01)
    first, *_, last = trained_on(world)
    forget(world, model_id, first)
    with world.database.write() as session:
        assert session.execute(delete(Removal)).rowcount == 3
    request = world.delete(f"p{last}")
    world.work(model_id)
    assert (world.request(request).status, world.request(request).reason) == ("blocked", "tables_differ")


def test_newton_waits_where_a_tenth_of_the_samples_are_gone(world: World, folder: Path) -> None:
    lay_out(folder, recipe=HEAD)
    world = world.configured(recipes=folder)
    model_id = world.live("rows", "newton", max_distance=1e-5, noise_std=0.01)
    people = trained_on(world)
    lay_out(folder, (person for person in EVERYBODY if person not in people[:6]), HEAD)
    request = world.delete(f"p{people[-1]}")
    world.work(model_id)
    assert (world.request(request).status, world.request(request).reason) == ("blocked", "samples_changed")
