"""Attacks on a model that is said to have forgotten: measurements for `evaluation`, never claims.

An attack that fails bounds nothing; one that succeeds refutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from unlearning.model.curvature import gauss_newton_products, solve_rows
from unlearning.model.problem import Problem
from unlearning.model.training import Batch, step_gradient, train
from unlearning.types import Examples

Classifier: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(features (n, k), labels (n,) of 0 and 1, features to judge (t, k)) -> scores (t,), above 0 for label 1"""


def auc(positives: Tensor, negatives: Tensor) -> float:
    """Return the chance that a positive scores above a negative, ties counted half (Mann and Whitney 1947)."""
    if len(positives) == 0 or len(negatives) == 0:
        raise ValueError(f"An AUC needs both classes; there are {len(positives)} and {len(negatives)} scores.")
    order = torch.sort(negatives.double()).values
    below = torch.searchsorted(order, positives.double(), right=False)
    upto = torch.searchsorted(order, positives.double(), right=True)
    return float((below + upto).double().mean() / (2 * len(negatives)))


@dataclass(frozen=True)
class MembershipScore:
    """How well an attacker tells forgotten samples from samples that were never trained on; 0.5 is guessing.

    ``accuracy`` is balanced: the mean of the shares of both kinds that are recognised.
    """

    accuracy: float
    auc: float


def membership(
    problem: Problem,
    w: Tensor,
    classifier: Classifier,
    *,
    forgotten: Tensor,
    retained: Tensor,
    holdout: Tensor,
    seed: int,
) -> MembershipScore:
    """Infer membership from outputs, as in SAFE: the classifier learns retained against half of the holdout.

    It is then asked about the forgotten (members before) and the other half of the holdout. Inputs are (n, ...).
    """
    generator = torch.Generator().manual_seed(seed)
    strangers = holdout[torch.randperm(len(holdout), generator=generator)]
    half = len(strangers) // 2
    members = retained[torch.randperm(len(retained), generator=generator)[:half]]

    def shown(inputs: Tensor) -> Tensor:
        return _flat_outputs(problem, w, inputs).cpu()

    features = torch.cat([shown(members), shown(strangers[:half])])
    labels = torch.cat([torch.ones(len(members)), torch.zeros(half)])
    scores = classifier(features, labels, torch.cat([shown(forgotten), shown(strangers[half:])]))
    found, others = scores[: len(forgotten)], scores[len(forgotten) :]
    balanced = (float((found > 0).double().mean()) + float((others <= 0).double().mean())) / 2
    return MembershipScore(balanced, auc(found, others))


def confidence(problem: Problem, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return -log(exp(loss) - 1), (n,): under cross-entropy log(p_y/(1 - p_y)), near normal over trainings."""
    with torch.no_grad():
        losses = problem.sample_losses(w.to(problem.dtype), x, y).double()
    return -torch.log(torch.expm1(losses.clamp(1e-12, 500.0)))


@dataclass(frozen=True)
class Shadows:
    """Confidences of ``candidates`` under models trained with and without each of them.

    ``confidences`` (k, c) float64 and ``inside`` (k, c) bool: model by candidate. The first ``forgotten`` candidates
    are the forget set, the others come from the holdout.
    """

    inputs: Tensor
    targets: Tensor
    forgotten: int
    confidences: Tensor
    inside: Tensor


def shadows(
    problem: Problem, retain: Examples, forget: Examples, holdout: tuple[Tensor, Tensor], *, count: int, seed: int
) -> Shadows:
    """Train ``count`` (even) shadow models on the retain set and a random half of the candidates each.

    Candidates are the forget set and as many holdout samples (fewer if there are fewer). Models come in pairs that
    share the candidates out, so that each candidate is in exactly half of them.
    """
    if count < 4 or count % 2:
        raise ValueError(f"shadows is {count}. Use an even number of at least 4.")
    generator = torch.Generator().manual_seed(seed)
    strangers = torch.randperm(len(holdout[0]), generator=generator)[: len(forget)].to(retain.inputs.device)
    x = torch.cat([forget.inputs, holdout[0].to(retain.inputs.device)[strangers]])
    y = torch.cat([forget.targets, holdout[1].to(retain.targets.device)[strangers]])
    masks: list[Tensor] = []
    for _ in range(count // 2):
        mask = torch.rand(len(x), generator=generator) < 0.5
        masks += [mask, ~mask]
    rows = [confidence(problem, _shadow(problem, retain, x[mask], y[mask]), x, y).cpu() for mask in masks]
    return Shadows(x, y, len(forget), torch.stack(rows), torch.stack(masks))


def likelihood_ratio_auc(problem: Problem, w: Tensor, shadow: Shadows) -> float:
    """Run the likelihood-ratio attack (LiRA; Carlini et al. 2022, arXiv 2112.03570, algorithm 1) on the forget set.

    Each candidate's confidence is compared with two normal distributions, with and without it in training; one
    pooled variance for each side, as they advise for few shadow models. AUC of forgotten against never trained on.
    """
    inside = shadow.inside.double()
    seen = confidence(problem, w, shadow.inputs, shadow.targets).cpu()
    with_mean, with_variance = _moments(shadow.confidences, inside)
    without_mean, without_variance = _moments(shadow.confidences, 1 - inside)
    scores = (seen - without_mean) ** 2 / without_variance - (seen - with_mean) ** 2 / with_variance
    return auc(scores[: shadow.forgotten], scores[shadow.forgotten :])


def relearn_epochs(problem: Problem, w: Tensor, untouched: Tensor, forget: Examples, limit: int) -> int:
    """Return the epochs on the forget set alone until its mean loss is as before forgetting; at most ``limit``.

    Full-batch steps of the training's first step size, halved while a step would raise the loss.
    """
    goal = _mean_loss(problem, untouched.to(problem.dtype), forget)
    point, rate = w.to(problem.dtype), problem.training.learning_rate
    batch, current = Batch(forget.inputs, forget.targets, len(forget)), _mean_loss(problem, point, forget)
    for epoch in range(limit):
        if current <= goal:
            return epoch
        gradient = step_gradient(problem, point, batch)
        trial = point - rate * gradient
        reached = _mean_loss(problem, trial, forget)
        while reached > current and rate > 1e-9:
            rate /= 2
            trial = point - rate * gradient
            reached = _mean_loss(problem, trial, forget)
        point, current = trial, reached
    return limit


@dataclass(frozen=True)
class Signatures:
    """For each candidate person, the direction in which the weights move when they are left out: rows (k, d)."""

    people: tuple[str, ...]
    directions: Tensor

    def named(self, before: Tensor, after: Tensor) -> str:
        """Find who was deleted between two versions (d,): the candidate whose direction fits the difference best."""
        difference = (after.double() - before.double()).to(self.directions.device)
        return self.people[int((self.directions @ difference).argmax())]


def signatures(
    problem: Problem, w: Tensor, examples: Examples, people: Sequence[str], *, rows: int = 2000, iterations: int = 25
) -> Signatures:
    """Compute what an attacker with everyone's data would: (G + lambda)^{-1} times each person's summed gradient at w.

    G is the Gauss-Newton curvature on the first ``rows`` samples. Directions (k, d) are float64 and of length 1.
    """
    point = w.to(problem.dtype)
    gradients = torch.stack([_summed_gradient(problem, point, examples, person) for person in people])
    x, y = examples.inputs[:rows], examples.targets[:rows]
    damping = problem.decay.clamp(min=1e-3)

    def product(vectors: Tensor) -> Tensor:
        return gauss_newton_products(problem, point, x, y, vectors) + damping * vectors

    directions = solve_rows(product, gradients, 1e-3, iterations).x.double()
    return Signatures(tuple(people), directions / directions.norm(dim=1, keepdim=True).clamp(min=1e-300))


def _summed_gradient(problem: Problem, w: Tensor, examples: Examples, person: str) -> Tensor:
    mask = examples.people.where(lambda each: each == person).to(examples.inputs.device)
    return problem.gradient(w, examples.inputs[mask], examples.targets[mask]) * int(mask.sum())


def _shadow(problem: Problem, retain: Examples, x: Tensor, y: Tensor) -> Tensor:
    first = int(retain.positions.max()) + 1
    positions = torch.cat([retain.positions, torch.arange(first, first + len(x), device=retain.positions.device)])
    inputs, targets = torch.cat([retain.inputs, x]), torch.cat([retain.targets, y])
    pool = Examples.of(positions, inputs, targets, (*retain.people, *("",) * len(x)))
    return train(problem, pool).weights


def _moments(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return each column's weighted mean (c,), and one variance pooled over all columns."""
    counts = weights.sum(dim=0)
    means = (values * weights).sum(dim=0) / counts
    spread = ((values - means) ** 2 * weights).sum() / (counts - 1).sum()
    return means, spread.clamp(min=1e-12)


def _mean_loss(problem: Problem, w: Tensor, examples: Examples) -> float:
    with torch.no_grad():
        return float(problem.sample_losses(w, examples.inputs, examples.targets).mean())


def _flat_outputs(problem: Problem, w: Tensor, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return problem.outputs(w.to(problem.dtype), inputs.to(problem.device)).reshape(len(inputs), -1).double()
