"""One seed of an evaluation: a trained model, who is forgotten, and what is computed once for all methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from expunge_lab.experiment.attacks import Shadows, Signatures, shadows, signatures
from expunge_lab.experiment.metrics import Instruments, Plan
from expunge_lab.experiment.replicas import Replicas, reseeded
from expunge_lab.experiment.rulers.unseen_people import Fold, Side, folds_of
from unlearning.model.problem import Problem
from unlearning.model.training import learn, train
from unlearning.quality.simulate import choose, left_by
from unlearning.recipe import Recipe
from unlearning.types import Examples, ForgetSet, Learned


@dataclass(frozen=True)
class Stage:
    """A trained model and its data; ``learned`` is what the recipe's training left."""

    problem: Problem
    examples: Examples
    holdout: tuple[Tensor, Tensor]
    learned: Learned
    plan: Plan
    instruments: Instruments
    seed: int
    references: dict[tuple[str, tuple[int, ...]], tuple[Tensor, float]] = field(default_factory=dict)
    """retrained weights and seconds, by reference and forget set: measured once, used by every method"""
    label: int | None = None
    """the class that a stream forgets; None: people are forgotten"""
    same_order: bool = True
    """compare with a retraining in the first training's batch order; False: in one drawn over those who remain"""

    @cached_property
    def marks(self) -> Signatures:
        """Draw the difference attack's candidates, in random order, and what each one's deletion would look like."""
        names = sorted(self.examples.people.distinct())
        order = [names[index] for index in torch.randperm(len(names), generator=generator_of(self)).tolist()]
        return signatures(self.problem, self.learned.weights, self.examples, order[: self.plan.candidates])

    @property
    def unseen(self) -> Side:
        """Return the holdout, each sample as a person's of its own: nobody is named for them."""
        return Side(*self.holdout, [str(place) for place in range(len(self.holdout[0]))])

    def retrained(self, reference: str, forget: ForgetSet) -> tuple[Tensor, float]:
        """Return the weights (d,) retrained without the forget set, and the seconds that it took."""
        key = (reference, forget.positions)
        if key not in self.references:
            start = self.instruments.clock()
            retain = left_by(self.examples, forget)
            planned = self.examples.positions if self.same_order else None
            weights = train(self.problem, retain, planned=planned, reference=reference).weights
            self.references[key] = weights, self.instruments.clock() - start
        return self.references[key]


@dataclass(frozen=True)
class Case:
    """A forget set of a stage. ``shadow`` and ``replicas`` are None where the attack is left out."""

    fraction: float
    forget: ForgetSet
    retain: Examples
    folds: Sequence[Fold]
    """the forgotten and the unseen, dealt out by person"""
    shadow: Shadows | None = None
    replicas: Replicas | None = None


def stage_of(
    recipe: Recipe,
    plan: Plan,
    instruments: Instruments,
    seed: int,
    device: torch.device | str,
    *,
    label: int | None = None,
) -> Stage:
    """Train (or load) the model of a seed. With a ``label`` each sample is forgotten by itself."""
    seeded = reseeded(recipe, seed)
    problem = Problem(seeded, device)
    examples = seeded.samples.examples(None if label is None else recipe.samples.ids, device=device)
    holdout = (recipe.holdout_tensors[0].to(device), recipe.holdout_tensors[1].to(device))
    start = instruments.clock()
    learned = learn(seeded, problem, examples)
    if seed == plan.seeds[0]:
        instruments.trained(instruments.clock() - start)
    return Stage(problem, examples, holdout, learned, plan, instruments, seed, label=label)


def drawn_case(stage: Stage, fraction: float) -> Case:
    """Choose whole people until they have the share of the samples, and train what the plan's attacks need."""
    count = max(1, round(fraction * len(stage.examples)))
    case = case_of(stage, fraction, choose(stage.examples, count, generator_of(stage)))
    if not stage.plan.shadows:
        return case
    gone = stage.examples.only(torch.tensor(case.forget.positions))
    return replace(
        case, shadow=shadows(stage.problem, case.retain, gone, stage.holdout, count=stage.plan.shadows, seed=stage.seed)
    )


def case_of(stage: Stage, fraction: float, forget: ForgetSet) -> Case:
    """Return the case of a forget set, without shadows."""
    gone = stage.examples.only(torch.tensor(forget.positions))
    forgotten = Side(gone.inputs, gone.targets, list(gone.people))
    replicas = None
    if (stage.plan.u_lira or stage.plan.klom) and stage.problem.recipe.weights is None:
        replicas = Replicas(stage.problem, stage.examples, forget, stage.plan.u_lira, stage.plan.klom, stage.seed)
    retain = left_by(stage.examples, forget)
    return Case(fraction, forget, retain, folds_of(forgotten, stage.unseen, stage.seed), replicas=replicas)


def generator_of(stage: Stage) -> torch.Generator:
    """Return a fresh generator of the stage's seed."""
    return torch.Generator().manual_seed(stage.seed)
