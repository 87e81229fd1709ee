"""Newton step and infinitesimal jackknife against dense matrices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from expunge_lab.experiment.comparators.newton_step import infinitesimal_jackknife, minimal_residual, newton_step
from unlearning import Problem, Recipe, Samples, Training
from unlearning.model.training import train
from unlearning.types import Examples

GONE = (1, 4, 9)


def problem_of(model: Callable[[], nn.Module], **training: float) -> tuple[Problem, Examples, Tensor]:
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 4, generator=draw)
    targets = (inputs[:, 0] + 0.3 * torch.randn(40, generator=draw) > 0).long()
    names = [f"p{index}" for index in range(40)]
    recipe = Recipe(
        model=model,  # called under the training's seed
        samples=Samples(names, names, inputs, targets),
        holdout=(inputs, targets),
        loss="cross_entropy",
        training=Training(epochs=30, learning_rate=0.5, **training),  # type: ignore[arg-type]
    )
    problem = Problem(recipe).double()
    examples = recipe.samples.examples()
    return problem, examples, train(problem, examples).weights.double()


def dense(problem: Problem, w: Tensor, examples: Examples) -> Tensor:
    """Return the mean Hessian over ``examples`` with weight decay, (d, d), by automatic differentiation."""
    plain = torch.func.hessian(lambda u: problem.mean_loss(u, examples.inputs, examples.targets))(w)
    return plain + torch.diag(problem.decay)


def linear() -> nn.Module:
    return nn.Linear(4, 2)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


@pytest.mark.parametrize("model", [linear, network])
def test_both_are_the_papers_formulas(model: Callable[[], nn.Module]) -> None:
    problem, examples, w = problem_of(model, weight_decay=1e-3, seed=3)
    left = examples.without(torch.tensor(GONE))
    forgotten = examples.only(torch.tensor(GONE))
    total = sum(
        problem.gradient(w, forgotten.inputs[place : place + 1], forgotten.targets[place : place + 1])
        + problem.decay * w
        for place in range(3)
    )
    for step, kept in ((newton_step, left), (infinitesimal_jackknife, examples)):
        matrix = dense(problem, w, kept) + 0.01 * torch.eye(len(w))
        expected = torch.linalg.solve(matrix, total / len(kept))
        found = step(problem, w, examples, GONE, residual=1e-11)
        assert found.residual <= 1e-11
        torch.testing.assert_close(found.change, expected, rtol=1e-6, atol=1e-9)


def test_at_a_minimiser_the_newton_step_is_nearly_the_retraining() -> None:
    problem, examples, _ = problem_of(linear, weight_decay=0.1, converge=1e-9)
    w, retrained = train(problem, examples).weights, train(problem, examples, omit=GONE).weights
    moved = w + newton_step(problem, w, examples, GONE, damping=0.0, residual=1e-10).change
    assert (retrained - moved).norm() < 0.1 * (retrained - w).norm()


def test_an_indefinite_system_is_solved_and_the_residual_is_the_true_one() -> None:
    draw = torch.Generator().manual_seed(1)
    matrix = torch.randn(30, 30, generator=draw, dtype=torch.float64)
    matrix = matrix + matrix.T
    b = torch.randn(30, generator=draw, dtype=torch.float64)
    for products, limit in ((30, 1e-8), (10, 1.0)):
        found = minimal_residual(lambda v: matrix @ v, b, 1e-10, products)
        assert found.products == products
        assert found.residual < limit
        assert float((b - matrix @ found.change).norm() / b.norm()) == pytest.approx(found.residual, abs=1e-9)


def test_nobody_and_everybody_are_refused() -> None:
    problem, examples, w = problem_of(linear)
    for gone in ((), tuple(range(40))):
        with pytest.raises(ValueError, match="some of each"):
            newton_step(problem, w, examples, gone)
