"""Why three known methods are no comparators (decision 25): each reason is measured."""

from __future__ import annotations

import pytest
import torch

from benchmarks.digits import digits
from lab.tests.test_attacks import memorising
from unlearning import Problem, Recipe
from unlearning.methods.newton import Newton
from unlearning.model.curvature import hessian_products
from unlearning.model.training import train
from unlearning.quality.simulate import choose, forget_set, left_by, release


@pytest.fixture(scope="module")
def minimum():
    """A softmax regression at its minimum, whom to forget, and the retrained weights; all in float64."""
    recipe = memorising(decay=1e-2)
    problem, examples = Problem(recipe, dtype=torch.float64), recipe.samples.examples()
    forget = forget_set(examples, [f"p{i:02d}" for i in range(3)])
    retain = left_by(examples, forget)
    return problem, examples, forget, retain, train(problem, examples), train(problem, retain).weights


def test_guos_removal_is_the_newton_step_of_newton(minimum) -> None:
    """His step is H^-1 (lambda m w + sum_U grad l), H that of the sums over those who stay, with lambda times n - m."""
    problem, examples, forget, retain, learned, _ = minimum
    w, gone = learned.weights, forget.examples
    m, left, decay = len(gone), len(retain), problem.training.weight_decay
    identity = torch.eye(len(w), dtype=torch.float64)
    inputs, targets = retain.inputs.double(), retain.targets
    curvature = left * (hessian_products(problem, w, inputs, targets, identity) + decay * identity)
    away = decay * m * w + m * problem.gradient(w, gone.inputs.double(), gone.targets)
    removed = w + torch.linalg.solve(curvature, away)
    method = Newton()
    state = method.prepare(problem, examples, learned)
    ours = release(method, problem, state, forget, retain, generator=torch.Generator()).state.weights
    assert float((ours - removed).norm()) < 1e-5 * float((removed - w).norm())


def test_a_newton_step_on_part_of_the_weights_stays_farther_away(minimum) -> None:
    """L-CODEC steps on chosen weights alone. Here they are those whose step is largest, which no chooser knows."""
    problem, _, _, retain, learned, retrained = minimum
    w, x, y = learned.weights, retain.inputs.double(), retain.targets
    slope = problem.gradient(w, x, y) + problem.decay * w
    identity = torch.eye(len(w), dtype=torch.float64)
    curvature = hessian_products(problem, w, x, y, identity) + problem.decay * identity
    whole = torch.linalg.solve(curvature, slope)

    def left(share: float) -> float:
        chosen = whole.abs().topk(round(share * len(w))).indices
        step = torch.zeros_like(w)
        step[chosen] = torch.linalg.solve(curvature[chosen][:, chosen], slope[chosen])
        return float((w - step - retrained).norm() / (w - retrained).norm())

    found = [left(share) for share in (0.1, 0.5, 0.9, 1.0)]
    assert found == sorted(found, reverse=True)
    assert found[1] > 5 * found[3] and found[3] < 0.1


@pytest.fixture(scope="module")
def network() -> Recipe:
    return digits("convolutional")


def test_amnesiac_unlearning_takes_nearly_the_whole_training_back(network: Recipe) -> None:
    """It subtracts the steps of all batches in which somebody to be forgotten was."""
    problem, examples = Problem(network), network.samples.examples()
    trajectory = train(problem, examples).trajectory
    assert trajectory is not None
    path = trajectory.checkpoints
    assert len(path) == 13  # the weights before each of the 12 epochs, and the last ones
    gone = torch.tensor(choose(examples, 72, torch.Generator().manual_seed(0)).positions)
    one = torch.tensor(choose(examples, 1, torch.Generator().manual_seed(0)).positions)

    def share(who: torch.Tensor) -> float:
        touched = [bool(torch.isin(batch, who).any()) for batch in trajectory.batches]
        return sum(touched) / len(touched)

    assert share(gone) > 0.97  # 5 % of the samples
    assert share(one) > 0.6  # one person
