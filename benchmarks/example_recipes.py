"""What a deletion costs with each recipe of ``examples/``, as a share of training the same model again.

Each recipe is trained as published. Then, for each of some people drawn by a fixed seed, that person alone is forgotten
by the recipe's method, from the first state; where the guarantee is ``proved``, with the steps that bring the weights
below the greatest distance of 1e-5. After every second person the model is also trained again without that person, in
one piece, as ``retrain`` does. Both are CPU seconds in one thread: of this process; where a recipe gets its rows, of
those that make the parts. The service's own work (database, encryption, files, starting processes) is in neither.

``python -m benchmarks.example_recipes [name ...]`` prints the table.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from expunge.service.infra.pseudonyms import Pepper
from expunge.service.infra.settings import Settings, ensure_secrets
from expunge.service.infra.tenants import DEFAULT_TENANT
from expunge.workers.check.rows import PartsInMemory
from expunge.workers.runtime import recipes
from expunge.workers.runtime.build import staying_aside
from expunge.workers.runtime.model import OpenModel, build_with_rows, forget_by_parts
from expunge.workers.runtime.worlds import readers
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import Policy
from unlearning.bounds.minimiser import Minimiser
from unlearning.methods import load
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import ForgetSet, Forgotten, Learned, State

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
MAX_DISTANCE, PEOPLE, SEED = 1e-5, 20, 0


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


def measured(name: str, people: int = PEOPLE) -> Measured:
    """Measure the example ``name`` on ``people`` people."""
    recipe = recipes.load(FOLDER, name).recipe
    method = load(METHODS[name])() if name in PROVED else load(METHODS[name])().under(Guarantee.EXACT, recipe)
    plain, problem, examples = Problem(recipe), Problem(method.recipe(recipe)), recipe.samples.examples()
    learned = Learned(problem.initial()) if method.trains else train(problem, examples)
    state = method.prepare(problem, examples, learned)
    bound = Minimiser() if name in PROVED else None
    deletions, retrainings, after, retrained = [], [], [], 0.0
    for place, person in enumerate(random.Random(SEED).sample(sorted(examples.people.distinct()), people)):
        gone = examples.positions[[each == person for each in examples.people]]
        kept, forget = examples.without(gone), ForgetSet(frozenset({person}), tuple(gone.tolist()))

        def update(forget: ForgetSet = forget, kept: Any = kept) -> torch.Tensor:
            weights = method.forget(problem, state, forget, kept, torch.Generator()).state.weights
            return bound.refine(problem, weights, kept, MAX_DISTANCE) if bound else weights

        weights, seconds = timed(update)
        deletions.append(seconds)
        after.append(accuracy(problem, State(weights)))
        if place % 2:
            again, seconds = timed(lambda kept=kept: train(plain, kept).weights)
            retrainings.append(seconds)
            retrained = accuracy(plain, State(again))
    return Measured(retrained, accuracy(problem, state), after, deletions, retrainings)


def measured_with_rows(name: str, people: int = PEOPLE) -> Measured:
    """Measure the example ``name``, which gets its rows, on ``people`` people."""
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
    model = build_with_rows(settings, DEFAULT_TENANT, name, Policy(method), parts=parts, until=now)
    model.built.aside = staying_aside(Pepper.load(settings.pepper_file), DEFAULT_TENANT, model.built.units, frozenset())
    return model.under(Guarantee.EXACT)


def made(parts: PartsInMemory, act: Callable[[], Forgotten]) -> tuple[State, float]:
    """Return the state that ``act`` leaves, and the CPU seconds of the parts that it made, which are thrown away."""
    before = set(parts.made)
    state = act().state
    new = parts.made.keys() - before
    return state, sum(parts.made.pop(key).seconds for key in new)


def score(model: OpenModel, state: State) -> float:
    return model.problem.measured_by(state.weights)


def accuracy(problem: Problem, state: State) -> float:
    return problem.cast(state.weights.dtype).accuracy(state.weights, *problem.recipe.holdout)


def timed(act: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, float]:
    """Return what ``act`` gives, and the CPU seconds of this process that it took."""
    start = time.process_time()
    result = act()
    return result, time.process_time() - start


def rows(names: tuple[str, ...] = tuple(METHODS)) -> Iterator[dict[str, Any]]:
    """Yield a row for each example: the mean cost of forgetting one person, over that of a retraining."""
    torch.set_num_threads(1)
    for name in names:
        found = measured(name) if name in PROVED else measured_with_rows(name)
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
