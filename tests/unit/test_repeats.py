"""``Method.repeats`` beside its slow twin: everyone is forgotten alone, and the work is counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import unlearning as ul
from unlearning.methods.late import Late
from unlearning.methods.retrain import Retrain
from unlearning.methods.shards import Shards
from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.quality.simulate import forget_set, left_by
from unlearning.recipe import Run
from unlearning.types import Learned

PEOPLE, EACH = 60, 2


def counted(method: Method) -> tuple[float, float]:
    """The share that the method says, and the mean share of the work over everyone, in samples trained on."""
    work: list[float] = []

    def fit(run: Run) -> None:
        work.append(run.share * len(run.inputs))

    x = torch.randn(PEOPLE * EACH, 2, generator=torch.Generator().manual_seed(0))
    names = [f"p{row // EACH}" for row in range(len(x))]
    samples = ul.Samples([f"s{row}" for row in range(len(x))], names, x, (x[:, 0] > 0).long())
    recipe = ul.Recipe(
        model=lambda: torch.nn.Linear(2, 2), samples=samples, holdout=(x, samples.targets), loss="cross_entropy",
        train=fit,
    )  # fmt: skip
    problem, examples = Problem(method.recipe(recipe)), recipe.samples.examples()
    state = method.prepare(problem, examples, Learned(problem.initial()))
    whole = sum(work) if method.trains else float(len(examples))
    work.clear()
    for person in sorted(set(examples.people)):
        forget = forget_set(examples, [person])
        method.forget(problem, state, forget, left_by(examples, forget), torch.Generator())
    said: Any = method.repeats(problem, examples)
    return said, sum(work) / PEOPLE / whole


@pytest.mark.parametrize(
    "method", [Retrain(), Late(), Late(core=(0.3, 0.6), passes=(0.5, 0.3, 0.2)), Shards(), Shards(shards=3, slices=2)]
)
def test_what_a_deletion_repeats_is_what_it_says(method: Method) -> None:
    said, real = counted(method)
    assert said == pytest.approx(real, rel=0.15)
