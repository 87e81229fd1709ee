"""Vectors that leave their person's own curvature out: equal to a loop of dense Hessians, exact on a quadratic."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.unlearning.methods.test_recollection import PUBLISHED, forget_set, prepared
from tests.unlearning.recipes import draw, network, recipe, softmax
from unlearning.methods.recollection import vectors
from unlearning.model.curvature import (
    clipped_map,
    gauss_newton_products,
    hessian_products,
    own_gauss_newton_products,
    own_hessian_products,
)
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.recipe import Recipe
from unlearning.types import Examples, Trajectory


def per_person_loop(problem: Problem, examples: Examples, trajectory: Trajectory, person: str) -> Tensor:
    """The vector (d,) of one person, carried by a dense Hessian to which the person's own samples add nothing."""
    mine = torch.tensor([name == person for name in examples.people])
    vector, w = torch.zeros(problem.dimension, dtype=torch.float64), problem.initial()
    for rate, scale, positions in zip(trajectory.rates, trajectory.scales, trajectory.batches, strict=True):
        gradient = problem.gradient(w, examples.inputs[positions], examples.targets[positions]) + problem.decay * w
        own, others = positions[mine[positions]], positions[~mine[positions]]
        x, y = examples.inputs[others], examples.targets[others]
        hessian = torch.autograd.functional.hessian(lambda u, x=x, y=y: problem.sample_losses(u, x, y).sum(), w)
        source = problem.sample_gradients(w, examples.inputs[own], examples.targets[own]).sum(dim=0)
        change = (hessian @ vector - source) / len(positions) + problem.decay * vector
        vector = vector - rate * clipped_map(gradient, scale, change.unsqueeze(0))[0]
        w = w - rate * scale * gradient
    return vector


HEAD = softmax(epochs=3, batch_size=25, learning_rate=0.5, converge=None)


@pytest.mark.parametrize(
    ("written", "limit"),
    [
        pytest.param(network(epochs=2), 2**22, marks=pytest.mark.drill, id="net"),
        pytest.param(network(epochs=2), 300, id="net in parts"),
        pytest.param(network(epochs=2, clip=0.55), 2**22, id="clip"),
        pytest.param(network(epochs=2, clip=0.55), 300, marks=pytest.mark.drill, id="clip in parts"),
        pytest.param(HEAD, 2**22, id="head"),
        pytest.param(HEAD, 300, id="head in parts"),
    ],
)
def test_vectors_carried_by_the_others_equal_the_per_person_loop(
    written: Recipe, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "OWN_LIMIT", limit)
    problem, examples, learned, state = prepared(written)
    assert learned.trajectory is not None
    for person in ("p0", "p3"):
        slow = per_person_loop(problem, examples, learned.trajectory, person)
        assert torch.allclose(state.vectors[person], slow, atol=1e-13)


def test_one_person_of_a_quadratic_is_forgotten_exactly() -> None:
    """No error is left of first or second order: retraining without u is linear in the weights, and is followed."""
    x, y = draw(30, 4), draw(30, 1, seed=1)
    written = recipe(
        lambda: torch.nn.Linear(4, 1), x, y, loss="squared_error", epochs=20, batch_size=10, weight_decay=1e-2
    )
    problem, examples, learned, state = prepared(written)
    published = PUBLISHED.prepare(problem, examples, learned)
    forget = forget_set(examples, "p3")
    retrained = train(problem, examples, omit=forget.positions, reference="fixed-denominator").weights
    assert float((learned.weights + state.vectors["p3"] - retrained).norm()) < 1e-12
    assert float((learned.weights + published.vectors["p3"] - retrained).norm()) > 1e-3


def test_leaving_the_own_curvature_out_comes_nearer_to_retraining() -> None:
    """Softmax regression in full batches, the setting of the benchmark; every person alone."""
    problem, examples, learned, state = prepared(softmax(epochs=60, learning_rate=0.2, converge=None))
    published = PUBLISHED.prepare(problem, examples, learned)
    for person in state.vectors:
        forget = forget_set(examples, person)
        retrained = train(problem, examples, omit=forget.positions, reference="fixed-denominator").weights
        ours, theirs = (learned.weights + chosen.vectors[person] - retrained for chosen in (state, published))
        assert float(ours.norm()) < 0.5 * float(theirs.norm()), person


def test_the_gauss_newton_products_of_samples_with_their_own_rows_equal_one_at_a_time() -> None:
    problem, examples, learned, _ = prepared(network())
    rows = draw(len(examples), problem.dimension, seed=5)
    for all_at_once, single in (
        (own_gauss_newton_products, gauss_newton_products),
        (own_hessian_products, hessian_products),
    ):
        fast = all_at_once(problem, learned.weights, examples.inputs, examples.targets, rows)
        for i in range(0, len(examples), 9):
            part = slice(i, i + 1)
            slow = single(problem, learned.weights, examples.inputs[part], examples.targets[part], rows[part])
            assert torch.allclose(fast[part], slow, atol=1e-13)
