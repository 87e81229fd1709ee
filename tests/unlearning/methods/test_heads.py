from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.func import hessian

from tests.unlearning.recipes import draw, recipe
from unlearning.model.linear_head import CURVES, head_of
from unlearning.model.problem import Problem

X = draw(15, 2, 3)
LABELS = torch.arange(15) % 3
CASES: dict[str, tuple[str, int, torch.Tensor]] = {
    "softmax": ("cross_entropy", 3, LABELS),
    "softmax on shares": ("cross_entropy", 3, draw(15, 3, seed=2).softmax(dim=1)),
    "logistic": ("binary_logistic", 1, LABELS % 2),
    "ridge": ("squared_error", 2, draw(15, 2, seed=2)),
    "hinge": ("squared_hinge", 1, LABELS % 2),
    "hinge one against the rest": ("squared_hinge", 3, LABELS),
}


def problem_of(model: Any, loss: Any, y: torch.Tensor = LABELS) -> Problem:
    return Problem(recipe(model, X, y, loss), dtype=torch.float64)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_closed_forms_equal_automatic_differentiation(case: str, bias: bool) -> None:
    loss, outputs, y = CASES[case]
    problem = problem_of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, outputs, bias=bias)), loss, y)
    head = head_of(problem)
    assert head is not None
    w, vectors, shares = draw(problem.dimension), draw(4, problem.dimension, seed=1), draw(3, 15, seed=5)
    features = head.features(X)
    dense = hessian(lambda u: problem.mean_loss(u, X, y))(w)
    assert torch.equal(head.vector(head.matrix(vectors)), vectors)
    assert torch.allclose(head.gradient(w, features, y), problem.gradient(w, X, y), atol=1e-13)
    assert torch.allclose(head.products(w, features, y, vectors), vectors @ dense, atol=1e-13)
    assert torch.allclose(head.sums(w, features, y, shares), shares @ problem.sample_gradients(w, X, y), atol=1e-13)


@pytest.mark.parametrize("case", CASES)
def test_steepness_bounds_the_curvature_of_every_loss(case: str) -> None:
    loss, outputs, y = CASES[case]
    curve = CURVES[loss]
    for seed in range(20):
        z = 3.0 * draw(15, outputs, seed=seed)
        bent = curve.bend(z, y, torch.eye(outputs, dtype=torch.float64).expand(15, outputs, outputs))
        assert float(torch.linalg.matrix_norm(bent, 2).max()) <= curve.steepness + 1e-15


def test_a_frozen_backbone_before_the_head_is_part_of_the_features() -> None:
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU()).requires_grad_(False)
    problem = problem_of(lambda: nn.Sequential(backbone, nn.Linear(5, 3)), "cross_entropy")
    head = head_of(problem)
    assert head is not None
    features = head.features(X)
    assert features.shape == (15, 6)
    assert torch.allclose(features @ head.matrix(draw(18)).T, problem.outputs(draw(18), X), atol=1e-14)


def hooked() -> nn.Module:
    layer = nn.Linear(3, 3)
    layer.register_forward_hook(lambda _part, _inputs, out: out.square())
    return layer


class Squared(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).square()


def weight_frozen() -> nn.Module:
    layer = nn.Linear(3, 3)
    layer.weight.requires_grad_(False)
    return layer


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), "cross_entropy"),
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU()), "cross_entropy"),
        (lambda: nn.Linear(3, 3), lambda outputs, targets: outputs.square().sum(dim=1)),
        (lambda: nn.Linear(3, 3), "binary_logistic"),
        (hooked, "cross_entropy"),
        (lambda: Squared(3, 3), "cross_entropy"),
        (weight_frozen, "cross_entropy"),
    ],
)
def test_what_is_not_plainly_a_linear_head_is_not_taken_for_one(model: Any, loss: Any) -> None:
    assert head_of(problem_of(model, loss)) is None
