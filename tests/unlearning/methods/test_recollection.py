"""Recollections equal their slow twins: finite differences, a per-sample loop with dense Hessians, dense solves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unlearning.model.test_training import recorded
from tests.unlearning.recipes import draw, network, recipe, softmax
from unlearning.methods.recollection import Recollection, vectors
from unlearning.model.curvature import clipped_map
from unlearning.model.problem import Problem
from unlearning.model.training import learn, train
from unlearning.quality import simulate
from unlearning.quality.distance_left import THRESHOLD, calibration_sets, distance_left, with_distance_left
from unlearning.quality.simulate import left_by
from unlearning.recipe import Recipe
from unlearning.types import Examples, ForgetSet, Ineffective, Learned, Refused, State, Trajectory, Vectors

SETTINGS = {"plain": {}, "clipped": {"clip": 0.55}, "always clipped": {"clip": 0.05}, "decaying": {"decay": 0.9}}
LAX = Recollection()
PUBLISHED = replace(LAX, carried_by="everyone")


def prepared(written: Recipe, method: Recollection = LAX) -> tuple[Problem, Examples, Learned, State]:
    problem, examples = Problem(written, dtype=torch.float64), written.samples.examples()
    learned = train(problem, examples)
    return problem, examples, learned, method.prepare(problem, examples, learned)


@cache
def of_network(method: Recollection = LAX, **training: Any) -> tuple[Problem, Examples, Learned, State]:
    """Prepare ``network`` once for all tests that look at it: none of them changes it."""
    return prepared(network(**training), method)


def forget_set(examples: Examples, *people: str) -> ForgetSet:
    chosen = [place for place, person in enumerate(examples.people) if person in people]
    return ForgetSet(frozenset(people), tuple(chosen))


def release(problem: Problem, state: State, examples: Examples, *people: str) -> State:
    forget, generator = forget_set(examples, *people), torch.Generator()
    return simulate.release(LAX, problem, state, forget, left_by(examples, forget), generator=generator).state


def weighted_training(problem: Problem, examples: Examples, trajectory: Trajectory, mass: Tensor) -> Tensor:
    """The training with every sample's gradient multiplied by its mass (n,), |B_t| kept."""
    training, w = problem.training, problem.initial()
    for rate, positions in zip(trajectory.rates, trajectory.batches, strict=True):
        v = w.clone().requires_grad_()
        losses = problem.sample_losses(v, examples.inputs[positions], examples.targets[positions])
        (gradient,) = torch.autograd.grad((losses * mass[positions]).sum() / len(positions), v)
        gradient = gradient + problem.decay * w
        scale = min(1.0, training.clip / float(gradient.norm())) if training.clip else 1.0
        w = w - rate * scale * gradient
    return w


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_recollection_is_the_derivative_of_the_training(setting: str) -> None:
    problem, examples, learned, state = of_network(PUBLISHED, **SETTINGS[setting])
    assert learned.trajectory is not None
    clipped = sum(scale < 1.0 for scale in learned.trajectory.scales)
    assert {"plain": clipped == 0, "clipped": 0 < clipped < 12, "always clipped": clipped == 12}.get(setting, True)
    mine = torch.tensor([person == "p3" for person in examples.people]).double()
    less, more = (weighted_training(problem, examples, learned.trajectory, 1.0 - step * mine) for step in (1e-5, -1e-5))
    slope = (less - more) / 2e-5
    assert float((state.vectors["p3"] - slope).norm() / slope.norm()) < 1e-8


def test_a_frozen_clipping_scale_would_be_measurably_wrong() -> None:
    """Why a clipped step carries the derivative of clipping and not just its factor."""
    problem, examples, learned, state = of_network(PUBLISHED, clip=0.55)
    assert learned.trajectory is not None
    frozen = per_sample_loop(problem, examples, learned.trajectory, lambda _gradient, scale, v: scale * v)
    exact = state.vectors["p3"]
    ours = sum(vector for vector, person in zip(frozen, examples.people, strict=True) if person == "p3")
    assert float((ours - exact).norm() / exact.norm()) > 1e-3


def per_sample_loop(
    problem: Problem, examples: Examples, trajectory: Trajectory, turn: Callable[[Tensor, float, Tensor], Tensor]
) -> Tensor:
    """The published loop: one vector per sample, a dense Hessian at every step. (n, d)"""
    vectors = torch.zeros(len(examples), problem.dimension, dtype=torch.float64)
    w = problem.initial()
    for rate, scale, positions in zip(trajectory.rates, trajectory.scales, trajectory.batches, strict=True):
        x, y = examples.inputs[positions], examples.targets[positions]
        hessian = torch.autograd.functional.hessian(lambda u, x=x, y=y: problem.mean_loss(u, x, y), w)
        hessian = hessian + torch.diag(problem.decay)
        gradient = problem.gradient(w, x, y) + problem.decay * w
        for sample in range(len(examples)):
            change = hessian @ vectors[sample]
            if sample in positions.tolist():
                alone = problem.gradient(w, examples.inputs[sample : sample + 1], examples.targets[sample : sample + 1])
                change = change - alone / len(positions)
            vectors[sample] = vectors[sample] - rate * turn(gradient, scale, change.unsqueeze(0))[0]
        w = w - rate * scale * gradient
    return vectors


@pytest.mark.parametrize("setting", ["plain", "clipped"])
def test_batched_recollections_equal_the_published_per_sample_loop(setting: str) -> None:
    problem, examples, learned, state = of_network(PUBLISHED, epochs=2, **SETTINGS[setting])
    assert learned.trajectory is not None
    slow = per_sample_loop(problem, examples, learned.trajectory, clipped_map)
    for person, vector in state.vectors.items():
        mine = torch.tensor([name == person for name in examples.people])
        assert torch.allclose(vector, slow[mine].sum(dim=0), atol=1e-13)


def test_a_linear_head_in_closed_form_equals_the_per_sample_loop() -> None:
    written = softmax(epochs=3, batch_size=25, learning_rate=0.5, converge=None)
    problem, examples, learned, state = prepared(written, PUBLISHED)
    assert learned.trajectory is not None
    slow = per_sample_loop(problem, examples, learned.trajectory, clipped_map)
    for person, vector in state.vectors.items():
        mine = torch.tensor([name == person for name in examples.people])
        assert torch.allclose(vector, slow[mine].sum(dim=0), atol=1e-13)


@pytest.mark.parametrize("written", [network(clip=0.55), softmax()], ids=["trajectory", "converged"])
def test_recollections_are_exactly_linear(written: Recipe) -> None:
    """People merged before preparation have the sum of their published vectors."""
    problem, examples, learned, state = prepared(written, PUBLISHED)
    pair = tuple("p1+p4" if person in ("p1", "p4") else person for person in examples.people)
    merged = PUBLISHED.prepare(problem, replace(examples, people=pair), learned)
    assert torch.allclose(merged.vectors["p1+p4"], state.vectors["p1"] + state.vectors["p4"], atol=1e-13)


@pytest.mark.parametrize("written", [network(clip=0.55), softmax()], ids=["trajectory", "converged"])
def test_updates_add_up_however_they_are_cut(written: Recipe) -> None:
    problem, examples, _, state = prepared(written)
    once = release(problem, state, examples, "p1", "p4", "p5").weights
    first = release(problem, state, examples, "p5")
    twice = release(problem, first, examples, "p1", "p4").weights
    assert torch.allclose(once, twice, atol=1e-13)


def test_people_beyond_the_memory_limit_take_further_passes_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, examples, learned, state = of_network(clip=0.55)
    monkeypatch.setattr(vectors, "GROUP_LIMIT", 3 * problem.dimension)
    parts = LAX.prepare(problem, examples, learned)
    assert all(torch.allclose(parts.vectors[person], vector, atol=1e-14) for person, vector in state.vectors.items())


def test_the_gauss_newton_curvature_is_that_of_a_linearised_model() -> None:
    """On a head both curvatures agree; on a network they do not."""
    gauss = replace(LAX, curvature="gauss-newton")
    for written, same in ((softmax(epochs=3, learning_rate=0.5, converge=None), True), (network(), False)):
        _, _, _, plain = prepared(written)
        _, _, _, other = prepared(written, gauss)
        assert torch.allclose(plain.vectors["p2"], other.vectors["p2"], atol=1e-12) is same


def test_a_recorded_training_is_recollected_like_our_own() -> None:
    written, _ = recorded()
    problem, examples = Problem(written), written.samples.examples()
    learned = learn(written, problem, examples)
    state = PUBLISHED.prepare(problem, examples, learned)
    assert learned.trajectory is not None
    mine = torch.tensor([person == "p3" for person in examples.people]).double()
    double = problem.double()
    retrained = weighted_training(double, examples, learned.trajectory, 1.0 - 1e-3 * mine)
    full = weighted_training(double, examples, learned.trajectory, torch.ones(40).double())
    slope = (retrained - full) / 1e-3
    assert float((state.vectors["p3"] - slope).norm() / slope.norm()) < 1e-2


@pytest.mark.parametrize("dense_limit", [0, 2048])
@pytest.mark.parametrize("reference", ["renormalised", "fixed-denominator"])
def test_converged_recollections_equal_the_dense_solve(
    reference: str, dense_limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "DENSE_LIMIT", dense_limit)
    problem, examples, learned, state = prepared(softmax(), replace(LAX, reference=reference))
    w = learned.weights
    hessian = torch.autograd.functional.hessian(lambda u: problem.mean_loss(u, examples.inputs, examples.targets), w)
    hessian = hessian + 1e-2 * torch.eye(problem.dimension, dtype=torch.float64)
    each = problem.sample_gradients(w, examples.inputs, examples.targets)
    each = each + 1e-2 * w if reference == "renormalised" else each
    mine = torch.tensor([person == "p3" for person in examples.people])
    expected = torch.linalg.solve(hessian, each[mine].sum(dim=0)) / 60
    assert torch.allclose(state.vectors["p3"], expected, atol=1e-9)
    gone = release(problem, state, examples, "p3", "p9")
    total = state.vectors["p3"] + state.vectors["p9"]
    factor = 60 / 50 if reference == "renormalised" else 1.0
    assert torch.allclose(gone.weights, w + factor * total, atol=1e-12)


def test_the_renormalising_factor_helps() -> None:
    problem, examples, learned, state = prepared(softmax())
    forget = forget_set(examples, "p1", "p4", "p7")
    retrained = train(problem, examples, omit=forget.positions).weights
    with_factor = release(problem, state, examples, *forget.people).weights
    without = learned.weights + sum(state.vectors[person] for person in forget.people)
    assert distance_left(learned.weights, with_factor, retrained) < 0.8 * distance_left(
        learned.weights, without, retrained
    )


def test_what_a_certificate_polished_is_kept_by_the_next_release() -> None:
    problem, examples, _, state = prepared(softmax())
    first = release(problem, state, examples, "p1")
    polish = 1e-3 * draw(problem.dimension, seed=3)
    polished = replace(first, weights=first.weights + polish)
    plain = release(problem, first, examples, "p2").weights
    assert torch.allclose(release(problem, polished, examples, "p2").weights, plain + polish, atol=1e-14)


def test_all_renormalised_vectors_sum_to_nothing() -> None:
    """So the stored correction tells no more than the remaining vectors do."""
    _, _, _, state = prepared(softmax())
    total = torch.stack(list(state.vectors.values())).sum(dim=0)
    assert float(total.norm()) < 1e-6 * max(float(vector.norm()) for vector in state.vectors.values())


def test_the_report_says_what_was_measured() -> None:
    _, _, _, state = of_network(clip=0.55)
    report = json.loads(json.dumps(state.facts["report"]))
    assert report["form"] == "trajectory"
    assert report["reference"] == "fixed-denominator"
    assert 0 < report["clipped_steps"] < 12
    assert report["eta_lambda_max"] == max(report["eta_lambda_max_along"]) > 0.0


def test_eta_lambda_max_is_that_of_the_dense_hessian() -> None:
    problem, examples, _, state = of_network(epochs=1, batch_size=None, weight_decay=0.1)
    start = problem.initial()
    hessian = torch.autograd.functional.hessian(
        lambda u: problem.mean_loss(u, examples.inputs, examples.targets), start
    )
    largest = float(torch.linalg.eigvalsh(hessian)[-1]) + 0.1
    assert state.facts["report"]["eta_lambda_max"] == pytest.approx(0.2 * largest, rel=1e-4)  # type: ignore[index,call-overload]


def measured(
    problem: Problem, examples: Examples, learned: Learned, state: State, threshold: float = THRESHOLD
) -> State:
    source = Vectors(state.vectors)
    return with_distance_left(Recollection(), problem, examples, learned, state, vectors=source, threshold=threshold)


def test_the_measured_distance_left_is_that_of_a_real_retraining() -> None:
    problem, examples, learned, state = of_network(Recollection())
    left = []
    for chosen in calibration_sets(examples, 0.05, 3, problem.training.seed):
        retrained = train(problem, examples, omit=list(chosen.positions), reference="fixed-denominator").weights
        unlearned = learned.weights + state.vectors[next(iter(chosen.people))]
        left.append(distance_left(learned.weights, unlearned, retrained))
    report = measured(problem, examples, learned, state).facts["report"]
    assert report["distance_left"] == pytest.approx(sum(left) / 3, rel=1e-9)  # type: ignore[index,call-overload]


def test_a_model_trained_at_the_edge_of_stability_is_refused_with_the_measurement() -> None:
    written = network(epochs=20, learning_rate=6.0, weight_decay=0.0)
    with pytest.raises(Ineffective, match=r"distance_left, must be below 0\.7.*eta\*lambda_max is .*Use retrain"):
        measured(*prepared(written, Recollection()))


def test_the_threshold_decides() -> None:
    with pytest.raises(Ineffective, match=r"must be below 0\.01"):
        measured(*of_network(Recollection()), threshold=0.01)
    assert measured(*of_network(Recollection())).vectors


def test_a_model_trained_elsewhere_without_a_record_is_refused_with_what_would_work() -> None:
    problem, examples, learned, _ = of_network()
    with pytest.raises(Refused, match=r"Recorder.*retrain"):
        Recollection().prepare(problem, examples, Learned(learned.weights))


def test_the_renormalised_reference_is_refused_along_a_trajectory() -> None:
    with pytest.raises(Refused, match="fixed-denominator"):
        prepared(network(), Recollection(reference="renormalised"))


def test_clipped_samples_are_refused() -> None:
    with pytest.raises(Refused, match="sample_clip"):
        of_network(sample_clip=1.0)


def test_a_converged_form_without_strong_convexity_is_refused() -> None:
    examples = softmax().samples.examples()
    free = Problem(softmax(bias=True, undecayed=("bias",)))
    with pytest.raises(Refused, match="leaves out bias"):
        LAX.prepare(free, examples, Learned(torch.zeros(free.dimension, dtype=torch.float64)))


def test_forgetting_someone_twice_is_refused() -> None:
    problem, examples, _, state = of_network()
    first = release(problem, state, examples, "p1")
    with pytest.raises(Refused, match="1 of 1 people have no vector"):
        release(problem, first, examples, "p1")


@pytest.mark.parametrize("written", [network(), softmax()], ids=["trajectory", "converged"])
def test_nobody_left_is_refused(written: Recipe) -> None:
    problem, examples, _, state = prepared(written)
    with pytest.raises(Refused, match="would be left"):
        release(problem, state, examples, *state.vectors)


@pytest.mark.parametrize(
    "options",
    [
        {"reference": "renormalized"},
        {"curvature": "fisher"},
        {"carried_by": "nobody"},
    ],
)
def test_an_unknown_option_is_a_mistake(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Recollection(**options)  # type: ignore[arg-type]


def test_a_wide_head_is_recollected_in_single_precision() -> None:
    """The benchmark's path: float32, many people, full batches."""
    x, y = draw(50, 30).float(), torch.arange(50) % 4
    written = recipe(lambda: torch.nn.Linear(30, 4), x, y, people=25, epochs=20, weight_decay=1e-2)
    problem, examples = Problem(written), written.samples.examples()
    learned = train(problem, examples)
    state = Recollection().prepare(problem, examples, learned)
    retrained = train(problem, examples, omit=(3, 28), reference="fixed-denominator").weights
    unlearned = learned.weights + state.vectors["p3"]
    assert distance_left(learned.weights, unlearned, retrained) < 0.3
