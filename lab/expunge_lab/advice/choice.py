"""Which method to choose for a model: what each one was measured to cost, compared with retraining.

Standard library only. All durations are seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from expunge_service.infra.time import duration
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import batch_by_rule

MONTH_SECONDS = 2_629_746
"""a twelfth of a year"""
NIGHT_SECONDS = 86_400
YEAR_MONTHS = 12
SHORT_SECONDS = 3_600
"""of computing a month: below it, retraining is chosen, which is exact, keeps nothing and adds no noise"""
ACCURACY_LOST = 0.02
"""of holdout accuracy, which a method may lose before another is preferred"""


@dataclass(frozen=True)
class Offer:
    """What one method can do on a model, as measured.

    Args:
        accuracy: expected on the holdout, of what is published.
        preparation: what comes before the first version, a training and reading the samples included.
        update: one update that forgets one person, on average; reading the samples included.
        state_bytes: what is kept between updates, vectors included.
        share: the share of the people that was measured; below 1 the durations are scaled up.
        repeats: whether an update repeats the training, or a part of it.
        refused: why the method cannot be had; then nothing else is known but ``guarantee``, perhaps.
    """

    method: str
    guarantee: Guarantee | None = None
    accuracy: float | None = None
    preparation: float | None = None
    update: float | None = None
    state_bytes: int | None = None
    share: float = 1.0
    repeats: bool = False
    refused: str | None = None


@dataclass(frozen=True)
class Demand:
    """What is asked of a model: the weakest guarantee, requests a month, the least seconds between two updates."""

    min_guarantee: Guarantee
    requests_per_month: float
    batch: int = 0

    @property
    def updates(self) -> float:
        """Return the updates a month, where each serves everyone who waits."""
        if self.batch == 0:
            return self.requests_per_month
        return min(self.requests_per_month, MONTH_SECONDS / self.batch)


@dataclass(frozen=True)
class Chosen:
    """A method, ``why`` in one sentence without a figure, and the same with ``figures``.

    ``short``: retraining is so short that no other method was looked at.
    """

    method: str
    why: str
    figures: str
    short: bool = False


def monthly(offer: Offer, demand: Demand) -> float:
    """Return the seconds of computing that a method takes a month; its preparation is spread over a year."""
    if offer.update is None or offer.preparation is None:
        raise ValueError(f"{offer.method} was not measured.")
    return demand.updates * offer.update + offer.preparation / YEAR_MONTHS


def trainings_a_year(offer: Offer, demand: Demand, retraining: float | None) -> int | None:
    """Return how many trainings, whole or in part, updates repeat a year by the policy's default batch.

    None: they repeat none. ``retraining``: seconds of one; None: nobody timed one.
    """
    if not offer.repeats:
        return None
    return round(YEAR_MONTHS * replace(demand, batch=max(demand.batch, batch_by_rule(True, retraining))).updates)


def break_even(offer: Offer, retraining: float) -> int | None:
    """Return up to how many deletions, one update each, cost no more than one retraining for all of them together.

    What preparation takes beyond the training that retraining needs too counts. 0: a single one costs more already.
    None: nothing was measured, or updates cost nothing.

    Args:
        retraining: seconds of one retraining, reading the samples included.
    """
    if not offer.update or offer.preparation is None:
        return None
    return max(0, int((2 * retraining - offer.preparation) / offer.update + 1e-9))


def choose(offers: Sequence[Offer], demand: Demand, retraining: float | None) -> Chosen | None:
    """Choose the method for this demand; None where no method has the guarantee.

    Retraining is chosen where it takes less than ``SHORT_SECONDS`` a month. Otherwise the cheapest a month is, among
    those that keep the accuracy. ``retraining``: seconds of one retraining; None where there is none.
    """
    able = [
        offer
        for offer in offers
        if offer.update is not None and offer.guarantee is not None and offer.guarantee.satisfies(demand.min_guarantee)
    ]
    if not able:
        return None
    retrain = next((offer for offer in able if offer.method == "retrain"), None)
    if retrain is not None and monthly(retrain, demand) <= SHORT_SECONDS:
        return _short(retrain, demand)
    best = max(offer.accuracy or 0.0 for offer in able)
    accurate = [offer for offer in able if (offer.accuracy or 0.0) >= best - ACCURACY_LOST]
    return _cheapest(min(accurate, key=lambda offer: monthly(offer, demand)), demand, retraining)


def closing(offers: Sequence[Offer], demand: Demand, retraining: float | None) -> str:
    """Return the sentence that ends the advice: what to do, with figures."""
    nightly = Demand(demand.min_guarantee, demand.requests_per_month, max(demand.batch, NIGHT_SECONDS))
    retrain = next((offer for offer in offers if offer.method == "retrain" and offer.update is not None), None)
    if retrain is not None and retrain.update is not None and monthly(retrain, nightly) <= SHORT_SECONDS:
        return f"Retrain nightly: it takes {duration(retrain.update)} and is exact (--method retrain --batch 1d)."
    chosen = choose(offers, demand, retraining)
    if chosen is None:
        return f"No method has the guarantee {demand.min_guarantee.value} on this model: see why above."
    return f"Choose {chosen.method}: {chosen.figures}"


def _short(retrain: Offer, demand: Demand) -> Chosen:
    why = "A retraining is short on this model: it is exact, keeps nothing for each person and adds no noise."
    month = duration(monthly(retrain, demand))
    figures = (
        f"a retraining takes {duration(retrain.update or 0.0)}, {month} a month for "
        f"{demand.requests_per_month:g} requests, is exact, keeps nothing for each person and adds no noise."
    )
    return Chosen(retrain.method, why, figures, short=True)


def _cheapest(offer: Offer, demand: Demand, retraining: float | None) -> Chosen:
    guarantee = "none" if offer.guarantee is None else offer.guarantee.value
    takes = (
        f"an update takes {duration(offer.update or 0.0)}, the first version {duration(offer.preparation or 0.0)}, the "
        f"guarantee is {guarantee}"
    )
    cost = monthly(offer, demand)
    if offer.method == "retrain":
        return Chosen(
            offer.method,
            "Nothing with this guarantee costs less than retraining, which is exact.",
            f"{takes}, and nothing with this guarantee costs less.",
        )
    if retraining is None:
        return Chosen(
            offer.method,
            f"It is the cheapest with this guarantee ({guarantee}); the model cannot be retrained here.",
            f"{takes}; the model cannot be retrained here.",
        )
    if cost > (demand.updates + 1 / YEAR_MONTHS) * retraining:
        return Chosen(
            offer.method,
            "It costs more than retraining would; nothing cheaper has the guarantee and the accuracy.",
            f"{takes}: more than retraining, which takes {duration(retraining)}. Nothing cheaper has the guarantee and "
            "the accuracy.",
        )
    return Chosen(
        offer.method,
        f"Its guarantee is {guarantee}, and it costs less than retraining.",
        f"{takes}; a retraining takes {duration(retraining)}.",
    )
