"""K from epsilon, by corollary 3.2 and by our bound, against counting one step at a time; people for samples."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.unlearning.methods.test_rewind import N, deep, everyone_of, problem_of, release
from tests.unlearning.rewind_theorem import distance_of, published_h, published_noise_std
from unlearning import Training
from unlearning.accounting.budget import epsilon_at
from unlearning.accounting.certificate import Guarantee
from unlearning.bounds.rewind import Descent, people_within
from unlearning.bounds.rewind_length import Wanted, fewest_steps, published_steps
from unlearning.methods.rewind import Rewind
from unlearning.model.training import train
from unlearning.types import Refused

FULL = Training(epochs=60, learning_rate=0.5, weight_decay=0.05)
ASKED: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-3, "noise_std": 0.4, "forgotten": 3}


def upper_epsilon(wanted: Wanted, steps: int, k: int, rate: float, smoothness: float, gradient: float, n: int) -> float:
    """The inequality that corollary 3.2 is solved from (appendix B.3), for one K."""
    grown = 1 + rate * smoothness * n / (n - wanted.forgotten)
    noise = 2 * wanted.forgotten * gradient * math.sqrt(2 * math.log(1.25 / wanted.delta))
    return noise / (wanted.noise_std * smoothness * n) * (grown**steps - grown**k)


@pytest.mark.parametrize("epsilon", [1e-3, 0.01, 0.1, 0.5, 2.0, 1e9])
@pytest.mark.parametrize("forgotten", [1, 7, 80])
def test_the_corollary_equals_counting(epsilon: float, forgotten: int) -> None:
    wanted = Wanted(epsilon, 0.1, 0.05, forgotten)
    setting = {"steps": 40, "rate": 0.05, "smoothness": 2.0, "gradient": 1.5, "n": 100}
    counted = next(
        (k for k in range(1, 41) if upper_epsilon(wanted, 40, k, 0.05, 2.0, 1.5, 100) <= epsilon * (1 + 1e-9)), 40
    )
    assert published_steps(wanted, **setting) == counted  # type: ignore[arg-type]
    smaller = upper_epsilon(wanted, 40, counted, 0.05, 2.0, 1.5, 100)
    assert smaller <= epsilon * (1 + 1e-9)


def test_the_corollarys_k_keeps_the_theorem() -> None:
    """Theorem 3.1's noise at this K is no more than the noise that was asked for."""
    wanted = Wanted(0.8, 0.1, 0.02, 5)
    k = published_steps(wanted, steps=300, rate=0.02, smoothness=0.5, gradient=1.0, n=1000)
    noises = []
    for steps in (k, k - 1):
        h = published_h(300, steps, rate=0.02, smoothness=0.5, samples=1000, forgotten=5)
        noises.append(published_noise_std(distance_of(h, 1000, 5, 1.0, 0.5), 0.8, 0.1))
    assert 1 < k < 300
    assert noises[0] <= wanted.noise_std < 1.1 * noises[1]


def test_the_corollary_does_not_overflow() -> None:
    wanted = Wanted(1.0, 1e-5, 0.1, 10)
    assert published_steps(wanted, steps=100_000, rate=1.0, smoothness=10.0, gradient=1.0, n=100) == 100_000


@pytest.mark.parametrize("cap", [1e-4, 1e-3, 0.01, 0.1, 1e3])
def test_the_fewest_steps_equal_counting(cap: float) -> None:
    descent = Descent([0.1 * 0.99**t for t in range(50)], 1, 100, 4, 1.0, (-0.5, 0.5), (0.01, 0.01))
    counted = next(k for k in range(1, 51) if replace(descent, rewound=k).distance() <= cap)
    assert fewest_steps(descent, cap) == counted


def test_rounding_that_exceeds_the_distance_is_refused() -> None:
    descent = Descent([0.1] * 5, 1, 100, 4, 1.0, (0.0, 0.5), rounding=(0.01,) * 5)
    with pytest.raises(Refused, match="rounding alone"):
        fewest_steps(descent, 0.001)


def test_an_update_of_the_chosen_length_keeps_the_epsilon_and_one_step_less_does_not() -> None:
    problem = problem_of(FULL)
    everyone = everyone_of(problem)
    method = Rewind(steps_from="bound", feature_norm=2**0.5, **ASKED)
    start = method.prepare(problem, everyone, train(problem, everyone))
    state = release(method, problem, start, [1, 4, 9], [])
    bound = method.bound(Guarantee.PROVED)
    descent = bound.descent(problem, state, {})  # type: ignore[union-attr]
    report = start.facts["report"]
    assert report["steps_from"] == "bound" and 1 < report["rewound"] < 60  # type: ignore[call-overload,index,operator]
    assert epsilon_at(descent.distance() / 0.4, 1e-3) <= 1.0
    shorter = replace(descent, rewound=descent.rewound - 1)
    assert epsilon_at(shorter.distance() / 0.4, 1e-3) > 1.0


@pytest.mark.parametrize("source", ["checkpoint", "proximal"])
def test_both_sources_choose_alike_and_measure_without_a_norm(source: str) -> None:
    problem = problem_of(FULL, deep)
    everyone = everyone_of(problem)
    learned = train(problem, everyone)
    method = Rewind(steps_from="corollary", source=source, **(ASKED | {"noise_std": 1e30}))
    report = method.prepare(problem, everyone, learned).facts["report"]
    assert report["steps_from"] == "corollary" and report["L"] > 0 and report["G"] > 0  # type: ignore[call-overload,index,operator]
    assert report["rewound"] == 1  # type: ignore[call-overload,index]


def test_the_bound_is_about_full_batches_and_the_corollary_is_taken_as_the_paper_does() -> None:
    problem = problem_of(Training(epochs=5, batch_size=7, learning_rate=0.2))
    everyone = everyone_of(problem)
    learned = train(problem, everyone)
    with pytest.raises(Refused, match="full-batch"):
        Rewind(steps_from="bound", **ASKED).prepare(problem, everyone, learned)
    state = Rewind(steps_from="corollary", **ASKED).prepare(problem, everyone, learned)
    assert 1 <= state.facts["rewound"] <= 25  # type: ignore[operator]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"steps_from": "guess"}, "steps_from is"),
        ({"steps_from": "bound"}, "is missing"),
        ({"steps_from": "corollary", **ASKED, "epsilon": 0.0}, "epsilon is"),
        ({"steps_from": "corollary", **ASKED, "delta": 1.0}, "delta 1"),
        ({"steps_from": "corollary", **ASKED, "noise_std": math.inf}, "noise_std inf"),
    ],
)
def test_what_k_is_chosen_from_is_checked(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused, match=said):
        Rewind(**wrong)


def test_more_than_everyone_cannot_leave() -> None:
    problem = problem_of(FULL)
    for steps_from in ("bound", "corollary"):
        method = Rewind(steps_from=steps_from, **(ASKED | {"forgotten": N}))
        with pytest.raises(Refused, match=f"forgotten is {N}, of {N} samples"):
            method.prepare(problem, everyone_of(problem), train(problem, everyone_of(problem)))


@pytest.mark.parametrize("samples", range(12))
def test_people_within_holds_for_every_choice_of_people(samples: int) -> None:
    subjects = [("a",)] * 4 + [("b",)] * 2 + [("c", "d"), ("c",), ("d",), ("e",)]
    most = people_within(subjects, samples)
    people = "abcde"

    def gone(chosen: torch.Tensor) -> int:
        names = {people[i] for i in chosen.tolist()}
        return sum(bool(names & set(each)) for each in subjects)

    choices = [torch.combinations(torch.arange(5), most)] if most else []
    assert all(gone(chosen) <= samples for rows in choices for chosen in rows)
    counts = [4, 2, 2, 2, 1]
    assert most == sum(sum(counts[: k + 1]) <= samples for k in range(5))
