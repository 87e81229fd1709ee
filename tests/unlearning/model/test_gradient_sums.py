"""Gradients summed by person: a few people at a time, equal to one product over everyone, without its memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unlearning as ul
from unlearning.methods.recollection import vectors
from unlearning.model.problem import Problem
from unlearning.model.training import Batch

COUNT, PEOPLE = 60, 9
MODELS = {
    "head": lambda: nn.Linear(4, 3),
    "network": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
}


def problem_of(kind: str) -> Problem:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(COUNT, 4, generator=generator)
    targets = torch.randint(3, (COUNT,), generator=generator)
    names = [str(place) for place in range(COUNT)]
    recipe = ul.Recipe(
        model=MODELS[kind],
        samples=ul.Samples(ids=names, subjects=names, inputs=inputs, targets=targets),
        holdout=(inputs, targets),
        loss="cross_entropy",
        training=ul.Training(epochs=1, learning_rate=0.1, seed=0),
    )
    return Problem(recipe, dtype=torch.float64)


def one_by_one(problem: Problem, w: Tensor, batch: Batch, here: Tensor, rows: Tensor) -> Tensor:
    gradients = problem.sample_gradients(w, batch.inputs, batch.targets)
    return torch.stack([gradients[here == row].sum(dim=0) for row in rows])


@pytest.mark.parametrize("limit", [1, 40, 2**22])
@pytest.mark.parametrize("kind", MODELS)
def test_sums_by_person_equal_the_sum_of_each_sample_s_gradient(
    monkeypatch: pytest.MonkeyPatch, kind: str, limit: int
) -> None:
    monkeypatch.setattr(vectors, "MEMBERS_LIMIT", limit)
    problem = problem_of(kind)
    samples = problem.recipe.samples.examples()
    batch = Batch(samples.inputs.double(), samples.targets, COUNT)
    here = torch.randint(-1, PEOPLE, (COUNT,), generator=torch.Generator().manual_seed(2))
    w = problem.initial()
    for rows in (torch.arange(PEOPLE), torch.tensor([1, 4, 5])):
        found = vectors._gradient_sums(problem, w, batch, here, rows)
        assert torch.allclose(found, one_by_one(problem, w, batch, here, rows), rtol=1e-12, atol=1e-12)


def test_people_are_taken_together_only_as_far_as_their_samples_fit() -> None:
    starts = [0, 1, 3, 103, 104, 105]
    blocks = list(vectors._blocks(starts, 6))
    assert blocks == [(0, 2), (2, 3), (3, 5)]
    assert all(last - first == 1 or (last - first) * (starts[last] - starts[first]) <= 6 for first, last in blocks)
