"""What an update repeats of the training: of given people, and on average."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.unlearning.model.test_own_training import PEOPLE, own, prepared, without
from unlearning.methods import NAMES, load
from unlearning.methods.late import Late
from unlearning.methods.retrain import Retrain
from unlearning.methods.shards import Shards
from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.recipe import Run

METHODS = [
    pytest.param(Late(), id="late"),
    pytest.param(Late(early_share=(0.3, 0.6), phase_shares=(0.5, 0.3, 0.2)), id="late in three phases"),
    pytest.param(Shards(), id="shards"),
    pytest.param(Shards(shards=3, slices=1), id="shards in one slice"),
    pytest.param(Shards(early_share=(0.25,), phase_shares=(0.9, 0.1)), id="shards with a core"),
    pytest.param(Retrain(), id="retrain"),
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("requests", "draws"), [(1, 4000), (10, 1000), (100, 200)])
def test_the_average_is_that_of_random_people(method: Method, requests: int, draws: int) -> None:
    problem = Problem(method.recipe(own()))
    drawn = torch.tensor(
        [method.repeats(problem, [(f"{draw}-{number}",) for number in range(requests)]) for draw in range(draws)],
        dtype=torch.float64,
    )
    expected = method.expected_repeats(requests)
    assert expected is not None
    error = float(drawn.std()) / math.sqrt(draws)
    assert abs(float(drawn.mean()) - expected) <= 4.0 * error + 1e-3


@pytest.mark.parametrize("method", [*METHODS[:2], pytest.param(Shards(shards=2, slices=3), id="shards in slices")])
def test_the_share_is_that_of_the_phases_that_an_update_really_trains(method: Any) -> None:
    """A phase costs its passes times the share of the people that it is meant for."""
    trained: list[float] = []

    def fit(run: Run) -> None:
        joined = (*method.order.early_share, 1.0)[int(run.phase.split()[-1]) - 1]
        trained.append(run.share * joined / (method.shards if isinstance(method, Shards) else 1))

    recipe = replace(own(), train=fit)
    examples = recipe.samples.examples()
    problem, state = prepared(method, recipe, examples)
    assert sum(trained) == pytest.approx(1.0)
    draw = random.Random(1)
    for count in (1, 1, 1, 2, 5):
        people = set(draw.sample(PEOPLE, count))
        trained.clear()
        forget, retain = without(examples, people)
        method.forget(problem, state, forget, retain, torch.Generator())
        assert method.repeats(problem, [examples.subjects[place] for place in forget.positions]) == pytest.approx(
            sum(trained)
        )


def test_nobody_repeats_nothing_and_other_methods_repeat_nothing() -> None:
    problem = Problem(own())
    for name in NAMES:
        method = load(name)()
        assert method.repeats(problem, ()) == 0.0
        assert method.expected_repeats(0) in (0.0, None)
        if not method.exact:
            assert method.expected_repeats(10) is None and method.repeats(problem, [("somebody",)]) == 0.0
