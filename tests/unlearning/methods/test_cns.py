"""The published step against a dense float64 solve by plain autograd, its default damping, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unlearning as ul
from benchmarks.digits import digits
from examples.digits.recipe import SEED
from tests.contract.cases import everything, network, quadratic, softmax
from unlearning.methods.cns import Cns
from unlearning.model.curvature import ritz_pairs
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.quality.distance_left import with_distance_left
from unlearning.quality.simulate import forget_set
from unlearning.types import Examples, Refused, State, Vectors

PEOPLE = [("person-a", "person-b"), ("person-c",)]


def prepared(recipe: ul.Recipe, method: Cns) -> tuple[Problem, Examples, State]:
    problem, examples = Problem(recipe), recipe.samples.examples()
    return problem, examples, method.prepare(problem, examples, train(problem, examples))


def forgotten(method: Cns, problem: Problem, examples: Examples, state: State) -> State:
    for people in PEOPLE:
        state = method.forget(problem, state, forget_set(examples, people), None, torch.Generator()).state
    return state


def published(module: nn.Module, recipe: ul.Recipe, examples: Examples, damping: float) -> None:
    """Change the parameters of ``module`` (float64, in evaluation) by eq. 10, once for each of ``PEOPLE``.

    Written from the paper with torch's own autograd: the Hessian is dense, of all samples, at the parameters given.
    """
    decay, lost = recipe.training.weight_decay, F.cross_entropy
    undecayed = recipe.training.undecayed
    inputs, targets = recipe.samples.tensors()
    named = dict(module.named_parameters())
    names, sizes = list(named), [value.numel() for value in named.values()]

    def loss(flat: Tensor, chosen: Tensor) -> Tensor:
        parts = dict(zip(names, flat.split(sizes), strict=True))
        shaped = {name: part.reshape(named[name].shape) for name, part in parts.items()}
        outputs = torch.func.functional_call(module, shaped, inputs[chosen].double())
        penalty = sum(part.square().sum() for name, part in parts.items() if name not in undecayed)
        return lost(outputs, targets[chosen]) + decay / 2 * penalty

    w = torch.cat([value.detach().reshape(-1) for value in named.values()])
    everyone = torch.arange(len(inputs))
    hessian = torch.autograd.functional.hessian(lambda v: loss(v, everyone), w)
    damped = hessian + damping * torch.eye(len(w), dtype=torch.float64)
    left = len(inputs)
    for people in PEOPLE:
        chosen = torch.tensor([person in people for person in examples.people])
        gone = int(chosen.sum())
        gradient = torch.autograd.functional.jacobian(lambda v, u=chosen: loss(v, u), w)
        w = w + gone / (left - gone) * torch.linalg.solve(damped, gradient)
        left -= gone
    torch.nn.utils.vector_to_parameters(w, module.parameters())


@pytest.mark.parametrize(
    ("make", "damping"),
    [(softmax, 0.01), (network, 0.5), (everything, 0.6)],
    ids=["softmax", "network", "AdamW with dropout and batch normalisation"],
)
def test_two_updates_equal_the_published_equation(make: Callable[..., ul.Recipe], damping: float) -> None:
    recipe, method = make(), Cns(damping=damping, rank=1000)
    problem, examples, state = prepared(recipe, method)
    module = recipe.model().double().eval()
    module.load_state_dict(problem.double().tensors(state.weights.double()))
    published(module, recipe, examples, damping)
    work = problem.double()
    twin = work.flatten(module.state_dict())
    ours = forgotten(method, work, examples, replace(state, weights=state.weights.double())).weights
    assert float((twin - state.weights).norm()) > 1e-2
    assert float((ours - twin).abs().max()) <= 1e-6 * float((twin - state.weights).abs().max())


def test_few_directions_are_a_projected_hessian() -> None:
    """(Q T Q^T + shift I) with Q from the dense Hessian's own Krylov space, inverted densely."""
    recipe, method = network(), Cns(damping=0.5, rank=7)
    problem, examples, state = prepared(recipe, method)
    directions = state.tensors["directions"].double()
    assert directions.shape == (7, problem.dimension)
    assert torch.allclose(directions @ directions.T, torch.eye(7, dtype=torch.float64), atol=1e-6)
    decay = recipe.training.weight_decay
    low = directions.T @ torch.diag(state.tensors["eigenvalues"] - decay) @ directions
    work = problem.double()
    inverse = torch.linalg.inv(low + (decay + 0.5) * torch.eye(problem.dimension, dtype=torch.float64))
    w, left = state.weights.double(), len(examples)
    for people in PEOPLE:
        gone = forget_set(examples, people).examples
        assert gone is not None
        gradient = work.gradient(w, gone.inputs, gone.targets) + work.decay * w
        w = w + len(gone) / (left - len(gone)) * inverse @ gradient
        left -= len(gone)
    assert torch.allclose(forgotten(method, problem, examples, state).weights.double(), w, atol=1e-6)


@pytest.mark.parametrize("values", [[3.0, 1.0, -2.0, 0.5, 0.1], [1.0, 1.0, 1.0, 0.0, 0.0], [0.0] * 5])
def test_as_many_ritz_pairs_as_dimensions_are_the_eigenpairs(values: list[float]) -> None:
    generator = torch.Generator().manual_seed(3)
    turn = torch.linalg.qr(torch.randn(5, 5, generator=generator, dtype=torch.float64)).Q
    matrix = turn @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ turn.T
    found, vectors = ritz_pairs(lambda v: matrix @ v, 5, 5, generator)
    assert found.tolist() == pytest.approx(sorted(values), abs=1e-12)
    assert torch.allclose(vectors.T @ torch.diag(found) @ vectors, matrix, atol=1e-12)
    extremes, _ = ritz_pairs(lambda v: matrix @ v, 5, 3, generator)
    assert min(values) - 1e-12 <= float(extremes[0]) and float(extremes[-1]) <= max(values) + 1e-12


def test_on_digits_that_were_stopped_early_less_than_half_of_the_distance_is_left() -> None:
    training = ul.Training(epochs=200, learning_rate=3.0, weight_decay=1e-3, seed=SEED)
    recipe = replace(digits(), training=training)
    problem, examples = Problem(recipe), recipe.samples.examples()
    learned = train(problem, examples)
    left = {}
    for damping in (None, 1e-3):
        state = Cns(damping=damping).prepare(problem, examples, learned)
        measured = with_distance_left(Cns(damping=damping), problem, examples, learned, state, vectors=Vectors())
        left[damping] = measured.facts["report"]["distance_left"]  # type: ignore[index, call-overload]
        assert state.facts["damping"] == (damping or pytest.approx(1 / 600))
    assert max(left.values()) < 0.5, left


def test_a_network_is_served_above_its_negative_curvature_and_below_it_the_refusal_says_where() -> None:
    recipe = digits("convolutional")
    problem, examples = Problem(recipe), recipe.samples.examples()
    learned = train(problem, examples)
    with pytest.raises(Refused, match=r"smallest eigenvalue is at most -0\.07") as refused:
        Cns().prepare(problem, examples, learned)
    assert "Set damping above 0.07" in refused.value.hint
    state = Cns(damping=0.1).prepare(problem, examples, learned)
    measured = with_distance_left(Cns(damping=0.1), problem, examples, learned, state, vectors=Vectors())
    assert measured.facts["report"]["distance_left"] < 0.95  # type: ignore[index, call-overload, operator]


def test_the_default_damping_follows_from_the_training() -> None:
    def damping(recipe: ul.Recipe) -> Any:
        return prepared(recipe, Cns())[2].facts["damping"]

    assert damping(quadratic()) == pytest.approx(1 / (40 * 0.2))
    assert damping(quadratic(optimizer=ul.SGD(0.5))) == pytest.approx(0.5 / (40 * 0.2))
    assert damping(softmax(converge=1e-10)) == 0.0
    problem, _, state = prepared(everything(), Cns(rank=1000))
    assert state.facts["damping"] == float(state.tensors["eigenvalues"].max()) > 0
    assert state.tensors["directions"].shape == (problem.trained, problem.trained)


def test_buffers_are_left_alone() -> None:
    problem, examples, state = prepared(everything(), Cns())
    after = forgotten(Cns(), problem, examples, state).weights
    assert problem.trained < problem.dimension
    assert torch.equal(after[problem.trained :], state.weights[problem.trained :])
    assert not torch.equal(after[: problem.trained], state.weights[: problem.trained])


@pytest.mark.parametrize("wrong", [{"damping": -1.0}, {"damping": float("nan")}, {"rank": 0}])
def test_an_option_outside_its_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="cns's"):
        Cns(**wrong)


def test_curvature_that_would_not_fit_names_the_rank_that_would(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = network()
    problem = Problem(recipe)
    monkeypatch.setattr("unlearning.methods.cns.STORED_NUMBERS", 5 * problem.trained)
    with pytest.raises(Refused, match="Set rank to at most 5"):
        Cns().require_size(problem, 60)
    Cns(rank=5).require_size(problem, 60)
