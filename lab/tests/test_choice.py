"""Which method is advised: pure rules over measured costs."""

from __future__ import annotations

import pytest

from expunge_lab.advice.choice import Demand, Offer, break_even, choose, closing, monthly, trainings_a_year
from expunge_service.infra.time import duration
from unlearning.accounting.certificate import Guarantee

EXACT, PROVED, NONE = Guarantee.EXACT, Guarantee.PROVED, Guarantee.NONE
HOUR = 3600.0


def offer(method: str, update: float, guarantee: Guarantee = PROVED, preparation: float = 0.0, accuracy: float = 0.9):
    return Offer(method, guarantee, accuracy, preparation, update, 100)


def chosen(*offers: Offer, requests: float = 10.0, least: Guarantee = PROVED, retraining: float | None = HOUR):
    return choose(offers, Demand(least, requests), retraining)


def test_a_short_retraining_is_chosen_even_where_something_else_is_cheaper() -> None:
    choice = chosen(offer("retrain", 40.0, EXACT), offer("newton", 0.1), retraining=40.0)
    assert choice is not None
    assert (choice.method, choice.short) == ("retrain", True)
    assert "40 s" in choice.figures and not any(letter.isdigit() for letter in choice.why)


def test_many_requests_make_the_cheaper_method_worth_it() -> None:
    offers = (offer("retrain", 40.0, EXACT), offer("newton", 0.1, preparation=300.0))
    assert [chosen(*offers, requests=each).method for each in (10, 89, 91)] == ["retrain", "retrain", "newton"]  # type: ignore[union-attr]


@pytest.mark.parametrize(("least", "method"), [(EXACT, "late"), (PROVED, "newton"), (NONE, "safe")])
def test_the_cheapest_that_has_the_guarantee_is_chosen(least: Guarantee, method: str) -> None:
    offers = (
        offer("retrain", HOUR, EXACT), offer("late", 0.5 * HOUR, EXACT), offer("newton", 60.0), offer("safe", 1.0, NONE)
    )  # fmt: skip
    choice = chosen(*offers, least=least)
    assert choice is not None and choice.method == method
    assert "less than retraining" in choice.why and not any(letter.isdigit() for letter in choice.why)


def test_a_method_that_loses_accuracy_is_passed_over() -> None:
    choice = chosen(
        offer("retrain", HOUR, EXACT), offer("shards", 1.0, EXACT, accuracy=0.87), offer("late", 9.0, EXACT)
    )
    assert choice is not None and choice.method == "late"


def test_the_preparation_counts_over_a_year() -> None:
    assert monthly(offer("newton", 2.0, preparation=120.0), Demand(PROVED, 10)) == 30.0
    dear = offer("recollection", 1.0, preparation=12 * 11 * HOUR)
    choice = chosen(offer("retrain", HOUR, EXACT), dear)
    assert choice is not None and choice.method == "retrain" and "Nothing with this guarantee costs less" in choice.why


def test_what_costs_more_than_retraining_says_so() -> None:
    """Retraining is refused here (say, it was not measured), and is known to be shorter."""
    choice = chosen(offer("newton", 2 * HOUR))
    assert choice is not None and choice.method == "newton"
    assert "costs more than retraining" in choice.why and "more than retraining" in choice.figures


@pytest.mark.parametrize(
    ("retraining", "requests", "batch", "expected"),
    [
        (HOUR, 100.0, 0, 52),
        (HOUR, 1.0, 0, 12),
        (30.0, 100.0, 0, 1200),
        (30.0, 100.0, 86_400, 365),
        (None, 100.0, 0, 52),
    ],
)
def test_trainings_a_year_follow_from_the_default_batch(
    retraining: float | None, requests: float, batch: int, expected: int
) -> None:
    repeats = Offer("late", repeats=True)
    assert trainings_a_year(repeats, Demand(PROVED, requests, batch), retraining) == expected
    assert trainings_a_year(Offer("newton"), Demand(PROVED, requests, batch), retraining) is None


def test_a_batch_serves_many_requests_with_one_update() -> None:
    assert Demand(PROVED, 3000.0, 86_400).updates == pytest.approx(30.44, abs=0.01)
    assert Demand(PROVED, 10.0, 86_400).updates == 10.0


def test_nothing_is_chosen_without_the_guarantee() -> None:
    assert chosen(offer("safe", 1.0, NONE), Offer("newton", refused="It has no proof.")) is None
    assert "No method has the guarantee proved" in closing([offer("safe", 1.0, NONE)], Demand(PROVED, 10), None)


def test_the_break_even_is_what_a_count_of_updates_beside_one_retraining_gives() -> None:
    """The slow twin adds one update after the other."""
    for each in (
        offer("a", 3.0, preparation=110.0),
        offer("b", 0.7, preparation=100.0),
        offer("c", 200.0, preparation=100.0),
        offer("d", 1.0, preparation=600.0),
    ):
        count, spent = 0, (each.preparation or 0.0) - 100.0  # a training is made in any case
        while spent + (each.update or 0.0) <= 100.0:
            count, spent = count + 1, spent + (each.update or 0.0)
        assert break_even(each, 100.0) == count
    assert break_even(Offer("e", refused="no"), 100.0) is None


def test_the_closing_sentence_says_nightly_where_that_is_short() -> None:
    offers = (offer("retrain", 40.0, EXACT), offer("newton", 0.1))
    said = closing(offers, Demand(PROVED, 100_000), 40.0)
    assert said == "Retrain nightly: it takes 40 s and is exact (--method retrain --batch 1d)."
    slow = closing((offer("retrain", HOUR, EXACT), offer("newton", 60.0)), Demand(PROVED, 100), HOUR)
    assert slow.startswith("Choose newton: an update takes 60 s") and "a retraining takes 60 min" in slow


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.0004, "0.4 ms"),
        (0.5, "500 ms"),
        (1.5, "1500 ms"),
        (40, "40 s"),
        (130, "2.2 min"),
        (9000, "2.5 h"),
    ],
)
def test_a_duration_has_a_unit_that_suits_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text
