"""The tangent of a network: equal to its definition, proved like a linear head, refused where it is something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from expunge_workers.guarantee.terms import guarantee_of
from tests.contract import retraining
from tests.unlearning.recipes import draw, recipe
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import Policy
from unlearning.bounds.minimiser import Minimiser
from unlearning.features import Tangent
from unlearning.features.tangent import tangent_of_rows
from unlearning.methods.newton import Newton
from unlearning.model import convex
from unlearning.model.closed_form import require_agreement, require_own_weights
from unlearning.model.problem import Problem
from unlearning.model.tangent import TangentScores, drawn_start, tangent_of, written_out
from unlearning.model.training import train
from unlearning.quality.simulate import forget_set, left_by
from unlearning.recipe import Recipe
from unlearning.types import Examples, Learned, Refused, State

COUNT, PEOPLE = 24, 12
X = draw(COUNT, 2, 6, 6)
Y = (X.flatten(1)[:, :3] + draw(COUNT, 3, seed=1)).argmax(dim=1)
TARGETS = {"cross_entropy": Y, "squared_error": draw(COUNT, 3, seed=4), "squared_hinge": Y}


def network() -> nn.Module:
    """A convolution, batch normalisation, a ReLU, a frozen layer and an attention-like product: 62 trained weights."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 3, stride=2)
            self.norm = nn.BatchNorm2d(3)
            self.frozen = nn.Linear(12, 4).requires_grad_(False)
            self.last = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.frozen(F.relu(self.norm(self.conv(x))).flatten(1))
            return self.last(torch.tanh(hidden) * torch.softmax(hidden, dim=1))

    return Gated()


def public(build: Callable[[], nn.Module] = network) -> dict[str, Tensor]:
    torch.manual_seed(5)
    module = build()
    module(torch.randn(50, 2, 6, 6))  # running statistics other than zeros and ones
    return module.state_dict()


PUBLIC = public()


def tangent() -> Tangent:
    return Tangent(network(), PUBLIC)


def small(loss: str = "cross_entropy", model: Callable[[], nn.Module] = tangent, **training: Any) -> Recipe:
    settings = {"epochs": 0, "weight_decay": 1e-2, "converge": 1e-10, **training}
    return recipe(model, X, TARGETS[loss], loss, people=PEOPLE, **settings)


def problem_of(loss: str = "cross_entropy", **training: Any) -> tuple[Problem, Examples]:
    written = small(loss, **training)
    return Problem(written).double(), written.samples.examples()


def jacobian() -> tuple[Tensor, Tensor]:
    """f (24, 3) and J (24, 3, d) of the plain network, by plain autograd, one output at a time."""
    module = network().double()
    module.load_state_dict(PUBLIC)
    module.double().eval()
    trained = [value for value in module.parameters() if value.requires_grad]
    outputs = module(X)
    rows = [retraining.flat(torch.autograd.grad(one, trained, retain_graph=True)) for one in outputs.reshape(-1)]
    return outputs.detach(), torch.stack(rows).reshape(COUNT, 3, -1)


F0, J = jacobian()
SIZE = J.shape[2]


def test_it_computes_the_network_and_its_derivative() -> None:
    module, u = tangent().double(), draw(SIZE)
    assert torch.allclose(module(X), F0, atol=1e-13)
    with torch.no_grad():
        module.displacement.copy_(u)
    assert torch.allclose(module(X), F0 + J @ u, atol=1e-12)
    assert sum(value.requires_grad for value in module.parameters()) == 1
    step = 1e-6 * u
    moved = network().double()
    moved.load_state_dict(PUBLIC)
    moved = moved.double().eval()
    trained = [value for value in moved.parameters() if value.requires_grad]
    retraining.put(trained, retraining.flat([value.double() for value in trained]) + step)
    assert torch.allclose((moved(X) - F0) / 1e-6, J @ u, atol=1e-3)


def test_both_products_and_the_rows_are_those_of_the_jacobian() -> None:
    module, v, r = tangent().double(), draw(SIZE), draw(COUNT, 3)
    found = module.linearised(X)
    values, rows = module.rows(X)
    assert torch.allclose(found.push(v), J @ v, atol=1e-12)
    assert torch.allclose(found.pull(r), torch.einsum("nk,nkd->d", r, J), atol=1e-12)
    assert abs(float((found.push(v) * r).sum() - v @ found.pull(r))) <= 1e-9
    assert torch.allclose(values, F0, atol=1e-13)
    assert torch.allclose(rows, J, atol=1e-12)


def test_the_rows_of_a_sample_are_the_same_bytes_whoever_else_is_there() -> None:
    module = tangent().double()
    values, rows = module.rows(X)
    alone = module.rows(X[7:8])
    assert torch.equal(values[7], alone[0][0])
    assert torch.equal(rows[7], alone[1][0])


def test_the_network_stays_in_evaluation_mode_and_untouched() -> None:
    given = network()
    module = Tangent(given, PUBLIC).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module(X.float()).sum().backward()
    assert module.training
    assert not module.base.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert given.training
    assert all(value.grad is None for value in given.parameters())


def test_the_wrong_weights_and_a_frozen_network_are_refused() -> None:
    with pytest.raises(RuntimeError, match="Missing key"):
        Tangent(network(), {})
    frozen = network().requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to linearise"):
        Tangent(frozen, PUBLIC)


def dense_minimiser(loss: str, kept: Tensor, decay: float) -> Tensor:
    """Newton's method on the written-out Jacobian of those who are kept, with a dense Hessian."""
    y, u = TARGETS[loss][kept], torch.zeros(SIZE, dtype=torch.float64)

    def objective(u: Tensor) -> Tensor:
        return retraining.sample_losses(loss, F0[kept] + J[kept] @ u, y).mean() + decay / 2 * u @ u

    for _ in range(60):
        slope = torch.func.grad(objective)(u)
        step = torch.linalg.solve(torch.func.hessian(objective)(u), slope)
        length = 1.0
        while float(objective(u - length * step)) > float(objective(u)) and length > 1e-6:
            length /= 2
        u = u - length * step
    return u


@pytest.mark.parametrize("loss", TARGETS)
def test_training_ends_in_the_minimiser_of_the_written_out_problem(loss: str) -> None:
    problem, examples = problem_of(loss)
    w = train(problem, examples).weights
    assert float((w - dense_minimiser(loss, torch.arange(COUNT), 1e-2)).norm()) <= 1e-7


@pytest.mark.parametrize("loss", TARGETS)
def test_the_bound_holds_at_three_weights_and_follows_the_distance(loss: str) -> None:
    problem, examples = problem_of(loss)
    w = dense_minimiser(loss, torch.arange(COUNT), 1e-2)
    slack = convex.distance_bound(problem, w, examples)
    for seed in (0, 3, 8):
        size = 10.0**-seed
        there = w + size * draw(SIZE, seed=seed)
        distance, bound = float((there - w).norm()), convex.distance_bound(problem, there, examples)
        assert distance <= bound + slack
        assert bound <= 2_000 * distance + slack


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="no 80-bit floats on this machine")
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_the_rounding_bound_covers_the_error_of_the_gradient(scale: float) -> None:
    """The twin works in 80-bit arithmetic on the rows, which are data."""
    problem, examples = problem_of()
    model = tangent_of(problem)
    assert model is not None
    values, rows = (part.numpy().astype(np.longdouble) for part in model.tangent.rows(X))
    objective = convex._Objective(model, examples, COUNT)
    for seed in range(5):
        w = scale * draw(SIZE, seed=seed)
        scores = values + rows @ w.numpy().astype(np.longdouble)
        exponents = np.exp(scores - scores.max(axis=1, keepdims=True))
        residual = exponents / exponents.sum(axis=1, keepdims=True) - np.eye(3)[Y.numpy()]
        true = np.einsum("nk,nkd->d", residual, rows) / COUNT + np.longdouble(1e-2) * w.numpy()
        gradient, rounding = objective.trusted(w)
        assert float(np.linalg.norm(gradient.numpy() - true)) <= rounding <= 1e-10 * max(1.0, scale) ** 2


def test_written_out_inputs_are_their_own_jacobian() -> None:
    module, inputs = tangent_of_rows(3, 5), draw(4, 3 + 3 * 5)
    values, rows = module.rows(inputs)
    start = torch.zeros(5, dtype=torch.float64)
    expected = [torch.func.jacrev(lambda w, x=x: module._outputs(w, x)[0])(start) for x in torch.split(inputs, 1)]
    assert torch.equal(values, inputs[:, :3]) and torch.equal(rows, torch.stack(expected))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 17, 101])
def test_scores_in_blocks_are_those_of_a_plain_product_within_their_bound(size: int) -> None:
    values, rows, w = draw(6, 3), draw(6, 3, size, seed=1), draw(size, seed=2)
    scores, drift, norms = written_out(values, rows, w)
    z, jacobians, u = (part.numpy().astype(np.longdouble) for part in (values, rows, w))
    exact = z + jacobians @ u
    assert (np.abs(scores.numpy() - exact) <= drift.numpy()).all()
    assert float(drift.max()) <= 1e-12
    assert torch.allclose(norms, rows.square().sum(dim=2).sqrt())


def test_passes_that_do_not_fit_are_made_again_and_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = problem_of()
    model, v, r = tangent_of(problem), draw(SIZE), draw(COUNT, 3)
    assert model is not None
    whole = TangentScores(model, X)
    monkeypatch.setattr("unlearning.model.tangent.KEPT", 700)
    pieces = TangentScores(model, X)
    assert pieces._size < 12
    assert torch.allclose(whole.at(v), pieces.at(v), atol=1e-12)
    assert torch.allclose(whole.pull(r), pieces.pull(r), atol=1e-12)


def test_an_update_is_proved_and_lies_within_its_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound, which costs as much as several solves, is computed once."""
    written = small()
    problem, examples = Problem(written), written.samples.examples()
    method = Newton()
    policy = Policy.from_json({"method": "newton", "guarantee": "proved"})
    assert guarantee_of(policy, problem, method) is Guarantee.PROVED
    require_own_weights(problem, examples, torch.Generator().manual_seed(0))
    require_agreement(problem.double(), examples, torch.Generator().manual_seed(0))
    learned = train(problem, examples)
    state = method.prepare(problem, examples, learned)
    bound, cap = Minimiser(), 1e-6
    told = bound.require_useful(problem, examples, state, cap, {})
    assert told["linearised_around"] == "the given weights"
    assert told["accuracy_there"] == float((F0.argmax(dim=1) == Y).double().mean())
    forget = forget_set(examples, ["p3", "p5"])
    kept = left_by(examples, forget)
    done = method.forget(problem, state, forget, kept, torch.Generator())
    computed, trusted = [], convex._Objective.trusted
    monkeypatch.setattr(convex._Objective, "trusted", lambda *given: computed.append(1) or trusted(*given))
    weights, claimed = bound.refine(problem, done, kept, cap, {})
    assert len(computed) == 1
    assert claimed == bound.distance(problem, type(done)(State(weights)), kept, {}) <= cap
    assert float((weights - dense_minimiser("cross_entropy", kept.positions, 1e-2)).norm()) <= cap


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(72, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1)
        outputs: Tensor = self.last(rows - rows.mean(dim=0))
        return outputs


def mixing() -> nn.Module:
    return Tangent(Mixing(), Mixing().state_dict())


def hooked() -> nn.Module:
    module = tangent()
    module.register_forward_hook(lambda _module, _inputs, out: 2.0 * out)
    return module


def test_what_mixes_samples_and_what_is_hooked_is_refused() -> None:
    mixed = small(model=mixing)
    with pytest.raises(Refused, match="outputs for a sample alone"):
        require_agreement(Problem(mixed).double(), mixed.samples.examples(), torch.Generator().manual_seed(0))
    with pytest.raises(Refused, match="not known to be convex"):
        convex.require_strongly_convex(Problem(small(model=hooked)))


def test_a_distance_that_doing_nothing_would_meet_is_refused() -> None:
    for written in (small(), recipe(lambda: nn.Linear(72, 3, bias=False), X.flatten(1), Y, people=PEOPLE, **DECAYED)):
        problem, examples = Problem(written), written.samples.examples()
        state = State(train(problem, examples).weights)
        (moved,) = convex.displacements(problem.double(), state.weights, examples, [torch.arange(0, COUNT, PEOPLE)])
        Minimiser().require_useful(problem, examples, state, moved / 30, {})
        with pytest.raises(Refused, match="what forgetting one person changes"):
            Minimiser().require_useful(problem, examples, state, moved * 3, {})


def test_where_people_differ_much_three_of_them_refuse_no_recipe() -> None:
    """People far from the boundary move hardly anything: three of four here move more than the limit asks."""
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(120, 2, generator=draws)
    y = (x[:, 0] + torch.randn(120, generator=draws) > 0).long()
    written = recipe(lambda: nn.Linear(2, 2, bias=False), x, y, people=120, **DECAYED)
    problem, examples = Problem(written), written.samples.examples()
    state = State(train(problem, examples).weights)
    one_each = [torch.tensor([place]) for place in range(120)]
    moved = sorted(convex.displacements(problem.double(), state.weights, examples, one_each))
    limit = moved[len(moved) // 4] / 3
    assert moved[0] * 20 < moved[-1]
    for seed in range(40):
        again = replace(problem.recipe, training=replace(problem.training, seed=seed))
        Minimiser().require_useful(Problem(again), examples, state, limit, {})


def test_a_random_start_is_told() -> None:
    def at_random() -> nn.Module:
        drawn = network()
        return Tangent(drawn, drawn.state_dict())

    assert drawn_start(Problem(small(model=at_random)))
    assert not drawn_start(Problem(small()))


DECAYED: dict[str, Any] = {"epochs": 0, "weight_decay": 1e-2, "converge": 1e-10}


def test_the_displacement_is_about_that_of_the_minimisers() -> None:
    problem, examples = problem_of()
    w = dense_minimiser("cross_entropy", torch.arange(COUNT), 1e-2)
    kept = torch.arange(COUNT)[torch.arange(COUNT) % PEOPLE != 4]
    true = float((dense_minimiser("cross_entropy", kept, 1e-2) - w).norm())
    (estimate,) = convex.displacements(problem, w, examples, [torch.arange(4, COUNT, PEOPLE)])
    assert 0.7 * true < estimate < 1.4 * true


def test_weights_learned_elsewhere_start_a_tangent_too() -> None:
    """A displacement far from the minimum is brought there; ``Learned`` weights need not come from our training."""
    problem, examples = problem_of()
    state = Newton(steps=20, gradient_norm=1e-9).prepare(problem, examples, Learned(0.1 * draw(SIZE)))
    found = convex.converge(problem, state.weights, examples, 1e-10)
    assert float((found - dense_minimiser("cross_entropy", torch.arange(COUNT), 1e-2)).norm()) <= 1e-7
