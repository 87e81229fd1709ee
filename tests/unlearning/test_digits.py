"""The example recipes: what the demo relies on."""

from __future__ import annotations

import pytest
import torch

from benchmarks.digits import digits
from unlearning import Problem, Recipe
from unlearning.model.convex import converge, distance_bound
from unlearning.model.training import batch_of, step_gradient, train


@pytest.fixture(scope="module", params=["recipe", "convolutional"])
def recipe(request: pytest.FixtureRequest) -> Recipe:
    return digits(request.param)


def test_the_real_digits_belong_to_a_hundred_people(recipe: Recipe) -> None:
    assert (len(recipe.samples), len(recipe.holdout[1])) == (1437, 360)
    assert len({person for people in recipe.samples.people for person in people}) == 100
    assert set(recipe.samples.targets.tolist()) == set(range(10))


def test_holdout_and_training_share_no_digit(recipe: Recipe) -> None:
    rows = {tuple(row.flatten().tolist()) for row in recipe.samples.inputs}
    assert not rows & {tuple(row.flatten().tolist()) for row in recipe.holdout[0]}


def test_softmax_features_depend_on_their_own_row_alone() -> None:
    recipe = digits()
    rows = recipe.samples.inputs
    assert rows.shape == (1437, 65)
    assert torch.allclose(rows[:, :64].norm(dim=1), torch.ones(1437), atol=1e-6)
    assert torch.equal(rows[:, 64], torch.ones(1437))


def test_softmax_regression_reaches_its_accuracy_and_a_provable_optimum() -> None:
    recipe = digits()
    problem, examples = Problem(recipe), recipe.samples.examples()
    weights = train(problem, examples).weights
    assert weights.dtype == torch.float64
    exact = problem.double()
    assert exact.accuracy(weights, *recipe.holdout) >= 0.93
    assert float(distance_bound(exact, weights, examples)) <= 1e-6
    # the bound bounds: a much sharper solution lies within it
    sharper = converge(exact, weights, examples, 1e-13)
    assert float((weights - sharper).norm()) <= float(distance_bound(exact, weights, examples))


def test_the_convolutional_network_learns_at_a_stable_step_size() -> None:
    recipe = digits("convolutional")
    problem, examples = Problem(recipe), recipe.samples.examples()
    learned = train(problem, examples)
    assert problem.accuracy(learned.weights, *recipe.holdout) >= 0.93
    norms = [float(step_gradient(problem, w, _all(examples)).norm()) for w in learned.trajectory.checkpoints[-3:]]
    assert max(norms) < 0.2  # no divergence at the end of training


def _all(examples):
    return batch_of(examples, examples.positions, len(examples))
