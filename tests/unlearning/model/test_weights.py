"""A weight multiplies its sample's loss, in every method and every reading; a whole one counts as so many samples."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import unlearning as ul
from tests.unlearning.model.test_convex import FEATURES, LOSSES, problem_of
from tests.unlearning.recipes import draw, recipe
from unlearning.bounds.gradients import require_within
from unlearning.model import convex
from unlearning.model.closed_form import require_agreement
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import Examples, Refused

WHOLE = torch.arange(60) % 4
IDS, PEOPLE = [f"s{place}" for place in range(60)], [f"p{place % 7}" for place in range(60)]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_whole_weight_counts_as_so_many_samples(loss: str) -> None:
    """The slow twin repeats each sample; weight 0 leaves it out. Both divide by 60."""
    problem, weighted = problem_of(loss, weight=WHOLE)
    twin, plain = problem_of(loss)
    rows = torch.arange(60).repeat_interleave(WHOLE)
    repeated = Examples.of(torch.arange(len(rows)), plain.inputs[rows], plain.targets[rows], ["p"] * len(rows))
    w = draw(problem.dimension, seed=8)
    mine = problem.gradient(w, weighted.inputs, weighted.targets)
    theirs = twin.gradient(w, repeated.inputs, repeated.targets) * len(rows) / 60
    assert torch.allclose(mine, theirs, atol=1e-13)
    each = problem.sample_gradients(w, weighted.inputs, weighted.targets).mean(dim=0)
    assert torch.allclose(each, theirs, atol=1e-13)
    require_agreement(problem, weighted, torch.Generator().manual_seed(0))
    found = convex.converge(problem, problem.initial(), weighted, 1e-12)
    expected = convex.converge(twin, twin.initial(), repeated, 1e-12, denominator=60)
    assert torch.allclose(found, expected, atol=1e-9)
    bound = convex.distance_bound(problem, expected + 1e-5 * w, weighted)
    assert 1e-5 * float(w.norm()) <= bound
    assert problem.accuracy(w, weighted.inputs, weighted.targets) == twin.accuracy(w, plain.inputs, plain.targets)


def test_chosen_samples_carry_their_weight() -> None:
    labels, some = LOSSES["cross_entropy"][1], torch.tensor([5, 3, 50])
    samples = ul.Samples(IDS, PEOPLE, FEATURES, labels, weight=WHOLE)
    chosen = samples.take(some)
    assert torch.equal(chosen.tensors()[1], samples.tensors()[1][some])
    assert torch.equal(chosen.weight, WHOLE[some].double())  # type: ignore[arg-type]
    assert torch.equal(chosen.targets, labels[some]), "without the weight"


def test_the_built_in_training_follows_the_weights() -> None:
    labels = LOSSES["cross_entropy"][1]
    written = recipe(lambda: nn.Linear(6, 3), FEATURES, labels, batch_size=None)
    ones, threes = (
        replace(written, samples=ul.Samples(IDS, PEOPLE, FEATURES, labels, weight=torch.full((60,), weight)))
        for weight in (1.0, 3.0)
    )
    plain, same, other = (train(Problem(each), each.samples.examples()).weights for each in (written, ones, threes))
    assert torch.equal(plain, same)
    thrice = train(*_of(recipe(lambda: nn.Linear(6, 3), FEATURES, labels, batch_size=None, learning_rate=0.6))).weights
    assert torch.allclose(other, thrice, atol=1e-6) and not torch.allclose(other, plain, atol=1e-2)


def _of(written: ul.Recipe) -> tuple[Problem, Examples]:
    return Problem(written), written.samples.examples()


def test_a_bound_for_samples_of_weight_1_is_refused() -> None:
    problem, examples = problem_of("cross_entropy", weight=WHOLE)
    with pytest.raises(Refused, match="samples of weight 1"):
        require_within(problem, examples, 100.0)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.full((60,), -1.0), "the least is -1"),
        (torch.zeros(60), "not 0 for all"),
        (torch.ones(60, 2), "shape"),
        (torch.ones(59), "differ in length"),
        (torch.full((60,), float("nan")), "NaN"),
    ],
)
def test_an_unusable_weight_is_refused(weight: Tensor, message: str) -> None:
    with pytest.raises(ul.RecipeError, match=message):
        ul.Samples(IDS, PEOPLE, FEATURES, torch.zeros(60), weight=weight)
