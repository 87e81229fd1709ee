"""Many trainings of one recipe, each unlearned: what U-LiRA and KLoM are computed from. Made when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from expunge_lab.experiment.attacks import confidence
from expunge_lab.experiment.rulers.klom import klom
from expunge_lab.experiment.rulers.u_lira import u_lira_accuracy
from unlearning.model.method import KeepsVectors, Method
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.quality.distance_left import reference_of
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
class Version:
    """Weights (d,) after an update or a retraining; ``reference`` names the retraining that they approximate."""

    problem: Problem
    weights: Tensor
    reference: str = "renormalised"

    def noisy(self, noise_std: float, seed: int) -> Version:
        """Return the version with normal noise of ``noise_std``, by a seed."""
        return replace(self, weights=noisy(self.weights, noise_std, seed))


@dataclass(frozen=True)
class Replicas:
    """The replicas of a forget set, shared by all methods: ``halved`` for U-LiRA, ``whole`` and oracles for KLoM."""

    problem: Problem
    examples: Examples
    forget: ForgetSet
    halved: int
    whole: int
    seed: int
    oracles: dict[str, list[Version]] = field(default_factory=dict)
    """models that never saw the forgotten, by reference: trained once"""
    lone_vectors: bool = False
    """Spare vectors of people who stay: they count as one person where a method keeps a vector for each. True only for
    methods whose vectors know nothing of other people."""

    def u_lira(self, method: Method | None, noise_std: float) -> float | None:
        """Return the attack's accuracy on the forgotten samples; None where it is left out, or one person is forgotten.

        ``method`` None is doing nothing. Weights are attacked with noise of ``noise_std``.
        """
        if not self.halved or len(self.forget.people) < 2:
            return None
        return u_lira_accuracy(self._seen(self.halved_versions(method, noise_std)), self.inside)

    def klom(self, method: Method | None, reference: str, noise_std: float) -> float | None:
        """Return the divergence on the forgotten samples; None where it is left out or not defined."""
        if not self.whole:
            return None
        oracles = [each.noisy(noise_std, self.whole + place) for place, each in enumerate(self.retrained(reference))]
        return klom(self._seen(oracles), self._seen(self.versions(method, noise_std)))

    def versions(self, method: Method | None, noise_std: float = 0.0) -> list[Version]:
        """Forget everyone of the forget set in each of the ``whole`` replicas."""
        return self._unlearned(self._trained, method, noise_std)

    def halved_versions(self, method: Method | None, noise_std: float = 0.0) -> list[Version]:
        """Forget in each of the ``halved`` replicas those of the forget set whom it was trained on."""
        return self._unlearned([replica for replica, _ in self._halves], method, noise_std)

    @property
    def inside(self) -> Tensor:
        """Return who of the forgotten samples each halved replica was trained on, (k, m) bool."""
        return torch.stack([mask for _, mask in self._halves])

    def retrained(self, reference: str) -> list[Version]:
        """Train ``whole`` models that never saw the forgotten, with other seeds again."""
        if reference not in self.oracles:
            retain, first = left_by(self.examples, self.forget), self.halved + self.whole
            problems = [self._problem(first + each) for each in range(self.whole)]
            self.oracles[reference] = [
                Version(problem, train(problem, retain, planned=self.examples.positions, reference=reference).weights)
                for problem in problems
            ]
        return self.oracles[reference]

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

    def _replica(self, number: int, examples: Examples, forget: ForgetSet) -> Replica:
        problem = self._problem(number)
        return Replica(problem, examples, forget, train(problem, examples))

    def _problem(self, number: int) -> Problem:
        return Problem(reseeded(self.problem.recipe, APART * (number + 1)), self.problem.device)

    def _unlearned(self, replicas: Sequence[Replica], method: Method | None, noise_std: float) -> list[Version]:
        return [
            _released(each, method, self.seed, self.lone_vectors).noisy(noise_std, place)
            for place, each in enumerate(replicas)
        ]

    def _seen(self, versions: Sequence[Version]) -> Tensor:
        return margins(versions, self._gone.inputs, self._gone.targets)


def margins(versions: Sequence[Version], x: Tensor, y: Tensor) -> Tensor:
    """Return the confidence of each version in each sample's class, (k, n): KLoM's margins under cross-entropy."""
    return torch.stack([confidence(each.problem, each.weights, x, y).cpu() for each in versions])


def reseeded(recipe: Recipe, seed: int) -> Recipe:
    """Return the recipe with another seed; one that brings its weights is returned as it is."""
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


def _released(each: Replica, method: Method | None, seed: int, lone_vectors: bool) -> Version:
    if method is None:
        return Version(each.problem, each.learned.weights)
    problem, examples = each.problem, each.examples
    if lone_vectors and isinstance(method, KeepsVectors):
        examples = _staying_as_one(examples, each.forget)
    state = method.prepare(problem, examples, each.learned)
    retain, generator = left_by(examples, each.forget), torch.Generator().manual_seed(seed)
    weights = release(method, problem, state, each.forget, retain, generator=generator).state.weights
    return Version(problem, weights, reference_of(state))


def _staying_as_one(examples: Examples, forget: ForgetSet) -> Examples:
    """Return the examples with one owner for everything that nobody of the forget set owns."""
    names = [person if person in forget.people else "" for person in examples.people]
    return Examples.of(examples.positions, examples.inputs, examples.targets, names)
