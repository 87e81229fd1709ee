"""CNS's bound: it holds where its constants are true, and says so when it says nothing."""

from __future__ import annotations

import pytest
import torch

from tests.unlearning.recipes import softmax
from unlearning.bounds.newton import Constrained, measured
from unlearning.bounds.published import rounded_up
from unlearning.methods.newton import Newton
from unlearning.model.objective import Objective
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import ForgetSet, Refused, State


def test_the_bound_by_hand() -> None:
    bound = Constrained(3.0, 0.5, 1.5, hessian_lipschitz=0.25, gradient_norm=0.2, residual=0.1)
    assert bound.distance() == pytest.approx((2 * 3 * (0.25 * 3 + 0.5) + 0.2 + 0.1) / 2.0)


def test_a_bound_of_twice_the_radius_is_vacuous_in_words() -> None:
    assert Constrained(1.0, 0.0, 1.0, 0.9, 0.0).require_useful() == pytest.approx(1.8)
    with pytest.raises(Refused, match=r"vacuous: any two models in the ball of radius 1"):
        Constrained(1.0, 0.0, 1.0, 1.0, 0.0).require_useful()
    with pytest.raises(Refused, match="vacuous"):
        Constrained(1.0, 0.0, -0.5, 0.0, 0.0).require_useful()


def test_a_step_stays_within_the_bound_of_retraining() -> None:
    problem = Problem(softmax(weight_decay=1.0)).double()
    examples = problem.recipe.samples.examples()
    w = train(problem, examples).weights
    radius = 1.5 * float(w.norm())
    smallest, rough, gradient = measured(problem, examples, w, radius)
    bound = Constrained(radius, 0.0, smallest, rough, gradient).distance()
    generator = torch.Generator().manual_seed(1)
    method = Newton(radius=radius)
    used = []
    for _ in range(20):
        gone = torch.randperm(len(examples), generator=generator)[:5].sort().values
        retain = examples.without(gone)
        forget = ForgetSet(frozenset(), tuple(gone.tolist()))
        released = method.forget(problem, State(w), forget, retain, generator).state.weights
        used.append(float((released - train(problem, retain).weights).norm()) / bound)
    assert 0 < max(used) <= 1


def test_measured_constants_are_on_the_cautious_side_of_what_is_seen() -> None:
    problem = Problem(softmax(weight_decay=0.3)).double()
    examples = problem.recipe.samples.examples()
    w = train(problem, examples).weights
    smallest, rough, gradient = measured(problem, examples, w, 3.0)
    product = Objective(problem, examples).products(w)
    dense = torch.stack([product(column) for column in torch.eye(len(w), dtype=w.dtype)])
    assert 0 < smallest <= float(torch.linalg.eigvalsh(dense)[0]) * (1 + 1e-9)
    assert rough > 0
    assert gradient >= float(Objective(problem, examples).at(w).gradient.norm())


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(1.0, 1.0), (1.01, 2.0), (0.0312, 0.04), (950.0, 1000.0), (-1.9, -1.0), (-0.25, -0.2), (0.0, 0.0), (1e-15, 1e-12)],
)
def test_published_constants_keep_one_digit_upwards(value: float, rounded: float) -> None:
    assert rounded_up(value) == rounded
