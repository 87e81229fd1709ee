"""What an update repeats of the training: of given people, and on average."""

from __future__ import annotations

import math
import random

import pytest
import torch

from tests.unlearning.trained_here import PEOPLE, epochs, network, problem_of, samples, without
from unlearning.methods import NAMES, load
from unlearning.methods.late import Late
from unlearning.methods.retrain import Retrain
from unlearning.methods.shards import Shards
from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.types import Learned

METHODS = [
    pytest.param(Late(), id="late"),
    pytest.param(Late(early_share=(0.3, 0.6), phase_shares=(0.5, 0.3, 0.2)), id="late in three phases"),
    pytest.param(Shards(), id="shards"),
    pytest.param(Shards(shards=3), id="three shards"),
    pytest.param(Retrain(), id="retrain"),
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("requests", "draws"), [(1, 4000), (10, 1000), (100, 200)])
def test_the_average_is_that_of_random_people(method: Method, requests: int, draws: int) -> None:
    problem = Problem(network(samples()))
    drawn = torch.tensor(
        [method.repeats(problem, [(f"{draw}-{number}",) for number in range(requests)]) for draw in range(draws)],
        dtype=torch.float64,
    )
    expected = method.expected_repeats(requests)
    assert expected is not None
    error = float(drawn.std()) / math.sqrt(draws)
    assert abs(float(drawn.mean()) - expected) <= 4.0 * error + 1e-3


@pytest.mark.parametrize("method", METHODS[:4])
def test_the_share_is_that_of_the_parts_that_an_update_really_trains(method: Method) -> None:
    member = network(samples())
    examples = member.samples.examples()
    problem, here = problem_of(member, lambda part: epochs(part, 1))
    state = method.prepare(problem, examples, Learned(problem.initial()))
    shares = dict.fromkeys(here.made, 1.0 / len(here.made))
    if isinstance(method, Late):
        shares = dict(zip(here.made, method.phase_shares, strict=True))
    draw = random.Random(1)
    for count in (1, 1, 1, 2, 5):
        people = set(draw.sample(PEOPLE, count))
        here.made.clear()
        forget, retain = without(examples, people)
        method.forget(problem, state, forget, retain, torch.Generator())
        repeated = method.repeats(problem, [examples.subjects[place] for place in forget.positions])
        assert repeated == pytest.approx(math.fsum(shares[name] for name in here.made))


def test_nobody_repeats_nothing_and_other_methods_repeat_nothing() -> None:
    problem = Problem(network(samples()))
    for name in NAMES:
        method = load(name)()
        assert method.repeats(problem, ()) == 0.0
        assert method.expected_repeats(0) in (0.0, None)
        if not method.exact:
            assert method.expected_repeats(10) is None and method.repeats(problem, [("somebody",)]) == 0.0
