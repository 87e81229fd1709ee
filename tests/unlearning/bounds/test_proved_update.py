"""An update under ``proved``, beside a minimiser of one's own, and with a solve that goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import unlearning as ul
from unlearning.accounting.certificate import Guarantee
from unlearning.bounds.minimiser import Minimiser
from unlearning.methods.newton import Newton
from unlearning.model import convex
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.quality.simulate import forget_set, left_by
from unlearning.types import Examples, ForgetSet, Forgotten, Refused, State

CAP, DECAY, CLASSES, WIDTH, PEOPLE, EACH = 1e-6, 1e-2, 3, 4, 100, 5
SCALE = torch.tensor([1.0, 1.0, 5.0, 25.0], dtype=torch.float64)
"""of the columns: without a preconditioner a solve takes many products"""


def recipe(loss: str, people: int) -> ul.Recipe:
    by, count = torch.Generator().manual_seed(4), people * EACH
    x = torch.randn(count, WIDTH, generator=by, dtype=torch.float64)
    scores = x @ torch.randn(WIDTH, CLASSES, generator=by, dtype=torch.float64)
    y = (scores + 0.5 * torch.randn(count, CLASSES, generator=by, dtype=torch.float64)).argmax(dim=1)
    outputs, y = {"cross_entropy": (CLASSES, y), "binary_logistic": (1, y % 2), "squared_hinge": (CLASSES, y)}[loss]
    names = [f"s{k}" for k in range(count)], [f"p{k // EACH}" for k in range(count)]
    return ul.Recipe(
        model=lambda: nn.Linear(WIDTH, outputs),
        samples=ul.Samples(*names, x * SCALE, y),
        holdout=(x[:5], y[:5]),
        loss=loss,
        training=ul.Training(epochs=0, weight_decay=DECAY, converge=DECAY * CAP / 10),
    )


def minimiser(loss: str, examples: Examples) -> Tensor:
    """Weight (K, D) in one row, then bias (K,): dense Newton steps by automatic differentiation, halved as needed."""
    x, y = examples.inputs, examples.targets
    ones = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
    outputs = 1 if loss == "binary_logistic" else CLASSES

    def objective(flat: Tensor) -> Tensor:
        z = ones @ torch.cat([flat[:-outputs].reshape(outputs, WIDTH), flat[-outputs:].unsqueeze(1)], dim=1).T
        match loss:
            case "cross_entropy":
                data = nn.functional.cross_entropy(z, y)
            case "binary_logistic":
                data = nn.functional.binary_cross_entropy_with_logits(z[:, 0], y.double())
            case _:
                signs = 2.0 * nn.functional.one_hot(y, CLASSES) - 1.0
                data = 0.5 * (1.0 - signs * z).clamp(min=0.0).square().sum(dim=1).mean()
        return data + DECAY / 2 * flat.dot(flat)

    w = torch.zeros(outputs * (WIDTH + 1), dtype=torch.float64)
    for _ in range(100):
        gradient = torch.func.grad(objective)(w)
        if float(gradient.norm()) <= 1e-12:
            return w
        step, length = torch.linalg.solve(torch.func.hessian(objective)(w), gradient), 1.0
        while length > 1e-9 and not objective(w - length * step) < objective(w):
            length /= 2
        w = w - (length if length > 1e-9 else 1.0) * step
    raise AssertionError("the slow twin did not converge")


class Updates:
    """A trained head, and what is left of its people."""

    def __init__(self, loss: str = "cross_entropy", people: int = PEOPLE) -> None:
        written = recipe(loss, people)
        self.loss, self.problem = loss, Problem(written)
        self.method = Newton().under(Guarantee.PROVED, written)
        self.left = written.samples.examples()
        self.state = self.method.prepare(self.problem, self.left, train(self.problem, self.left))

    def without(self, people: Sequence[str], cap: float = CAP) -> float:
        """Forget as the service does, and go on from there; return the bound."""
        forget: ForgetSet = forget_set(self.left, people)
        self.left = left_by(self.left, forget)
        weights, bound = Minimiser().refine(self.problem, Forgotten(self.state), self.left, cap, {})
        self.state = replace(self.state, weights=weights)
        return bound

    def distance(self) -> float:
        return float((self.state.weights - minimiser(self.loss, self.left)).norm())


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often the retained samples are read for a gradient, and for a gradient with its rounding."""
    counts = {"slope": 0, "trusted": 0}

    def counted(name: str) -> Callable[[object, Tensor], convex.Slope]:
        real = getattr(convex._Objective, name)

        def counting(objective: object, w: Tensor) -> convex.Slope:
            counts[name] += 1
            return real(objective, w)

        return counting

    for name in counts:
        monkeypatch.setattr(convex._Objective, name, counted(name))
    return counts


@pytest.mark.parametrize("loss", ["cross_entropy", "binary_logistic", "squared_hinge"])
def test_rounds_stay_within_their_bounds(loss: str) -> None:
    """Three people one by one, two together, one again."""
    updates = Updates(loss)
    for people in (["p3"], ["p50"], ["p7"], ["p20", "p21"], ["p99"]):
        before, w = updates.distance(), updates.state.weights
        bound = updates.without(people)
        moved = float((updates.state.weights - w).norm())
        assert updates.distance() <= bound <= CAP
        assert before <= CAP < 1e-2 * moved


def test_an_update_takes_a_gradient_a_solve_and_one_pass_for_the_bound(passes: dict[str, int]) -> None:
    """Where few of many leave, one step of Newton's method does."""
    updates = Updates(people=4_000)
    passes.update(slope=0, trusted=0)
    before = updates.state.weights
    bound = updates.without(["p3"])
    assert passes == {"slope": 1, "trusted": 1}
    assert updates.distance() <= bound <= CAP < 0.02 * float((updates.state.weights - before).norm())


def test_the_state_holds_the_weights_alone_which_are_near_those_of_a_training_without_the_person() -> None:
    """No factor and no sum of gradients is kept: each is a function of people who may be gone."""
    updates = Updates()
    updates.without(["p3"])
    never = updates.method.prepare(updates.problem, updates.left, train(updates.problem, updates.left))
    assert updates.state.tensors == never.tensors == {} and updates.state.vectors == {}
    assert updates.state.facts == never.facts
    assert float((updates.state.weights - never.weights).norm()) <= 2 * CAP


def of_other_data(v: Tensor) -> Tensor:
    other = torch.randn(len(v), len(v), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return ((other @ other.T) @ v.double()).to(v.dtype)


WRONG = {
    "absent": None,
    "scaled": lambda v: 1e6 * v,
    "of other data": of_other_data,
    "not definite": lambda v: -v,
    "zero": torch.zeros_like,
    "not a number": lambda v: v * float("nan"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_preconditioner_costs_work_and_changes_no_claim(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, updates = Updates(), Updates()
    expected = right.without(["p3"])
    monkeypatch.setattr(convex._Objective, "_factor", lambda *_: WRONG[wrong])
    bound = updates.without(["p3"])
    assert updates.distance() <= bound <= CAP
    assert right.distance() <= expected <= CAP


def test_a_preconditioner_from_some_rows_makes_the_solve_short(monkeypatch: pytest.MonkeyPatch) -> None:
    products, real = [], convex.conjugate_gradients

    def counting(*given, **named):
        products.append(real(*given, **named))
        return products[-1]

    updates, plain = Updates(), Updates()
    monkeypatch.setattr(convex, "conjugate_gradients", counting)
    updates.without(["p3"])
    short = sum(solution.iterations for solution in products)
    products.clear()
    monkeypatch.setattr(convex._Objective, "_factor", lambda *_: None)
    plain.without(["p3"])
    assert 2 * short <= sum(solution.iterations for solution in products)


def test_steps_that_float32_cannot_make_are_made_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products that are off by a half: the next step is float64's, and the bound is met all the same."""
    steps, real, product = [], convex._Objective.step, convex.hessian

    def noted(objective: object, *given: object, quick: bool) -> Tensor:
        steps.append(quick)
        return real(objective, *given, quick=quick)

    def hessian(curve: object, scores: object, w: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        exact = product(curve, scores, w, y)
        return (lambda v: 30 * exact(v)) if w.dtype == torch.float32 else exact

    updates = Updates()
    monkeypatch.setattr(convex._Objective, "step", noted)
    monkeypatch.setattr(convex, "hessian", hessian)
    bound = updates.without(["p3"])
    assert steps[:2] == [True, False]
    assert updates.distance() <= bound <= CAP


def test_a_cap_that_rounding_alone_exceeds_is_not_claimed() -> None:
    updates = Updates()
    weights, bound = Minimiser().refine(updates.problem, Forgotten(updates.state), updates.left, 1e-30, {})
    assert bound > 1e-30
    assert bound == Minimiser().distance(updates.problem, Forgotten(State(weights)), updates.left, {})


def test_nobody_left_is_refused() -> None:
    updates = Updates()
    nobody = updates.left.without(updates.left.positions)
    with pytest.raises(Refused, match="No sample is left"):
        Minimiser().refine(updates.problem, Forgotten(updates.state), nobody, CAP, {})
