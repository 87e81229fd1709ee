"""`calibrated`: the bound covers whole streams as often as it says, and says where it ends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unlearning import Problem, Recipe, Samples, Training
from unlearning.bounds.calibration import Calibrated, Design, calibrate, errors_along, score
from unlearning.methods.recollection import Recollection
from unlearning.model.training import train
from unlearning.types import Forgotten, Need, Refused, State

SIZES = (1, 2, 6, 12)
CALIBRATION, FRESH = 99, 100
DESIGN = Design(SIZES, alpha=0.05, orders=CALIBRATION, power=0.0)


def cheap(people: int = 40, each: int = 2, width: int = 6) -> Recipe:
    """Ridge regression: the retraining is one linear solve."""
    generator = torch.Generator().manual_seed(3)
    count = people * each
    x = torch.randn(count + 10, width, generator=generator)
    y = x.sum(dim=1, keepdim=True) + torch.randn(count + 10, 1, generator=generator)
    return Recipe(
        model=lambda: torch.nn.Linear(width, 1, bias=False),
        samples=Samples(
            ids=[f"s{i}" for i in range(count)],
            subjects=[f"p{i // each:02d}" for i in range(count)],
            inputs=x[:count],
            targets=y[:count],
        ),
        holdout=(x[count:], y[count:]),
        loss="squared_error",
        training=Training(epochs=0, weight_decay=0.1, converge=1e-9),
    )


@dataclass(frozen=True)
class Scene:
    problem: Problem
    examples: object
    state: State
    method: Recollection

    def errors(self, order) -> tuple[float, ...]:
        return errors_along(self.problem, self.method, self.state, self.examples, order, sizes=SIZES).errors


@pytest.fixture(scope="module")
def scene() -> Scene:
    recipe, method = cheap(), Recollection()
    problem, examples = Problem(recipe), recipe.samples.examples()
    return Scene(problem, examples, method.prepare(problem, examples, train(problem, examples)), method)


@pytest.fixture(scope="module")
def streams(scene: Scene) -> list[tuple[float, ...]]:
    """Errors along 99 orders to calibrate on and 100 fresh ones, each really run and retrained at four sizes."""
    return [scene.errors(DESIGN.order(scene.examples.people, index)) for index in range(CALIBRATION + FRESH)]


def test_the_bound_covers_whole_fresh_streams_as_often_as_it_says(streams) -> None:
    bound = calibrate(DESIGN, dict(enumerate(streams[:CALIBRATION])))
    held = sum(
        all(error <= bound.bound(size) for error, size in zip(errors, SIZES, strict=True))
        for errors in streams[CALIBRATION:]
    )
    # coverage of one calibration is Beta(95, 5): deviation .022; of 100 trials .022
    assert held / FRESH >= 0.95 - 3 * math.hypot(0.022, 0.022)
    assert held < FRESH  # and it is not so loose that it says nothing


def test_over_many_calibrations_with_nineteen_orders_coverage_is_what_alpha_says(streams) -> None:
    design = Design(SIZES, alpha=0.05, orders=19, power=0.0)
    scores = torch.tensor([score(design, errors) for errors in streams], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    held = 0
    for _ in range(4000):
        drawn = scores[torch.randperm(len(scores), generator=generator)[:20]]
        held += float(drawn[19]) <= float(drawn[:19].sort().values[design.rank - 1])
    assert 0.95 - 0.012 <= held / 4000 <= 0.95 + 0.012


@pytest.mark.drill
def test_one_quantile_for_each_release_would_fail_more_streams_than_alpha(streams) -> None:
    table = torch.tensor(streams, dtype=torch.float64)
    each = table[:CALIBRATION].sort(dim=0).values[DESIGN.rank - 1]
    failed = (table[CALIBRATION:] > each).any(dim=1).double().mean()
    assert failed > 0.08  # why the score is a maximum over the stream


def test_a_targeted_order_is_not_covered(scene: Scene, streams) -> None:
    # those who pull the weights one way: the page names such requests as not covered
    people = sorted(scene.state.vectors)
    vectors = torch.stack([scene.state.vectors[person] for person in people])
    pull = vectors @ torch.linalg.svd(vectors).Vh[0]
    orders = [[people[place] for place in side.argsort()[: SIZES[-1]]] for side in (pull, -pull)]
    bound = calibrate(DESIGN, dict(enumerate(streams[:CALIBRATION])))
    assert max(scene.errors(order)[-1] for order in orders) > 2 * bound.bound(SIZES[-1])
    assert any("Targeted" in sentence and "not covered" in sentence for sentence in bound.assumptions())


def test_orders_are_repeatable_independent_of_each_other_and_uniform(scene: Scene) -> None:
    people = scene.examples.people
    assert DESIGN.order(people, 3) == DESIGN.order(tuple(reversed(people)), 3)
    assert len({DESIGN.order(people, index) for index in range(50)}) == 50
    firsts = [DESIGN.order(people, index)[0] for index in range(800)]
    counts = [firsts.count(person) for person in sorted(set(people))]
    assert sum((count - 20) ** 2 / 20 for count in counts) < 75  # chi squared, 39 degrees: 1 in 2,000


def test_an_order_measured_alone_or_again_gives_the_same_errors(scene: Scene, streams) -> None:
    assert scene.errors(DESIGN.order(scene.examples.people, 7)) == streams[7]


def test_errors_are_distances_to_real_retrainings(scene: Scene, streams) -> None:
    order = DESIGN.order(scene.examples.people, 0)
    gone = [i for i, person in enumerate(scene.examples.people) if person in order[:1]]
    left = scene.examples.without(torch.tensor(gone))
    x, y = left.inputs.double(), left.targets.double()
    solved = torch.linalg.solve(x.T @ x / len(x) + 0.1 * torch.eye(6, dtype=torch.float64), x.T @ y / len(x)).ravel()
    vector = scene.state.vectors[order[0]]
    unlearned = scene.state.weights + len(scene.examples) / len(x) * vector
    assert streams[0][0] == pytest.approx(float((unlearned - solved).norm()), rel=1e-6)


@pytest.mark.parametrize(
    ("orders", "alpha", "rank"), [(19, 0.05, 19), (99, 0.01, 99), (99, 0.05, 95), (99, 0.29, 71), (39, 0.05, 38)]
)
def test_the_rank_is_counted_in_integers(orders: int, alpha: float, rank: int) -> None:
    assert Design((1,), alpha=alpha, orders=orders).rank == rank  # 100 * 0.29 is 28.999999999999996 in floats


@given(st.integers(1, 400), st.integers(1, 99))
def test_the_rank_gives_at_least_the_confidence(orders: int, percent: int) -> None:
    try:
        rank = Design((1,), alpha=percent / 100, orders=orders).rank
    except Refused:
        assert (orders + 1) * percent < 100
        return
    assert 100 * rank >= (100 - percent) * (orders + 1)  # k/(m+1) >= 1 - alpha
    assert 100 * (rank - 1) < (100 - percent) * (orders + 1)  # and no rank below does


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"orders": 18}, "at least 19"),
        ({"alpha": 0.01}, "at least 99"),
        ({"alpha": 0.0}, "alpha"),
        ({"sizes": ()}, "sizes"),
        ({"sizes": (2, 1)}, "increasing"),
        ({"sizes": (0, 1)}, "from 1 on"),
        ({"power": -1.0}, "power"),
    ],
)
def test_a_design_that_shows_nothing_is_refused(fields: dict, named: str) -> None:
    with pytest.raises(Refused, match=named):
        Design(**({"sizes": (1, 2), "alpha": 0.05, "orders": 19} | fields))


def test_oversize_is_refused_and_sizes_between_take_the_next_bound() -> None:
    found = Calibrated(Design((2, 4, 10), power=1.0), quantile=1.0)
    assert [found.bound(size) for size in (0, 1, 2, 3, 4, 5, 10)] == [0.0, 0.2, 0.2, 0.4, 0.4, 1.0, 1.0]
    with pytest.raises(Refused, match="the calibration ends at 10"):
        found.bound(11)
    assert [found.largest(cap) for cap in (0.1, 0.2, 0.5, 2.0)] == [0, 2, 4, 10]


def test_a_size_that_leaves_nobody_is_refused() -> None:
    with pytest.raises(Refused, match="Leave people"):
        Design((1, 3)).order(["a", "b", "c"], 0)


def test_no_order_may_be_left_out_or_added() -> None:
    measured = {index: (0.1,) for index in range(19)}
    assert calibrate(Design((1,)), measured).quantile == 0.1
    with pytest.raises(Refused, match=r"missing \[4\]"):
        calibrate(Design((1,)), {index: errors for index, errors in measured.items() if index != 4})
    with pytest.raises(Refused, match=r"unplanned \[19\]"):
        calibrate(Design((1,)), measured | {19: (0.1,)})


@dataclass(frozen=True)
class FailsAtThree:
    name: ClassVar[str] = "fails"
    needs: ClassVar[frozenset[Need]] = frozenset()

    def prepare(self, problem, examples, learned, progress=None) -> State:
        return State(learned.weights)

    def forget(self, problem, state, forget, retain, generator) -> Forgotten:
        if len(retain) < 80 - 2 * 2:
            raise Refused("Too many.", "Retrain.")
        return Forgotten(state)


def test_an_order_along_which_the_method_fails_counts_as_infinite(scene: Scene) -> None:
    order = DESIGN.order(scene.examples.people, 0)
    along = errors_along(scene.problem, FailsAtThree(), scene.state, scene.examples, order, sizes=SIZES)
    errors = along.errors
    assert along.untouched == errors, "it updates what was trained"
    assert all(map(math.isfinite, errors[:2])) and all(map(math.isinf, errors[2:]))
    with pytest.raises(Refused, match="fails along too many"):
        calibrate(Design(SIZES), {index: errors for index in range(19)})


def test_what_is_said_in_public_comes_from_the_design_alone() -> None:
    design = Design((1, 5), alpha=0.05)
    assert Calibrated(design, 0.123456).assumptions() == Calibrated(design, 9.87).assumptions()
