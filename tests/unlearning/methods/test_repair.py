"""A repair is the training gone on, and the vectors carried through it are still the derivative of all of it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unlearning.methods.test_recollection import SETTINGS, forget_set, of_network, prepared, weighted_training
from tests.unlearning.recipes import draw, network, recipe, softmax
from unlearning.methods.recollection import Recollection, repair, vectors
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.quality.simulate import forget_set as whole
from unlearning.quality.simulate import left_by, release
from unlearning.types import Examples, ForgetSet, Forgotten, Learned, Need, Refused, State, Vectors

REPAIRING = Recollection(repair_epochs=2, carried_by="everyone")
GONE = ("p1", "p4")


def given(forget: ForgetSet, state: State) -> ForgetSet:
    """The forget set with the vectors that ``state`` has."""
    return replace(forget, vectors=Vectors(state.vectors))


Updated = tuple[Problem, Examples, State, State, Forgotten]


@cache
def repaired(*gone: str, **training: Any) -> Updated:
    """Update ``network`` once for all tests that look at it: none of them changes it."""
    return updated(of_network(REPAIRING, **training), *gone)


def updated(scene: tuple[Problem, Examples, Learned, State], *gone: str) -> Updated:
    problem, examples, _, state = scene
    forget = forget_set(examples, *gone)
    retain = left_by(examples, forget)
    done = REPAIRING.forget(problem, state, given(forget, state), retain, torch.Generator())
    return problem, examples, state, done.state, done


def gone_on(problem: Problem, examples: Examples, w: Tensor, mass: Tensor, first: int, epochs: int = 2) -> Tensor:
    """Plain gradient descent for ``epochs`` more passes over those with a place in ``mass`` (n,), |B| kept; a loop of
    its own, with autograd and Python's arithmetic."""
    training, places = problem.training, {int(position): row for row, position in enumerate(examples.positions)}
    generator = torch.Generator().manual_seed(training.seed + first)
    size = training.batch_size or len(examples)
    step = first
    for _ in range(epochs):
        order = (
            torch.randperm(len(examples), generator=generator) if size < len(examples) else torch.arange(len(examples))
        )
        for start in range(0, len(order), size):
            rows = [places[int(position)] for position in examples.positions[order[start : start + size]]]
            v = w.clone().requires_grad_()
            losses = problem.sample_losses(v, examples.inputs[rows], examples.targets[rows])
            (gradient,) = torch.autograd.grad((losses * mass[rows]).sum() / len(rows), v)
            gradient = gradient + problem.decay * w
            scale = min(1.0, training.clip / float(gradient.norm())) if training.clip else 1.0
            w = w - training.learning_rate * training.decay**step * scale * gradient
            step += 1
    return w


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_repaired_vector_is_the_derivative_of_the_training_gone_on(setting: str) -> None:
    problem, examples, before, after, _ = repaired(*GONE, **SETTINGS[setting])
    learned = of_network(REPAIRING, **SETTINGS[setting])[2]
    assert learned.trajectory is not None
    forget = forget_set(examples, *GONE)
    retain = left_by(examples, forget)
    correction = sum(before.vectors[name] for name in GONE)
    steps = len(learned.trajectory)

    def course(share: float) -> Tensor:
        """The training, the update and the repair with every gradient of p3 weighted by 1 - share."""
        weight = 1.0 - share * torch.tensor([person == "p3" for person in examples.people]).double()
        w = weighted_training(problem, examples, learned.trajectory, weight) + correction
        left = 1.0 - share * torch.tensor([person == "p3" for person in retain.people]).double()
        return gone_on(problem, retain, w, left, steps)

    assert torch.allclose(after.weights, course(0.0), atol=1e-12)
    slope = (course(1e-5) - course(-1e-5)) / 2e-5
    assert float((after.vectors["p3"] - slope).norm() / slope.norm()) < 1e-7
    assert float((before.vectors["p3"] - slope).norm() / slope.norm()) > 1e-2, "the old vector would be wrong"
    assert set(after.vectors) == set(before.vectors) - set(GONE)


def test_a_second_repair_takes_the_steps_after_the_first() -> None:
    problem, examples, _, first, _ = repaired("p1", decay=0.9)
    assert first.facts["steps"] == 12 + 2 * 3
    forget = forget_set(examples, "p2")
    retain = left_by(examples, forget_set(examples, "p1", "p2"))
    second = REPAIRING.forget(problem, first, given(forget, first), retain, torch.Generator()).state
    expected = gone_on(problem, retain, first.weights + first.vectors["p2"], torch.ones(len(retain)).double(), 18)
    assert torch.allclose(second.weights, expected, atol=1e-12)


def test_groups_of_vectors_are_carried_like_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, _, together, _ = repaired(*GONE)
    monkeypatch.setattr(vectors, "GROUP_LIMIT", 2 * 39)
    monkeypatch.setattr(repair, "GROUP_LIMIT", 10**6)
    _, _, _, apart, _ = updated(prepared(network(), REPAIRING), *GONE)
    for person, vector in together.vectors.items():
        assert torch.allclose(vector, apart.vectors[person], atol=1e-14)


def test_a_stream_in_memory_uses_the_carried_vectors() -> None:
    problem, examples, _, _, done = repaired("p1")
    state = of_network(REPAIRING)[3]
    chosen = whole(examples, ["p1"])
    streamed = release(REPAIRING, problem, state, chosen, left_by(examples, chosen), generator=torch.Generator()).state
    for person, vector in done.state.vectors.items():
        assert torch.equal(vector, streamed.vectors[person])


def test_repair_reads_the_retained_and_everyones_vectors_and_says_what_it_did() -> None:
    assert REPAIRING.needs == {Need.RETAINED, Need.VECTORS}
    assert Recollection().needs == frozenset()
    _, _, _, after, done = repaired(*GONE)
    assert done.evidence["distance_repaired"] != done.evidence["distance_moved"]
    assert after.facts["forgotten"] == len(forget_set(of_network()[1], *GONE).positions)


def test_what_repair_cannot_serve_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="end in a minimiser without repair"):
        prepared(softmax(), REPAIRING)
    with pytest.raises(ValueError, match="repair_epochs must be 0 or more"):
        Recollection(repair_epochs=-1)
    problem, examples, _, state = of_network(REPAIRING)
    forget = forget_set(examples, "p1")
    with pytest.raises(Refused, match="retain set is not readable"):
        REPAIRING.forget(problem, state, given(forget, state), None, torch.Generator())
    broken = State(state.weights * float("inf"), {}, state.facts, state.vectors)
    with pytest.raises(Refused, match="repair diverges"):
        REPAIRING.forget(problem, broken, given(forget, broken), left_by(examples, forget), torch.Generator())
    assert REPAIRING.forget(problem, state, ForgetSet(frozenset(), ()), None, torch.Generator()).state is state
    monkeypatch.setattr(repair, "GROUP_LIMIT", 7 * 39 - 1)
    with pytest.raises(Refused, match="all 7 people at every update, 39 numbers each"):
        prepared(network(), REPAIRING)


def test_vectors_carried_by_the_others_stay_exact_on_a_quadratic() -> None:
    x, y = draw(30, 4), draw(30, 1, seed=1)
    written = recipe(lambda: torch.nn.Linear(4, 1), x, y, loss="squared_error", batch_size=10, weight_decay=1e-2)
    method = replace(REPAIRING, carried_by="others")
    problem, examples, learned, state = prepared(written, method)
    forget = forget_set(examples, "p1")
    retain = left_by(examples, forget)
    after = method.forget(problem, state, given(forget, state), retain, torch.Generator()).state
    also = forget_set(examples, "p3")
    without = train(problem, examples, omit=also.positions, reference="fixed-denominator").weights
    mass = torch.tensor([person != "p3" for person in retain.people]).double()
    assert learned.trajectory is not None
    taken = gone_on(problem, retain, without + state.vectors["p1"], mass, len(learned.trajectory))
    assert float((after.weights + after.vectors["p3"] - taken).norm()) < 1e-12


def with_tolerance(tolerance: float, fell_by: float) -> tuple[State, Forgotten]:
    """The state that is prepared, and an update whose accuracy lies ``fell_by`` below what the state remembers."""
    method = replace(REPAIRING, repair_tolerance=tolerance)
    problem, examples, _, state = of_network(method)
    forget = forget_set(examples, *GONE)
    added = state.weights + sum(state.vectors[name] for name in GONE)
    now = problem.accuracy(added, *problem.recipe.holdout)
    remembered = replace(state, facts={**state.facts, "accuracy": now + fell_by})
    done = method.forget(problem, remembered, given(forget, state), left_by(examples, forget), torch.Generator())
    return state, done


def test_an_update_within_the_tolerance_is_the_addition_alone() -> None:
    state, done = with_tolerance(0.1, 0.05)
    assert torch.allclose(done.state.weights, state.weights + sum(state.vectors[name] for name in GONE))
    assert done.state.vectors == {}
    assert done.state.facts["steps"] == state.facts["steps"]
    assert "distance_repaired" not in done.evidence


def test_an_update_beyond_the_tolerance_is_repaired_as_any_other() -> None:
    _, done = with_tolerance(0.1, 0.15)
    _, _, _, always, _ = repaired(*GONE)
    assert torch.equal(done.state.weights, always.weights)
    assert done.state.vectors.keys() == always.vectors.keys()
    assert all(torch.equal(done.state.vectors[name], always.vectors[name]) for name in always.vectors)


def test_the_preparation_remembers_its_accuracy() -> None:
    problem, _, learned, state = of_network(REPAIRING)
    assert state.facts["accuracy"] == problem.accuracy(learned.weights, *problem.recipe.holdout)


@pytest.mark.parametrize(("epochs", "tolerance"), [(0, 0.1), (2, -0.1), (2, 1.0)])
def test_a_tolerance_without_a_repair_or_outside_its_range_is_refused(epochs: int, tolerance: float) -> None:
    with pytest.raises(ValueError, match="repair_tolerance needs repair_epochs"):
        Recollection(repair_epochs=epochs, repair_tolerance=tolerance)
