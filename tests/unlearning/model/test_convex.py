from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unlearning as ul
from tests.unlearning.recipes import ReadRows, draw, recipe, softmax
from unlearning.model import convex, linear_head
from unlearning.model.linear_head import head_of
from unlearning.model.problem import Problem
from unlearning.types import Examples, Refused

LABELS = torch.arange(60) % 3
FEATURES = draw(60, 6)
LOSSES: dict[str, tuple[int, Tensor]] = {
    "cross_entropy": (3, LABELS),
    "binary_logistic": (1, LABELS % 2),
    "squared_error": (2, draw(60, 2, seed=4)),
    "squared_hinge": (3, LABELS),
}


def problem_of(loss: str, bias: bool = True, weight: Tensor | None = None, **training: Any) -> tuple[Problem, Examples]:
    outputs, y = LOSSES[loss]
    settings = {"weight_decay": 1e-2, **training}
    written = recipe(lambda: nn.Linear(6, outputs, bias=bias), FEATURES, y, loss, **settings)
    if weight is not None:
        samples = written.samples
        written = replace(written, samples=ul.Samples(samples.ids, samples.subjects, FEATURES, y, weight=weight))
    return Problem(written).double(), written.samples.examples()


@pytest.mark.parametrize("denominator", [None, 80])
@pytest.mark.parametrize("loss", LOSSES)
def test_newton_reaches_the_stated_gradient_norm(loss: str, denominator: int | None) -> None:
    problem, examples = problem_of(loss)
    w = convex.converge(problem, draw(problem.dimension), examples, 1e-11, denominator)
    share = 60 / (denominator or 60)
    gradient = share * problem.gradient(w, examples.inputs, examples.targets) + 1e-2 * w
    assert float(gradient.norm()) <= 1.1e-11


def test_newton_reaches_it_from_far_away() -> None:
    problem, examples = problem_of("cross_entropy")
    near = convex.converge(problem, problem.initial(), examples, 1e-11)
    far = convex.converge(problem, 300.0 * draw(problem.dimension), examples, 1e-11)
    assert float((near - far).norm()) <= 2e-9


def test_ridge_converges_to_the_solution_of_the_normal_equations() -> None:
    problem, examples = problem_of("squared_error", bias=False)
    w = convex.converge(problem, problem.initial(), examples, 1e-12)
    gram = FEATURES.T @ FEATURES / 60 + 1e-2 * torch.eye(6, dtype=torch.float64)
    exact = torch.linalg.solve(gram, FEATURES.T @ LOSSES["squared_error"][1] / 60).T
    assert torch.allclose(w.reshape(2, 6), exact, atol=1e-10)


def test_a_tolerance_below_what_float64_shows_ends_where_no_step_falls() -> None:
    """A wide model's gradient is a sum of many terms: 1e-10 may be less than their rounding, and 1e-30 always is."""
    problem, examples = problem_of("squared_error", bias=False)
    w = convex.converge(problem, problem.initial(), examples, 1e-30)
    gram = FEATURES.T @ FEATURES / 60 + 1e-2 * torch.eye(6, dtype=torch.float64)
    exact = torch.linalg.solve(gram, FEATURES.T @ LOSSES["squared_error"][1] / 60).T
    assert torch.allclose(w.reshape(2, 6), exact, atol=1e-14)


def test_a_tolerance_is_not_reached_by_a_worst_case_of_rounding_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where steps still halve the gradient they go on, however large its rounding might have been."""
    problem, examples = problem_of("cross_entropy")
    monkeypatch.setattr(convex._Objective, "rounding_of_few", lambda *_: 1e6)
    w = convex.converge(problem, problem.initial(), examples, 1e-12)
    objective = convex._Objective(convex.require_strongly_convex(problem), examples, 60)
    assert float(objective.slope(w).gradient.norm()) <= 1e-12


def test_too_few_steps_are_refused_with_what_was_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, examples = problem_of("cross_entropy")
    monkeypatch.setattr(convex, "NEWTON_STEPS", 1)
    with pytest.raises(Refused, match="stopped at a gradient norm"):
        convex.converge(problem, problem.initial(), examples, 1e-12)


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.drill)])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_distance_bound_holds_at_weights_far_and_near(loss: str, count: int) -> None:
    problem, examples = problem_of(loss)
    minimiser = convex.converge(problem, problem.initial(), examples, 1e-14)
    slack = convex.distance_bound(problem, minimiser, examples)
    tightest = float("inf")
    for seed in range(count):
        size = 10.0 ** -(seed % 10)
        w = minimiser + size * draw(problem.dimension, seed=seed)
        distance, bound = float((w - minimiser).norm()), convex.distance_bound(problem, w, examples)
        assert distance <= bound + slack
        tightest = min(tightest, bound / distance)
    assert tightest < 200.0


def extended_gradient(problem: Problem, w: Tensor, examples: Examples) -> Any:
    """The gradient in 80-bit arithmetic, from numpy alone."""
    head = head_of(problem)
    assert head is not None
    extended = np.longdouble
    phi = head.features(examples.inputs).numpy().astype(extended)
    scores = phi @ head.matrix(w).numpy().astype(extended).T
    targets, weight = problem.apart(examples.targets)
    y = targets.numpy()
    loss = problem.recipe.loss
    if loss == "cross_entropy":
        exponents = np.exp(scores - scores.max(axis=1, keepdims=True))
        residual = exponents / exponents.sum(axis=1, keepdims=True) - np.eye(scores.shape[1], dtype=extended)[y]
    elif loss == "binary_logistic":
        residual = 1 / (1 + np.exp(-scores)) - y.reshape(-1, 1)
    elif loss == "squared_error":
        residual = scores - y.astype(extended)
    else:
        signs = np.where(np.arange(scores.shape[1]) == y.reshape(-1, 1), 1, -1).astype(extended)
        residual = -signs * np.maximum(0, 1 - signs * scores)
    residual = residual if weight is None else residual * weight.numpy().astype(extended).reshape(-1, 1)
    data = head.vector(torch.zeros(scores.shape[1], phi.shape[1])).numpy().astype(extended)
    matrix = residual.T @ phi / len(phi)
    columns = head.layer.in_features
    data[: matrix.shape[0] * columns] = matrix[:, :columns].reshape(-1)
    if head.layer.bias is not None:
        data[matrix.shape[0] * columns :] = matrix[:, columns]
    return data + extended(problem.training.weight_decay) * w.numpy().astype(extended)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="no 80-bit floats on this machine")
@pytest.mark.parametrize("weight", [None, torch.logspace(-3, 1, 60)], ids=["plain", "weighted"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_rounding_bound_covers_the_true_error_of_the_gradient(
    loss: str, scale: float, weight: Tensor | None
) -> None:
    problem, examples = problem_of(loss, weight=weight)
    for seed in range(4):
        w = scale * draw(problem.dimension, seed=seed)
        objective = convex._Objective(convex.require_strongly_convex(problem), examples, len(examples))
        gradient, bound = objective.trusted(w)
        computed = gradient.numpy().astype(np.longdouble)
        error = float(np.linalg.norm(computed - extended_gradient(problem, w, examples)))
        assert error <= bound
        assert bound <= 1e-11 * max(1.0, scale) ** 2


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="no 80-bit floats on this machine")
@pytest.mark.parametrize("loss", LOSSES)
def test_the_rounding_bound_of_blocks_covers_the_true_error(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, held = problem_of(loss)
    rows = ReadRows(held.inputs, held.targets)
    monkeypatch.setattr("unlearning.types.BLOCK_BYTES", 7 * rows.row_bytes)
    examples = Examples(held.positions, rows, held.people)
    assert len(list(examples.blocks())) > 3
    for seed in range(3):
        w = draw(problem.dimension, seed=seed)
        gradient, bound = convex._Objective(convex.require_strongly_convex(problem), examples, len(held)).trusted(w)
        error = float(np.linalg.norm(gradient.numpy().astype(np.longdouble) - extended_gradient(problem, w, held)))
        assert error <= bound <= 1e-11


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="no 80-bit floats on this machine")
@pytest.mark.parametrize("loss", LOSSES)
def test_pieces_of_the_features_give_the_same_sums(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, examples = problem_of(loss)
    objective = convex._Objective(convex.require_strongly_convex(problem), examples, 60)
    w = draw(problem.dimension)
    whole = objective.trusted(w)
    monkeypatch.setattr(linear_head, "LEAST_ROWS", 7)
    monkeypatch.setattr(linear_head, "PIECE", 1)
    pieces, gradient = objective.trusted(w), objective.slope(w).gradient
    assert torch.allclose(pieces.gradient, whole.gradient, atol=1e-14)
    assert torch.allclose(gradient, whole.gradient, atol=1e-14)
    error = float(np.linalg.norm(pieces.gradient.numpy() - extended_gradient(problem, w, examples)))
    assert error <= pieces.rounding < whole.rounding, "seven terms and nine pieces round less than sixty terms"


@pytest.mark.parametrize("classes", [2, 5, linear_head.MANY_CLASSES - 1, linear_head.MANY_CLASSES])
def test_the_softmax_of_short_rows_is_that_of_each_row(classes: int) -> None:
    z, y = 30.0 * draw(40, classes), torch.arange(40) % classes
    expected = z.softmax(dim=1)
    assert torch.allclose(linear_head._softmax(z), expected, rtol=1e-14, atol=0)
    one_hot = torch.nn.functional.one_hot(y, classes)
    assert torch.allclose(linear_head.CURVES["cross_entropy"].residual(z, y), expected - one_hot, rtol=0, atol=1e-15)


def test_the_bound_uses_the_denominator_it_is_told() -> None:
    problem, examples = problem_of("cross_entropy")
    w = convex.converge(problem, problem.initial(), examples, 1e-12, denominator=80)
    assert convex.distance_bound(problem, w, examples, denominator=80) < 1e-9
    assert convex.distance_bound(problem, w, examples) > 1e-2


def refusals() -> list[tuple[Any, str]]:
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))

    y = LABELS
    return [
        (recipe(network, FEATURES, y, weight_decay=0.1), "not known to be convex"),
        (recipe(lambda: nn.Linear(6, 3), FEATURES, y), "weight_decay is 0"),
        (recipe(lambda: nn.Linear(6, 3), FEATURES, y, weight_decay=0.1, undecayed=("bias",)), "leaves out bias"),
        (recipe(lambda: nn.Linear(6, 3), FEATURES, y, weight_decay=0.1, sample_clip=1.0), "sample_clip"),
        (
            recipe(lambda: nn.Linear(6, 3), FEATURES, y, lambda o, t: o.square().sum(dim=1), weight_decay=0.1),
            "not known to be convex",
        ),
    ]


@pytest.mark.parametrize(("written", "reason"), refusals(), ids=[reason for _, reason in refusals()])
def test_what_is_not_strongly_convex_is_refused_with_the_reason(written: Any, reason: str) -> None:
    problem, examples = Problem(written).double(), written.samples.examples()
    with pytest.raises(Refused, match=reason):
        convex.distance_bound(problem, problem.initial(), examples)


def test_an_undecayed_bias_would_break_the_bound() -> None:
    """Why the refusal is needed: with a free bias the same formula can lie by any factor."""
    x = torch.cat([1e-3 * draw(40, 1), torch.full((40, 1), 0.0, dtype=torch.float64)], dim=1)
    y = torch.arange(40) % 2
    written = recipe(lambda: nn.Linear(2, 1), x, y, "binary_logistic", weight_decay=1.0, undecayed=("bias",))
    problem, examples = Problem(written).double(), written.samples.examples()
    w = torch.tensor([0.0, 0.0, 12.0], dtype=torch.float64)
    gradient = problem.gradient(w, examples.inputs, examples.targets) + problem.decay * w
    claimed, true = float(gradient.norm()) / 1.0, 12.0
    assert claimed < 0.6 < true


def test_fewer_than_two_classes_left_is_refused() -> None:
    written = softmax()
    problem, examples = Problem(written).double(), written.samples.examples()
    single = examples.without(examples.positions[examples.targets != 1])
    with pytest.raises(Refused, match="1 of the classes would remain"):
        convex.distance_bound(problem, problem.initial(), single)


def test_nobody_left_is_refused() -> None:
    problem, examples = problem_of("squared_error")
    with pytest.raises(Refused, match="No sample is left"):
        convex.distance_bound(problem, problem.initial(), examples.without(examples.positions))


def test_weights_in_single_precision_are_a_mistake() -> None:
    problem, examples = problem_of("cross_entropy")
    with pytest.raises(ValueError, match="float64"):
        convex.distance_bound(problem, problem.initial().float(), examples)
    with pytest.raises(ValueError, match="float64"):
        convex.converge(problem, problem.initial().float(), examples, 1e-8)
