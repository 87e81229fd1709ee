from __future__ import annotations

import math

import pytest
import torch

from tests.unlearning.recipes import network
from unlearning.quality.distance_left import calibration_sets, distance_left
from unlearning.types import Examples, Refused


def people(count: int) -> Examples:
    return Examples.of(
        torch.arange(40), torch.zeros(40, 1), torch.zeros(40), tuple(f"p{index % count}" for index in range(40))
    )


def test_sets_are_seeded_whole_people_and_their_samples() -> None:
    examples = people(10)
    sets = calibration_sets(examples, 0.2, 3, seed=5)
    assert sets[0].people == calibration_sets(examples, 0.2, 3, seed=5)[0].people
    assert len({chosen.people for chosen in sets}) > 1
    for chosen in sets:
        assert len(chosen.people) == 2
        assert list(chosen.positions) == [i for i in range(40) if examples.people[i] in chosen.people]


@pytest.mark.parametrize(("share", "size"), [(0.001, 1), (0.999, 9)])
def test_a_set_is_never_empty_and_never_everyone(share: float, size: int) -> None:
    assert len(calibration_sets(people(10), share, 1, seed=0)[0].people) == size


def test_a_single_person_is_refused() -> None:
    with pytest.raises(Refused, match="one person"):
        calibration_sets(people(1), 0.05, 3, seed=0)


def test_distance_left_is_the_share_of_the_distance_that_is_left() -> None:
    untouched, retrained = torch.zeros(3), torch.tensor([0.0, 3.0, 4.0])
    assert distance_left(untouched, retrained, retrained) == 0.0
    assert distance_left(untouched, untouched, retrained) == 1.0
    assert distance_left(untouched, torch.tensor([0.0, 3.0, 3.0]), retrained) == pytest.approx(0.2)
    assert distance_left(untouched, -retrained, retrained) == pytest.approx(2.0)


def test_distance_left_of_a_diverged_result_is_infinite() -> None:
    untouched, retrained = torch.zeros(2), torch.ones(2)
    assert distance_left(untouched, torch.tensor([math.inf, 0.0]), retrained) == math.inf
    assert distance_left(untouched, torch.tensor([math.nan, 0.0]), retrained) == math.inf
    assert distance_left(untouched, retrained, untouched) == math.inf
    assert distance_left(untouched, untouched, untouched) == 0.0


def test_the_sets_do_not_depend_on_the_order_of_the_samples() -> None:
    examples = network().samples.examples()
    turned = Examples.of(examples.positions, examples.inputs, examples.targets, examples.people[::-1])
    first, second = (calibration_sets(given, 0.3, 2, seed=1) for given in (examples, turned))
    assert [chosen.people for chosen in first] == [chosen.people for chosen in second]
