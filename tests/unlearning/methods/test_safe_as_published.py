"""SAFE's options that the paper has and our defaults do not: the perturbation b_t, and lambda from 1e3 to 1e6."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.unlearning.methods.test_safe import ROUNDS, ask, blobs, recipe_of, stream
from unlearning import Problem
from unlearning.accounting.certificate import Guarantee
from unlearning.methods.safe import Safe, published_perturbation
from unlearning.model.training import train
from unlearning.types import Refused


def test_the_perturbation_is_subtracted_after_the_step_and_drawn_anew() -> None:
    problem = Problem(recipe_of(*blobs())).double()
    everyone = problem.recipe.samples.examples()
    learned = train(problem, everyone)
    plain, noisy = Safe(step="published"), Safe(step="published", perturbation=0.25)
    states = [method.prepare(problem, everyone, learned) for method in (plain, noisy)]
    draws, again = torch.Generator().manual_seed(4), torch.Generator().manual_seed(4)
    for positions in ROUNDS:
        forget = ask(everyone, positions)
        states = [
            method.forget(problem, state, forget, None, draws).state
            for method, state in zip((plain, noisy), states, strict=True)
        ]
        normal: Tensor = torch.randn(len(learned.weights), generator=again, dtype=torch.float64)
        expected = states[0].weights - 0.25 * learned.weights.norm() * normal
        torch.testing.assert_close(states[1].weights, expected, rtol=0, atol=1e-12)


def test_the_published_perturbation_is_that_of_the_theorem_and_drowns_the_model() -> None:
    assert published_perturbation(1.0, 1e-5) == pytest.approx(math.sqrt(2 * math.log(1.25e5)))
    problem = Problem(recipe_of(*blobs())).double()
    everyone = problem.recipe.samples.examples()
    learned = train(problem, everyone)
    method = Safe(step="published", perturbation=published_perturbation(1.0, 1e-5))
    moved = stream(method, problem, everyone, learned, ROUNDS).weights - learned.weights
    assert float(moved.norm()) > 10 * float(learned.weights.norm())


@pytest.mark.parametrize("mode", ["keep", "freeze"])
def test_a_stream_of_three_rounds_refuses_the_fourth_update(mode: str) -> None:
    problem = Problem(recipe_of(*blobs())).double()
    everyone = problem.recipe.samples.examples()
    learned = train(problem, everyone)
    method = Safe(mode=mode, step="published", rounds=3)
    state = stream(method, problem, everyone, learned, [[0], [1], [2]])
    assert state.facts["updates"] == 3
    with pytest.raises(Refused, match=r"made for 3 updates .* all of them were made") as refused:
        method.forget(problem, state, ask(everyone, [3]), None, torch.Generator())
    assert "more rounds" in refused.value.hint
    ours = Safe(mode=mode, rounds=3)
    assert stream(ours, problem, everyone, learned, [[0], [1], [2], [3]]).facts["updates"] == 4, "T is not its length"


def test_a_perturbation_claims_nothing() -> None:
    method = Safe(perturbation=published_perturbation(1.0, 1e-5))
    assert [method.bound(guarantee) for guarantee in Guarantee] == [None] * len(Guarantee)


def test_without_one_nothing_is_drawn() -> None:
    problem = Problem(recipe_of(*blobs())).double()
    everyone = problem.recipe.samples.examples()
    state = Safe().prepare(problem, everyone, train(problem, everyone))
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    Safe().forget(problem, state, ask(everyone, [3]), None, generator)
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("wrong", [-0.1, math.inf, math.nan])
def test_a_perturbation_out_of_range_is_refused(wrong: float) -> None:
    with pytest.raises(Refused, match="perturbation is"):
        Safe(perturbation=wrong)


def test_over_the_papers_range_of_lambda_the_step_hardly_turns() -> None:
    problem = Problem(recipe_of(*blobs())).double()
    everyone = problem.recipe.samples.examples()
    learned = train(problem, everyone)
    ways = []
    for strength in (1.0, 1e3, 1e6):
        method = Safe(step="published", strength=strength)
        moved = stream(method, problem, everyone, learned, ROUNDS).weights - learned.weights
        ways.append(moved / moved.norm())
    assert float(ways[1] @ ways[2]) > 0.9999 > float(ways[0] @ ways[2])
