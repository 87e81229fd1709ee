"""What registration measures of the terms: the bound's constants, the noise's cost in accuracy, an update's cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from torch import Tensor

from expunge_workers.guarantee.noise import perturbed
from expunge_workers.guarantee.terms import Terms
from expunge_workers.runtime.model import OpenModel
from unlearning.accounting.budget import charge_of, updates_left
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import Policy
from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import Examples, Json, Learned, State

FACTORS = (0.1, 1.0, 10.0)
"""of noise_std, and of the cap, in the dry run"""
DRAWS = 3
REQUESTS = (1, 10, 100)
"""for which the cost of an update is shown"""


def establish(bench: OpenModel, terms: Terms, examples: Examples, made: State) -> tuple[Terms, dict[str, Json]]:
    """Return the terms with the constants of the bound, and what registration reports of it.

    Raises:
        Refused: the bound is vacuous, not even one sample fits under the greatest distance, or rounding takes too much
            of it.
    """
    if bench.world_model is None or terms.bound(bench.method) is None:
        return terms, {}
    constants, report = bench.world_model.useful(
        made, examples, terms.guarantee, denominator=terms.denominator, max_distance=terms.max_distance
    )
    return replace(terms, constants=constants), report


def dry_run(bench: OpenModel, terms: Terms, weights: Tensor) -> list[Json]:
    """Measure what noise_std costs in holdout accuracy; count the updates that each pair of noise_std and cap allows.

    The accuracy is that of y, the mean of a few draws that are thrown away; version 1 costs no budget, and no person is
    deleted yet. An exact retraining is published without noise: one row. The cap changes no accuracy: a smaller one
    asks more work of each update, and may be out of reach.
    """
    if terms.guarantee is Guarantee.EXACT:
        (accuracy,) = _accuracies(bench, weights, (0.0,))
        return [_row(terms, 0.0, None) | {"accuracy": accuracy}]
    capped = terms.guarantee not in (Guarantee.NONE, Guarantee.EXACT)
    caps = [factor * terms.max_distance for factor in FACTORS] if capped else [None]
    rows: list[Json] = []
    spreads = [factor * terms.noise_std for factor in FACTORS]
    for noise_std, accuracy in zip(spreads, _accuracies(bench, weights, spreads), strict=True):
        rows += [_row(terms, noise_std, cap) | {"accuracy": accuracy} for cap in caps]
    return rows


def published_accuracy(rows: Sequence[Json], terms: Terms) -> float | None:
    """Return the accuracy of the dry run at the noise that is published with."""
    noise_std = 0.0 if terms.guarantee is Guarantee.EXACT else terms.noise_std
    at_noise = [row for row in rows if isinstance(row, dict) and row["noise_std"] == noise_std]
    return cast("float | None", at_noise[0]["accuracy"])


def plain_accuracy(bench: OpenModel, examples: Examples, learned: Learned, policy: Policy) -> float | None:
    """Return what the recipe's own training has on the holdout, in one piece and without noise.

    A method that trains by itself is compared with a training more; None where nothing asks for the comparison.
    """
    problem, weights = bench.problem, learned.weights
    if bench.method.trains:
        if policy.max_accuracy_drop is None or bench.recipe.weights is not None:
            return None
        problem = Problem(bench.recipe, bench.problem.device)
        problem.fresh, problem.measured_by = bench.problem.fresh, bench.problem.measured_by
        weights = train(problem, examples).weights
    return problem.cast(weights.dtype).accuracy(
        weights, *(part.to(problem.device) for part in bench.recipe.holdout_tensors)
    )


def _accuracies(bench: OpenModel, weights: Tensor, spreads: Sequence[float]) -> list[float | None]:
    """Return the mean accuracy of some draws at each spread of the noise; None where one was not measured."""
    problem, draws = bench.problem, []
    for noise_std in spreads:
        noise = partial(perturbed, weights, noise_std, problem.dtype, trained=problem.trained)
        draws.append([noise() for _ in range(DRAWS)] if noise_std else [weights.to(problem.dtype)])
    measured = iter(bench.accuracies([weights for drawn in draws for weights in drawn]))
    means: list[float | None] = []
    for drawn in draws:
        accuracies = [accuracy for _, accuracy in zip(drawn, measured, strict=False) if accuracy is not None]
        means.append(sum(accuracies) / len(drawn) if len(accuracies) == len(drawn) else None)
    return means


def _row(terms: Terms, noise_std: float, cap: float | None) -> dict[str, Json]:
    updates = None if cap is None else updates_left(0, terms.limit, charge_of(cap, noise_std))
    return {"noise_std": noise_std, "max_distance": cap, "updates": updates}


def costs(method: Method, people: int) -> dict[str, list[Json]]:
    """Return what an update is expected to repeat of the training, for one request and for many at once.

    It follows from the method's options alone. Empty where the method's updates repeat no training.
    """
    shares = {count: method.expected_repeats(count) for count in REQUESTS if count <= people}
    rows: list[Json] = [{"requests": count, "share": share} for count, share in shares.items() if share is not None]
    return {"expected_repeats": rows} if rows else {}


def size_of(state: State) -> int:
    """Return how many bytes the method keeps between updates, its vectors apart."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (state.weights, *state.tensors.values()))
