"""Many trainings of one recipe, each unlearned: what U-LiRA and KLoM are computed from. Made when asked for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from expunge_lab.experiment.attacks import confidence
from expunge_lab.experiment.rulers.klom import klom
from expunge_lab.experiment.rulers.u_lira import u_lira_accuracy
from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.quality.simulate import forget_set, left_by, release
from unlearning.recipe import Recipe
from unlearning.types import Examples, ForgetSet, Learned

APART = 10_000
"""between the seeds of replicas, so that none is that of an evaluation"""


@dataclass(frozen=True)
class Replica:
    """A model trained with another seed on ``examples``, of whom ``forget`` are to be forgotten."""

    problem: Problem
    examples: Examples
    forget: ForgetSet
    learned: Learned


@dataclass(frozen=True)
class Replicas:
    """The replicas of a forget set, shared by all methods: ``halved`` for U-LiRA, ``whole`` and oracles for KLoM."""

    problem: Problem
    examples: Examples
    forget: ForgetSet
    halved: int
    whole: int
    seed: int
    oracles: dict[str, list[tuple[Problem, Tensor]]] = field(default_factory=dict)
    """models that never saw the forgotten, by reference: trained once"""

    def u_lira(self, method: Method | None, noise_std: float) -> float | None:
        """Return the attack's accuracy on the forgotten samples; None where it is left out, or one person is forgotten.

        ``method`` None is doing nothing. Weights are attacked with noise of ``noise_std``.
        """
        if not self.halved or len(self.forget.people) < 2:
            return None
        seen = [
            self._seen(self._unlearned(each, method, noise_std, place)) for place, (each, _) in enumerate(self._halves)
        ]
        inside = [mask for _, mask in self._halves]
        return u_lira_accuracy(torch.stack(seen), torch.stack(inside))

    def klom(self, method: Method | None, reference: str, noise_std: float) -> float | None:
        """Return the divergence on the forgotten samples; None where it is left out or not defined.

        A method that trains in its own order has none: the oracles are trained in the recipe's.
        """
        if not self.whole or (method is not None and method.trains):
            return None
        unlearned = [
            self._seen(self._unlearned(each, method, noise_std, place)) for place, each in enumerate(self._trained)
        ]
        oracles = [
            self._seen((problem, noisy(weights, noise_std, self.whole + place)))
            for place, (problem, weights) in enumerate(self._retrained(reference))
        ]
        return klom(torch.stack(oracles), torch.stack(unlearned))

    @cached_property
    def _gone(self) -> Examples:
        return self.examples.only(torch.tensor(self.forget.positions))

    @cached_property
    def _halves(self) -> list[tuple[Replica, Tensor]]:
        """Train on half of the others and half of the forgotten; each forgotten person is in half of the replicas.

        Returns each replica with a mask (m,) over the forgotten samples: who of them it was trained on.
        """
        generator = torch.Generator().manual_seed(self.seed)
        others = sorted(self.examples.people.distinct() - self.forget.people)
        people, found = sorted(self.forget.people), []
        for pair in range(self.halved // 2):
            chosen = _half(people, generator)
            for place, inside in enumerate((chosen, frozenset(people) - chosen)):
                pool = self.examples.only(forget_positions(self.examples, _half(others, generator) | inside))
                mask = self._gone.people.where(inside.__contains__)
                found.append((self._replica(2 * pair + place, pool, forget_set(pool, inside)), mask))
        return found

    @cached_property
    def _trained(self) -> list[Replica]:
        return [self._replica(self.halved + each, self.examples, self.forget) for each in range(self.whole)]

    def _retrained(self, reference: str) -> list[tuple[Problem, Tensor]]:
        """Train models that never saw the forgotten, with other seeds again."""
        if reference not in self.oracles:
            retain, first = left_by(self.examples, self.forget), self.halved + self.whole
            problems = [self._problem(first + each) for each in range(self.whole)]
            self.oracles[reference] = [
                (problem, train(problem, retain, planned=self.examples.positions, reference=reference).weights)
                for problem in problems
            ]
        return self.oracles[reference]

    def _replica(self, number: int, examples: Examples, forget: ForgetSet) -> Replica:
        problem = self._problem(number)
        return Replica(problem, examples, forget, train(problem, examples))

    def _problem(self, number: int) -> Problem:
        return Problem(reseeded(self.problem.recipe, APART * (number + 1)), self.problem.device)

    def _unlearned(self, each: Replica, method: Method | None, noise_std: float, number: int) -> tuple[Problem, Tensor]:
        problem, weights = _released(each, method, self.seed)
        return problem, noisy(weights, noise_std, number)

    def _seen(self, model: tuple[Problem, Tensor]) -> Tensor:
        return confidence(*model, self._gone.inputs, self._gone.targets).cpu()


def reseeded(recipe: Recipe, seed: int) -> Recipe:
    """Return the recipe with another seed; one that brings its weights is returned as it is."""
    if recipe.train is not None:
        return replace(recipe, seed=recipe.seed + seed)
    if recipe.weights is None:
        return replace(recipe, training=replace(recipe.training, seed=recipe.training.seed + seed))
    return recipe


def noisy(w: Tensor, noise_std: float, seed: int) -> Tensor:
    """Return w (d,) with normal noise of ``noise_std``, by a seed."""
    if noise_std == 0.0:
        return w
    generator = torch.Generator().manual_seed(0x9E3779B9 + seed)
    return w + (noise_std * torch.randn(len(w), dtype=torch.float64, generator=generator)).to(w)


def forget_positions(examples: Examples, people: frozenset[str]) -> Tensor:
    """Return the positions of all samples of these people."""
    return examples.positions[examples.people.where(people.__contains__).to(examples.positions.device)]


def _half(people: list[str], generator: torch.Generator) -> frozenset[str]:
    order = torch.randperm(len(people), generator=generator).tolist()
    return frozenset(people[place] for place in order[: (len(people) + 1) // 2])


def _released(each: Replica, method: Method | None, seed: int) -> tuple[Problem, Tensor]:
    if method is None:
        return each.problem, each.learned.weights
    problem, learned = each.problem, each.learned
    if method.trains:
        problem = Problem(method.recipe(problem.recipe), problem.device)
        learned = Learned(problem.initial())
    state = method.prepare(problem, each.examples, learned)
    retain, generator = left_by(each.examples, each.forget), torch.Generator().manual_seed(seed)
    return problem, release(method, problem, state, each.forget, retain, generator=generator).state.weights
