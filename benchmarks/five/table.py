"""Measure the table of one setting: every entrant, share, manner and seed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.five.entrants import ENTRANTS, NOTHING, RETRAINING, guarantee, reads
from benchmarks.five.results import commit
from benchmarks.five.settings import Setting
from expunge_lab.experiment.attacks import auc
from expunge_lab.experiment.replicas import reseeded
from unlearning import Problem, Recipe
from unlearning.model.method import Method
from unlearning.model.training import train
from unlearning.quality.distance_left import distance_left, reference_of
from unlearning.quality.simulate import choose, forget_set, left_by, release
from unlearning.types import Examples, ForgetSet, Learned, RecipeError, Refused, State

TOGETHER, ONE_BY_ONE = "together", "one at a time"
MANNERS = (TOGETHER, ONE_BY_ONE)
PLAIN = "renormalised"
"""the retraining that accuracies, the attack and the disagreement are compared with"""

WHO_LEAVES = 1000
"""Added to a seed. By the seed alone, those who leave would be those whom SAFE's preparation draws for its trial."""


@dataclass(frozen=True)
class Scene:
    """A trained model, the people who leave it, and the retrainings without them by their reference."""

    problem: Problem
    examples: Examples
    learned: Learned
    gone: ForgetSet
    rulers: dict[str, tuple[Tensor, float]] = field(default_factory=dict)

    def retrained(self, reference: str) -> tuple[Tensor, float]:
        """Return the weights (d,) of the same-order retraining, and its CPU seconds."""
        if reference not in self.rulers:
            retain = left_by(self.examples, self.gone)
            self.rulers[reference] = timed(
                lambda: train(self.problem, retain, planned=self.examples.positions, reference=reference).weights
            )
        return self.rulers[reference]

    def figures(self, w: Tensor, reference: str, seconds: float) -> dict[str, float]:
        """Return one seed's figures of the weights w (d,). Accuracies and disagreement are in %."""
        problem, (x, y) = self.problem, self.problem.recipe.holdout
        w = w.to(problem.dtype)
        plain = self.retrained(PLAIN)[0]
        retain, gone = left_by(self.examples, self.gone), self.examples.only(torch.tensor(self.gone.positions))
        with torch.no_grad():
            answers, again = (problem.outputs(each.to(problem.dtype), x).argmax(dim=1) for each in (w, plain))
            seen, unseen = (-problem.sample_losses(w, *part) for part in ((gone.inputs, gone.targets), (x, y)))
        parts = {
            "retained": (retain.inputs, retain.targets),
            "forgotten": (gone.inputs, gone.targets),
            "unseen": (x, y),
        }
        accuracies = {name: 100 * float(problem.accuracy(w, *part) or 0.0) for name, part in parts.items()}
        return {
            "distance left": distance_left(self.learned.weights, w, self.retrained(reference)[0]),
            "to the plain retraining": distance_left(self.learned.weights, w, plain),
            **accuracies,
            "AUC": auc(seen, unseen),
            "disagreement": 100 * float((answers != again).double().mean()),
            "seconds": seconds,
        }


@dataclass
class Row:
    """A row of a case as it grows, seed by seed. Once an entrant refused, that is the row."""

    name: str
    figures: dict[str, list[float]] = field(default_factory=dict)
    refused: str = ""

    def add(self, measured: dict[str, float]) -> None:
        for name, value in measured.items():
            self.figures.setdefault(name, []).append(value)


def measured(
    setting: Setting, recipe: Recipe, shares: Sequence[float], seeds: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield the setting's table as JSON has it after each seed, so that an interrupted run keeps those that ended."""
    names = (NOTHING, RETRAINING, *ENTRANTS)
    cases = {(share, manner): {name: Row(name) for name in names} for share in shares for manner in MANNERS}
    costs: dict[str, dict[str, Any]] = {name: {"seconds before": []} for name in names}
    counts: dict[str, Any] = {}
    for count, seed in enumerate(seeds, 1):
        problem = Problem(reseeded(recipe, seed))
        examples = problem.recipe.samples.examples()
        learned, training_seconds = timed(partial(train, problem, examples))
        counts = {"weights": problem.dimension, "samples": len(examples)}
        counts |= {"people": len(examples.people.distinct()), "unseen": len(problem.recipe.holdout[0])}
        costs[RETRAINING].setdefault("training seconds", []).append(training_seconds)
        leaving = {share: _leaving(examples, share, seed) for share in shares}
        scenes = {share: Scene(problem, examples, learned, gone) for share, gone in leaving.items()}
        for (share, _), rows in cases.items():
            scene = scenes[share]
            rows[NOTHING].add(scene.figures(learned.weights, PLAIN, 0.0))
            weights, seconds = scene.retrained(PLAIN)
            rows[RETRAINING].add(scene.figures(weights, PLAIN, seconds))
        for name, method in ENTRANTS.items():
            _enter(name, method, scenes, cases, costs[name])
        yield {
            "data": setting.data,
            "model": setting.model,
            "says": setting.says,
            "at": datetime.now(UTC).date().isoformat(),
            "commit": commit(),
            "seeds": count,
            **counts,
            "costs": costs,
            "cases": [
                {"share": share, "manner": manner, "rows": [vars(row) for row in rows.values()]}
                for (share, manner), rows in cases.items()
            ],
        }


def _enter(
    name: str,
    method: Method,
    scenes: dict[float, Scene],
    cases: dict[tuple[float, str], dict[str, Row]],
    costs: dict[str, Any],
) -> None:
    """Prepare one entrant on one seed's model, let the people of every case leave it, and add the figures."""
    first = next(iter(scenes.values()))
    problem, examples, learned = first.problem, first.examples, first.learned
    costs |= {"reads": reads(method), "guarantee": guarantee(method, problem)}
    try:
        state, seconds = timed(lambda: method.prepare(problem, examples, learned))
    except (Refused, RecipeError) as error:
        for rows in cases.values():
            rows[name].refused = str(error)
        return
    costs["seconds before"].append(seconds)
    costs |= _bytes_of(state)
    for (share, manner), rows in cases.items():
        try:
            w, spent = _forgotten(method, scenes[share], state, manner)
            rows[name].add(scenes[share].figures(w, reference_of(state), spent))
        except (Refused, RecipeError) as error:
            rows[name].refused = str(error)


def _forgotten(method: Method, scene: Scene, state: State, manner: str) -> tuple[Tensor, float]:
    """Return the weights after all have left, and the CPU seconds of an update, after one that warms up."""
    people = sorted(scene.gone.people)
    updates = [scene.gone] if manner == TOGETHER else [forget_set(scene.examples, [person]) for person in people]
    generator = torch.Generator().manual_seed(0)
    release(method, scene.problem, state, updates[0], left_by(scene.examples, updates[0]), generator=generator)
    retain, spent = scene.examples, 0.0
    for update in updates:
        retain = left_by(retain, update)
        work = partial(release, method, scene.problem, state, update, retain, generator=generator)
        forgotten, seconds = timed(work)
        state, spent = forgotten.state, spent + seconds
    return state.weights, spent / len(updates)


def _leaving(examples: Examples, share: float, seed: int) -> ForgetSet:
    count = max(1, round(share * len(examples)))
    return choose(examples, count, torch.Generator().manual_seed(WHO_LEAVES + seed))


def _bytes_of(state: State) -> dict[str, int]:
    """Count what is kept: of one person's vector, and of what serves all, the weights included."""
    shared = (state.weights, *state.tensors.values())
    vectors = list(state.vectors.values())
    return {
        "bytes for a person": vectors[0].nbytes if vectors else 0,
        "bytes for all": sum(each.nbytes for each in shared),
    }


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return what ``work`` returns, and its CPU seconds."""
    start = time.process_time()
    result = work()
    return result, time.process_time() - start
