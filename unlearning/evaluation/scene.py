"""One seed of an evaluation: a trained model, who is forgotten, and what is computed once for all methods."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from unlearning.evaluation.attacks import Shadows, Signatures, shadows, signatures
from unlearning.evaluation.metrics import Instruments, Plan
from unlearning.evaluation.replicas import Replicas, reseeded
from unlearning.evaluation.rulers.unseen_people import Side, matched
from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.model.training import learn, train
from unlearning.quality.simulate import choose, left_by
from unlearning.recipe import Recipe
from unlearning.types import Examples, ForgetSet, Learned


@dataclass(frozen=True)
class Scene:
    """A trained model and its data; ``learned`` is what the recipe's training, or a method's own, left."""

    problem: Problem
    examples: Examples
    holdout: tuple[Tensor, Tensor]
    learned: Learned
    plan: Plan
    instruments: Instruments
    seed: int
    references: dict[tuple[str, tuple[int, ...]], tuple[Tensor, float]] = field(default_factory=dict)
    """retrained weights and seconds, by reference and forget set: measured once, used by every method"""
    order: Method | None = None
    """trains the model in its own order; None: the recipe does"""
    label: int | None = None
    """the class that a stream forgets; None: people are forgotten"""

    @cached_property
    def marks(self) -> Signatures:
        """Draw the difference attack's candidates, in random order, and what each one's deletion would look like."""
        names = sorted(self.examples.people.distinct())
        order = [names[index] for index in torch.randperm(len(names), generator=generator_of(self)).tolist()]
        return signatures(self.problem, self.learned.weights, self.examples, order[: self.plan.candidates])

    @property
    def unseen(self) -> Side:
        """Return the holdout; samples that nobody is named for are of a person each."""
        named = self.problem.recipe.holdout_subjects
        people = [str(place) for place in range(len(self.holdout[0]))]
        return Side(*self.holdout, people if named is None else ["+".join(each) for each in named])

    def retrained(self, reference: str, forget: ForgetSet) -> tuple[Tensor, float]:
        """Return the weights (d,) retrained without the forget set, and the seconds that it took."""
        key = (reference, forget.positions)
        if key not in self.references:
            start = self.instruments.clock()
            retain = left_by(self.examples, forget)
            if self.order is None:
                weights = train(self.problem, retain, planned=self.examples.positions, reference=reference).weights
            else:
                weights = self.order.prepare(self.problem, retain, Learned(self.problem.initial())).weights
            self.references[key] = weights, self.instruments.clock() - start
        return self.references[key]


@dataclass(frozen=True)
class Case:
    """A forget set of a scene. ``shadow`` and ``replicas`` are None where the attack is left out."""

    fraction: float
    forget: ForgetSet
    retain: Examples
    sides: tuple[Side, Side]
    """the forgotten and the unseen, as many of each class"""
    shadow: Shadows | None = None
    replicas: Replicas | None = None


def scene_of(
    recipe: Recipe,
    plan: Plan,
    instruments: Instruments,
    seed: int,
    device: torch.device | str,
    *,
    label: int | None = None,
) -> Scene:
    """Train (or load) the model of a seed. With a ``label`` each sample is forgotten by itself."""
    seeded = reseeded(recipe, seed)
    problem = Problem(seeded, device)
    examples = seeded.samples.examples(None if label is None else recipe.samples.ids, device=device)
    holdout = (recipe.holdout[0].to(device), recipe.holdout[1].to(device))
    start = instruments.clock()
    learned = learn(seeded, problem, examples)
    if seed == plan.seeds[0]:
        instruments.trained(instruments.clock() - start)
    return Scene(problem, examples, holdout, learned, plan, instruments, seed, label=label)


def ordered_by(scene: Scene, method: Method) -> Scene:
    """Return the scene with the method's model, not trained yet, and the method's training."""
    problem = Problem(method.recipe(scene.problem.recipe), scene.problem.device)
    return replace(scene, problem=problem, learned=Learned(problem.initial()), references={}, order=method)


def drawn_case(scene: Scene, fraction: float) -> Case:
    """Draw whole people until they have the share of the samples, and train what the plan's attacks need."""
    count = max(1, round(fraction * len(scene.examples)))
    case = case_of(scene, fraction, choose(scene.examples, count, generator_of(scene)))
    if not scene.plan.shadows:
        return case
    gone = scene.examples.only(torch.tensor(case.forget.positions))
    return replace(
        case, shadow=shadows(scene.problem, case.retain, gone, scene.holdout, count=scene.plan.shadows, seed=scene.seed)
    )


def case_of(scene: Scene, fraction: float, forget: ForgetSet) -> Case:
    """Return the case of a forget set, without shadows."""
    gone = scene.examples.only(torch.tensor(forget.positions))
    forgotten = Side(gone.inputs, gone.targets, list(gone.people))
    replicas = None
    if (scene.plan.u_lira or scene.plan.klom) and scene.problem.recipe.weights is None:
        replicas = Replicas(scene.problem, scene.examples, forget, scene.plan.u_lira, scene.plan.klom, scene.seed)
    retain = left_by(scene.examples, forget)
    return Case(fraction, forget, retain, matched(forgotten, scene.unseen, scene.seed), replicas=replicas)


def generator_of(scene: Scene) -> torch.Generator:
    """Return a fresh generator of the scene's seed."""
    return torch.Generator().manual_seed(scene.seed)
