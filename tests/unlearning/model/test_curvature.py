"""Every fast product equals its dense twin."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import hessian, jacrev

from tests.unlearning.recipes import draw, network, recipe
from unlearning.model import curvature
from unlearning.model.problem import Problem

IMAGES = draw(10, 1, 6, 6)
LABELS = torch.arange(10) % 3


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3))


def regression() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 1))


class Attention(nn.Module):
    """Six rows of an image look at each other; torch takes a fused kernel, which has no second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.into(x)
        return self.out(nn.functional.scaled_dot_product_attention(rows, rows, rows).mean(dim=(1, 2)))


def softmax_head() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 3))


CASES = {
    "convolution": (convolution, "cross_entropy", LABELS),
    "regression": (regression, "squared_error", draw(10, 1, seed=3)),
    "attention": (Attention, "cross_entropy", LABELS),
    "head": (softmax_head, "cross_entropy", LABELS),
    "callable": (regression, lambda out, y: (out[:, 0] - y[:, 0]).pow(4), draw(10, 1, seed=3)),
}


@pytest.fixture(params=CASES)
def setting(request: pytest.FixtureRequest) -> tuple[Problem, Tensor, Tensor]:
    model, loss, y = CASES[request.param]
    problem = Problem(recipe(model, IMAGES, y, loss), dtype=torch.float64)
    return problem, problem.initial() + 0.1 * draw(problem.dimension, seed=8), y


def dense_hessian(problem: Problem, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Row by row in plain autograd: torch.func.hessian is wrong through LayerNorm (torch 2.13), by 1.4 here."""
    twin: Tensor = torch.autograd.functional.hessian(lambda u: problem.mean_loss(u, x, y), w)
    return twin


def dense_gauss_newton(problem: Problem, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The mean of J^T C J, sample by sample."""
    total = torch.zeros(len(w), len(w), dtype=w.dtype)
    for one, target in zip(x.split(1), y.split(1), strict=True):
        outputs = problem.outputs(w, one)
        jacobian = jacrev(lambda u, one=one: problem.outputs(u, one)[0])(w)
        inner = hessian(lambda z, target=target: problem.losses(z.unsqueeze(0), target)[0])(outputs[0])
        total += jacobian.T @ inner @ jacobian
    return total / len(x)


@pytest.mark.parametrize("chunk", [pytest.param(1, marks=pytest.mark.drill), 2, None])
def test_hessian_products_equal_the_dense_hessian(setting: tuple[Problem, Tensor, Tensor], chunk: int | None) -> None:
    problem, w, y = setting
    vectors = draw(5, problem.dimension, seed=9)
    products = curvature.hessian_products(problem, w, IMAGES, y, vectors, chunk=chunk)
    assert torch.allclose(products, vectors @ dense_hessian(problem, w, IMAGES, y), atol=1e-12)


@pytest.mark.parametrize("chunk", [2, None])
def test_gauss_newton_products_equal_the_dense_matrix(
    setting: tuple[Problem, Tensor, Tensor], chunk: int | None
) -> None:
    problem, w, y = setting
    vectors = draw(5, problem.dimension, seed=9)
    products = curvature.gauss_newton_products(problem, w, IMAGES, y, vectors, chunk=chunk)
    assert torch.allclose(products, vectors @ dense_gauss_newton(problem, w, IMAGES, y), atol=1e-12)


def test_no_vectors_give_no_products(setting: tuple[Problem, Tensor, Tensor]) -> None:
    problem, w, y = setting
    none = torch.zeros(0, problem.dimension, dtype=torch.float64)
    assert curvature.hessian_products(problem, w, IMAGES, y, none).shape == none.shape


def test_products_do_not_depend_on_who_is_computed_beside(setting: tuple[Problem, Tensor, Tensor]) -> None:
    problem, w, y = setting
    vectors = draw(4, problem.dimension, seed=9)
    together = curvature.hessian_products(problem, w, IMAGES, y, vectors)
    alone = curvature.hessian_products(problem, w, IMAGES, y, vectors[2:3])
    assert torch.allclose(together[2:3], alone, atol=1e-14)


def test_the_chunk_shrinks_as_the_batch_grows() -> None:
    problem = Problem(recipe(convolution, IMAGES, LABELS))
    w = problem.initial()
    small, large = (curvature.chunk_for(problem, w, torch.zeros(n, 1, 6, 6)) for n in (8, 8000))
    assert small > large >= 1


def test_the_map_of_a_clipped_step_is_the_derivative_of_clipping() -> None:
    gradient, direction, limit = 3.0 * draw(7), draw(7, seed=1), 0.8

    def clipped(g: Tensor) -> Tensor:
        return g * min(1.0, limit / float(g.norm()))

    scale = limit / float(gradient.norm())
    slope = (clipped(gradient + 1e-6 * direction) - clipped(gradient - 1e-6 * direction)) / 2e-6
    mapped = curvature.clipped_map(gradient, scale, direction.unsqueeze(0))[0]
    assert torch.allclose(mapped, slope, atol=1e-8)
    assert torch.equal(curvature.clipped_map(0.1 * gradient, 1.0, direction.unsqueeze(0))[0], direction)


def positive(size: int = 20) -> Tensor:
    factor = draw(size, size)
    return factor @ factor.T / size + 0.1 * torch.eye(size, dtype=torch.float64)


def test_conjugate_gradients_solve_to_the_stated_residual() -> None:
    matrix, b = positive(), draw(20, seed=2)
    solution = curvature.conjugate_gradients(lambda v: matrix @ v, b, 1e-10)
    true_residual = float((b - matrix @ solution.x).norm() / b.norm())
    assert solution.residual <= 1e-10
    assert true_residual == pytest.approx(solution.residual, abs=1e-12)
    assert torch.allclose(solution.x, torch.linalg.solve(matrix, b), atol=1e-8)


def test_conjugate_gradients_say_how_far_they_came_when_stopped_early() -> None:
    matrix, b = positive(), draw(20, seed=2)
    solution = curvature.conjugate_gradients(lambda v: matrix @ v, b, 1e-10, iterations=3)
    assert solution.iterations == 3
    assert solution.residual == pytest.approx(float((b - matrix @ solution.x).norm() / b.norm()), rel=1e-9)


def test_conjugate_gradients_stop_at_negative_curvature() -> None:
    solution = curvature.conjugate_gradients(lambda v: -v, draw(5), 1e-10)
    assert solution.iterations == 0
    assert solution.residual == pytest.approx(1.0)


def test_rows_are_solved_at_once_zero_rows_included() -> None:
    matrix, sides = positive(), draw(4, 20, seed=2)
    sides[1] = 0.0
    solution = curvature.solve_rows(lambda rows: rows @ matrix, sides, 1e-11)
    assert torch.allclose(solution.x, torch.linalg.solve(matrix, sides.T).T, atol=1e-9)
    assert solution.residual <= 1e-11
    assert not bool(solution.x[1].any())


def test_lanczos_finds_both_ends_of_the_spectrum() -> None:
    matrix = positive() - 0.7 * torch.eye(20, dtype=torch.float64)
    values = torch.linalg.eigvalsh(matrix)
    largest, smallest = curvature.spectral_norm(lambda v: matrix @ v, draw(20, seed=3), 20)
    assert largest == pytest.approx(float(values[-1]), rel=1e-9)
    assert smallest == pytest.approx(float(values[0]), rel=1e-9)
    early, _ = curvature.spectral_norm(lambda v: matrix @ v, draw(20, seed=3), 6)
    assert early <= largest


def test_lanczos_ends_where_the_start_spans_the_space() -> None:
    start = torch.zeros(6, dtype=torch.float64)
    start[0] = 1.0
    assert curvature.spectral_norm(lambda v: 2.0 * v, start) == pytest.approx((2.0, 2.0))


def test_a_network_in_float32_gives_products_in_float32() -> None:
    problem = Problem(network())
    inputs, targets = problem.recipe.samples.tensors()
    vectors = torch.randn(2, problem.dimension)
    assert curvature.hessian_products(problem, problem.initial(), inputs, targets, vectors).dtype == torch.float32
