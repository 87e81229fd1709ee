"""What a deletion costs with each recipe of ``examples/``, as a share of training the same model again.

Each recipe is trained as published. Then, for each of some people drawn by a fixed seed, that person alone is forgotten
by the recipe's method, from the first state; where the guarantee is ``proved``, with the steps that bring the weights
below the greatest distance of 1e-5. After every second person the model is also trained again without that person, in
one piece, as ``retrain`` does. Both are CPU seconds in one thread, and call the recipe on the rows of those who stay:
of the processes that make the parts; under ``proved`` of this one. The service's own work (database, encryption, files,
starting processes, reading tables) is in neither.

``python -m benchmarks.example_recipes [name ...]`` prints the table.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from pathlib import Path
from runpy import run_path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch

from benchmarks.crowd import one_thread
from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.settings import Settings, ensure_secrets
from expunge_service.infra.tenants import DEFAULT_TENANT
from expunge_workers.check.checks import PartsInMemory
from expunge_workers.runtime import recipes
from expunge_workers.runtime.build import staying_aside
from expunge_workers.runtime.model import OpenModel, forget_by_parts, open_model
from expunge_workers.runtime.worlds import readers
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import Policy
from unlearning.bounds.minimiser import Minimiser
from unlearning.methods import load
from unlearning.model.linear_head import head_of
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.recipe import Recipe
from unlearning.rows import Rows, open_rows, set_apart
from unlearning.types import ForgetSet, Forgotten, Learned, State

Result = TypeVar("Result")
FOLDER = Path(__file__).parents[1] / "examples"
METHODS = {
    "trees": "shards",
    "tabular": "newton",
    "estimator": "newton",
    "scattering": "newton",
    "batchnorm": "late",
    "text": "shards",
    "text/adapters": "shards",
    "recommender": "late",
    "embeddings": "retrain",
    "mixed": "late",
}
"""each example, and the method that its first lines name"""
PROVED = ("tabular", "estimator", "scattering")
MAX_DISTANCE, PEOPLE, SEED, SALT = 1e-5, 20, 0, b"people who are kept apart"


@dataclass(frozen=True)
class Measured:
    """Accuracies of one model on the holdout, and CPU seconds of each deletion and each retraining."""

    retrained: float
    published: float
    after: list[float]
    deletions: list[float]
    retrainings: list[float]

    @property
    def shares(self) -> list[float]:
        """Return the cost of each deletion over the median retraining."""
        return [each / statistics.median(self.retrainings) for each in self.deletions]


def measured_with_proof(name: str, people: int = PEOPLE) -> Measured:
    """Measure the example ``name``, whose guarantee is ``proved``, on ``people`` people."""
    path = recipes.find(FOLDER, name)
    recipe_of = run_path(str(path))["recipe"]
    [source] = [parameter.default for parameter in signature(recipe_of).parameters.values()]

    def read_without(*leaving: str) -> tuple[Rows, Rows]:
        return set_apart(open_rows(source, path.parent, without=frozenset(leaving), salt=SALT), source.aside)

    trained_on, apart = read_without()
    recipe, method, bound = on_features(recipe_of(trained_on)), load(METHODS[name])(), Minimiser()
    examples = recipe.samples.examples()
    state = method.prepare(Problem(recipe), examples, train(Problem(recipe), examples))

    def forget(person: str, staying: Rows) -> tuple[Recipe, torch.Tensor]:
        recipe = recipe_of(staying)
        problem, leaving = Problem(on_features(recipe)), torch.tensor([name == person for name in examples.people])
        retain = replace(problem.recipe.samples.examples(), positions=examples.positions[~leaving])
        forget_set = ForgetSet(frozenset({person}), tuple(examples.positions[leaving].tolist()))
        forgotten = method.forget(problem, state, forget_set, retain, torch.Generator())
        return recipe, bound.refine(problem, forgotten, retain, MAX_DISTANCE, {})[0]

    def retrain(staying: Rows) -> tuple[Recipe, torch.Tensor]:
        recipe = recipe_of(staying)
        return recipe, train(Problem(recipe), recipe.samples.examples()).weights

    deletions, retrainings, after, retrained = [], [], [], 0.0
    for place, person in enumerate(random.Random(SEED).sample(sorted(examples.people.distinct()), people)):
        staying, _ = read_without(person)
        made, seconds = timed(partial(forget, person, staying))
        deletions.append(seconds)
        after.append(accuracy(*made, apart))
        if place % 2:
            made, seconds = timed(partial(retrain, staying))
            retrainings.append(seconds)
            retrained = accuracy(*made, apart)
    return Measured(retrained, accuracy(recipe_of(trained_on), state.weights, apart), after, deletions, retrainings)


def on_features(recipe: Recipe) -> Recipe:
    """Return the recipe of the model's last layer on what it is fed, which a judge is handed."""
    head = head_of(Problem(recipe).double())
    if head is None:
        raise ValueError("the model has no linear head")
    layer, (inputs, _) = head.layer, recipe.samples.tensors()
    features = head.features(inputs)[:, : layer.in_features]
    return replace(
        recipe,
        model=partial(torch.nn.Linear, layer.in_features, layer.out_features, layer.bias is not None),
        samples=replace(recipe.samples, inputs=features),
    )


def measured_by_parts(name: str, people: int = PEOPLE) -> Measured:
    """Measure the example ``name``, whose guarantee is ``exact``, on ``people`` people."""
    with TemporaryDirectory() as home, readers():
        settings = Settings(home=Path(home), recipes=FOLDER, device="cpu")
        ensure_secrets(settings)
        parts = PartsInMemory()
        model, plain = (opened(settings, name, method, parts) for method in (METHODS[name], "retrain"))
        problem, examples = model.problem, model.recipe.samples.examples()
        learned = Learned(problem.initial()) if model.method.trains else train(problem, examples)
        state = model.method.prepare(problem, examples, learned)
        deletions, retrainings, after, retrained = [], [], [], 0.0
        for place, person in enumerate(random.Random(SEED).sample(sorted(examples.people.distinct()), people)):
            gone = examples.positions[[each == person for each in examples.people]]
            kept, forget = examples.without(gone), ForgetSet(frozenset({person}), tuple(gone.tolist()))
            without, seconds = made(parts, partial(forget_by_parts, model, state, forget, kept))
            deletions.append(seconds)
            after.append(score(model, without))
            if place % 2:
                again, seconds = made(parts, partial(forget_by_parts, plain, state, forget, kept))
                retrainings.append(seconds)
                retrained = score(plain, again)
        return Measured(retrained, score(model, state), after, deletions, retrainings)


def opened(settings: Settings, name: str, method: str, parts: Any) -> OpenModel:
    now = int(time.time() * 1e6)
    model = open_model(settings, DEFAULT_TENANT, name, Policy(method), parts=parts, until=now)
    model.built.aside = staying_aside(
        Pepper.load(settings.pepper_file), DEFAULT_TENANT, model.built.units, lambda _: True
    )
    return model.under(Guarantee.EXACT)


def made(parts: PartsInMemory, act: Callable[[], Forgotten]) -> tuple[State, float]:
    """Return the state that ``act`` leaves, and the CPU seconds of the parts that it made, which are thrown away."""
    before = set(parts.made)
    state = act().state
    new = parts.made.keys() - before
    return state, sum(parts.made.pop(key).seconds for key in new)


def score(model: OpenModel, state: State) -> float:
    return model.problem.measured_by(state.weights)


def accuracy(recipe: Recipe, weights: torch.Tensor, apart: Rows) -> float:
    if not callable(recipe.holdout):
        raise TypeError("the holdout of a recipe with rows is a function of them")
    holdout = recipe.holdout(apart)
    measured = Problem(replace(recipe, holdout=holdout), dtype=weights.dtype).accuracy(weights, *holdout)
    if measured is None:
        raise ValueError("the recipe has no metric")
    return measured


def timed(act: Callable[[], Result]) -> tuple[Result, float]:
    """Return what ``act`` gives, and the CPU seconds of this process that it took."""
    start = time.process_time()
    result = act()
    return result, time.process_time() - start


def rows(names: tuple[str, ...] = tuple(METHODS)) -> Iterator[dict[str, Any]]:
    """Yield a row for each example: the mean cost of forgetting one person, over that of a retraining."""
    one_thread()
    for name in names:
        found = measured_with_proof(name) if name in PROVED else measured_by_parts(name)
        yield {
            "name": f"examples/{name}, {METHODS[name]}: cost of forgetting one person / a retraining",
            "value": statistics.mean(found.shares),
            "target": "reported",
            "unit": "ratio of CPU time",
            "met": None,
            "sides": {
                "least": min(found.shares),
                "median": statistics.median(found.shares),
                "most": max(found.shares),
                "deletion_cpu_s": statistics.mean(found.deletions),
                "retraining_cpu_s": statistics.median(found.retrainings),
                "accuracy_retrained": found.retrained,
                "accuracy": found.published,
                "accuracy_after": statistics.mean(found.after),
            },
        }


def main(names: list[str]) -> None:
    print(
        "| example | method | guarantee | one deletion / a retraining: mean (least to most) | retraining | accuracy |"
    )
    print("|---|---|---|---|---|---|")
    for name, row in zip(chosen := names or list(METHODS), rows(tuple(chosen)), strict=True):
        sides = row["sides"]
        cost = f"{row['value']:.2f} ({sides['least']:.2f} to {sides['most']:.2f})"
        guarantee = "proved" if name in PROVED else "exact"
        print(
            f"| {name} | {METHODS[name]} | {guarantee} | {cost} | {sides['retraining_cpu_s']:.2f} s | "
            f"{sides['accuracy']:.3f}; after {sides['accuracy_after']:.3f}; by `retrain` "
            f"{sides['accuracy_retrained']:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
