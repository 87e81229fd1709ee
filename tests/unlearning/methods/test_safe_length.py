"""How long SAFE's step is: chosen by a trial deletion at preparation; and lambda as a ratio of two lengths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from tests.unlearning.methods.test_safe import GENERATOR, ask, blobs, recipe_of
from unlearning import Problem
from unlearning.methods.safe import LENGTHS, TRIAL_SHARE, Safe
from unlearning.model.training import train
from unlearning.quality.distance_left import calibration_sets
from unlearning.quality.simulate import left_by
from unlearning.types import Examples, ForgetSet, Learned, RecipeError, Refused, State

HOLDOUT = blobs(300, seed=2)


@pytest.fixture(scope="module")
def trained() -> tuple[Problem, Examples, Learned]:
    recipe = replace(recipe_of(*blobs()), holdout=HOLDOUT)
    problem, everyone = Problem(recipe).double(), recipe.samples.examples()
    return problem, everyone, train(problem, everyone)


@dataclass(frozen=True)
class Trial:
    """What a length does: to the holdout's accuracy, to the people's mean ``loss``, to the weights."""

    lost: float
    loss: float
    weights: torch.Tensor


def trials(
    step: str, rounds: int, trained: tuple[Problem, Examples, Learned], strength: float = 1.0
) -> dict[float, Trial]:
    """Try each length, the longest step first, by whole updates of methods that name it."""
    problem, everyone, learned = trained
    option, lengths = LENGTHS[step]
    people = trial_of(trained)
    before, tried = float(problem.accuracy(learned.weights, *HOLDOUT) or 0), {}
    for length in lengths:
        method = Safe(step=step, rounds=rounds, strength=strength, **{option: length})  # type: ignore[arg-type]
        state = method.prepare(problem, everyone, learned)
        after = method.forget(problem, state, ask(everyone, list(people.positions)), None, GENERATOR).state.weights
        lost = before - float(problem.accuracy(after, *HOLDOUT) or 0)
        tried[length] = Trial(lost, loss_of(problem, after, people), after)
    return tried


def trial_of(trained: tuple[Problem, Examples, Learned]) -> ForgetSet:
    problem, everyone, _ = trained
    [trial] = calibration_sets(everyone, TRIAL_SHARE, 1, problem.training.seed)
    return trial


def loss_of(problem: Problem, w: torch.Tensor, people: ForgetSet) -> float:
    assert people.examples is not None
    return float(problem.sample_losses(w, people.examples.inputs, people.examples.targets).mean())


def retrained_without(trained: tuple[Problem, Examples, Learned]) -> torch.Tensor:
    problem, everyone, _ = trained
    return train(problem, left_by(everyone, trial_of(trained))).weights


def prepared(method: Safe, trained: tuple[Problem, Examples, Learned]) -> State:
    return method.prepare(*trained)


def test_the_longest_step_that_loses_no_more_than_allowed_is_chosen(
    trained: tuple[Problem, Examples, Learned], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unlearning.methods.safe.retraining", lambda *_: None)
    tried = trials("published", 1, trained)
    chosen = set()
    for allowed in (0.0, *(trial.lost + 1e-9 for trial in tried.values() if trial.lost > 0)):
        state = prepared(Safe(step="published", rounds=1, allowed_loss=allowed), trained)
        report: Any = state.facts["report"]
        within = [length for length, trial in tried.items() if trial.lost <= allowed]
        assert report["divisor"] == state.facts["length"] == (within[0] if within else 10.0)
        assert report["trial_loss"] == pytest.approx(tried[report["divisor"]].lost, abs=1e-12)
        assert report["trial_forgotten"] is None
        chosen.add(report["divisor"])
    assert len(chosen) > 1, tried


def test_no_step_forgets_more_than_a_retraining_or_leads_away_from_it(
    trained: tuple[Problem, Examples, Learned],
) -> None:
    problem, _, learned = trained
    again = retrained_without(trained)
    before, most = (loss_of(problem, w, trial_of(trained)) for w in (learned.weights, again))
    chosen = set()
    for strength, rounds in ((1.0, 1), (1.0, 20), (1.0, 100), (0.0, 5), (0.0, 10), (0.0, 20)):
        tried = trials("published", rounds, trained, strength)
        quiet = {divisor for divisor, trial in tried.items() if trial.loss <= most}
        near = {
            divisor
            for divisor, trial in tried.items()
            if (trial.weights - again).norm() <= (learned.weights - again).norm()
        }
        within = [divisor for divisor in tried if divisor in quiet & near]
        report: Any = prepared(
            Safe(step="published", rounds=rounds, strength=strength, allowed_loss=1.0), trained
        ).facts["report"]
        assert report["divisor"] == (within[0] if within else 10.0)
        share = (tried[report["divisor"]].loss - before) / (most - before)
        assert report["trial_forgotten"] == pytest.approx(share)
        assert share <= 1 or not within
        chosen.add((report["divisor"], quiet <= near))
    assert len({divisor for divisor, _ in chosen}) > 1
    assert {by_distance for _, by_distance in chosen} == {True, False}, "each of the two rules decides once"


def test_a_retraining_that_diverges_is_no_reason_to_refuse(
    trained: tuple[Problem, Examples, Learned], monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverges(_: tuple[int, ...]) -> torch.Tensor:
        raise RecipeError("The loss is not finite.", "Lower the learning rate.")

    monkeypatch.setattr("unlearning.methods.safe.retraining", lambda *_: diverges)
    report: Any = prepared(Safe(allowed_loss=1.0), trained).facts["report"]
    assert (report["reach"], report["trial_forgotten"]) == (0.4, None)


@pytest.mark.parametrize("step", LENGTHS)
def test_updates_take_the_step_that_was_chosen(step: str, trained: tuple[Problem, Examples, Learned]) -> None:
    problem, everyone, learned = trained
    method = Safe(step=step)
    state = prepared(method, trained)
    option, _ = LENGTHS[step]
    named = Safe(step=step, **{option: state.facts["length"]})  # type: ignore[arg-type]
    asked = ask(everyone, [3, 4, 5])
    ours, theirs = (
        each.forget(problem, each.prepare(problem, everyone, learned), asked, None, GENERATOR).state.weights
        for each in (method, named)
    )
    assert torch.equal(ours, theirs)
    assert "trial_loss" not in prepared(named, trained).facts["report"]  # type: ignore[operator]


def test_a_length_that_is_named_is_taken_whatever_was_prepared(trained: tuple[Problem, Examples, Learned]) -> None:
    """A comparison of lengths prepares once."""
    problem, everyone, _ = trained
    state = prepared(Safe(step="published", rounds=1, divisor=2.5), trained)
    forget = ask(everyone, [0, 1, 2])
    steps = {
        divisor: Safe(step="published", rounds=1, divisor=divisor).forget(problem, state, forget, None, GENERATOR)
        for divisor in (2.5, 10.0)
    }
    moved = {divisor: float((step.state.weights - state.weights).norm()) for divisor, step in steps.items()}
    assert moved[2.5] == pytest.approx(4 * moved[10.0])


def test_where_nothing_can_be_tried_the_step_is_the_shortest(trained: tuple[Problem, Examples, Learned]) -> None:
    problem, everyone, learned = trained
    alone = replace(everyone, people=["one"] * len(everyone), subjects=[("one",)] * len(everyone))  # type: ignore[arg-type]
    report = Safe().prepare(problem, alone, learned).facts["report"]
    assert report == {"mode": "freeze", "reach": 0.025, "trial_loss": None, "trial_forgotten": None}


@pytest.mark.parametrize(("step", "length"), [("share", 0.1), ("published", 2.5)])
def test_a_generation_that_chose_none_goes_on_with_the_length_of_before(
    step: str, length: float, trained: tuple[Problem, Examples, Learned]
) -> None:
    problem, everyone, _ = trained
    state = prepared(Safe(step=step), trained)
    old = replace(state, facts={name: fact for name, fact in state.facts.items() if name != "length"})
    option, _ = LENGTHS[step]
    named = Safe(step=step, **{option: length})  # type: ignore[arg-type]
    asked = ask(everyone, [3])
    assert torch.equal(
        Safe(step=step).forget(problem, old, asked, None, GENERATOR).state.weights,
        named.forget(problem, prepared(named, trained), asked, None, GENERATOR).state.weights,
    )


@pytest.mark.parametrize("ratio", [0.0, 1.0, 140.0])
def test_a_ratio_is_that_of_the_two_terms(ratio: float, trained: tuple[Problem, Examples, Learned]) -> None:
    problem, everyone, learned = trained
    gone, w = [3, 4, 5, 6], learned.weights
    terms = []
    for strength in (0.0, 1e12):  # each term alone, as a direction
        method = Safe(reach=1.0, strength=strength)
        done = method.forget(problem, prepared(method, trained), ask(everyone, gone), None, GENERATOR)
        terms.append((w - done.state.weights) / (w - done.state.weights).norm())
    method = Safe(reach=1.0, ratio=ratio)
    done = method.forget(problem, prepared(method, trained), ask(everyone, gone), None, GENERATOR)
    way = terms[0] + ratio * terms[1]
    moved = w - done.state.weights
    assert torch.allclose(moved / moved.norm(), way / way.norm(), atol=1e-8)
    assert done.evidence["ratio"] == pytest.approx(ratio)


@pytest.mark.parametrize("wrong", [{"ratio": -1.0}, {"allowed_loss": -0.1}, {"ratio": float("nan")}])
def test_values_outside_their_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(Refused):
        Safe(**wrong)  # type: ignore[arg-type]
