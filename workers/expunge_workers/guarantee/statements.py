"""What a claim says in words: what it assumes, and what secret state still depends on the deleted people."""

from __future__ import annotations

import math

from unlearning.accounting.certificate import DIFFERED, Guarantee
from unlearning.accounting.declarations import CHOSEN, FOREIGN
from unlearning.accounting.world import BOUNDED, HANDED, MADE, Enclosure, WorldRecord
from unlearning.artefact import Artefact
from unlearning.bounds.calibration import Calibrated, Design
from unlearning.model.method import Bound, Method

NOISE = "The noise is drawn from the operating system's entropy, fresh at every update, and not kept."
ESTIMATES = (
    "The listed constants hold at every point of the training, the retraining and the updates. Measured ones "
    "were seen at a few points only: nothing proves them.",
    "The listed constants were measured on everyone, the deleted people included, and rounded to one digit. What they "
    "tell by themselves is not covered.",
)
NOISELESS = (
    "The weights before noise, which are kept, depend on the deleted people as far as the bound allows; without a "
    "bound, how far is not known."
)
ONE_PLATFORM = (
    "The published file equals that of a retraining byte for byte on one platform: the same versions of the libraries, "
    "the same instruction set and number of threads. The registration records them."
)
VALUES = "Numbers in the published file, as thresholds are, may be values of samples of people who stay."
BUFFERS = (
    "The model's buffers, as the running statistics of batch normalisation, are published as the training with the "
    "deleted people left them: an update changes the trained parameters alone."
)
REPEATED_BUFFERS = (
    "The model's buffers, as the running statistics of batch normalisation, are published without noise. The repeated "
    "steps go on from the buffers of the training with the deleted people."
)
REPEATS = "Two worlds that were handed the same rows made the same bytes."
REPEATS_NOT = (
    f"{DIFFERED}: two worlds made different bytes of the same rows, from the same seeds. So this version is one of "
    "those that the training may give without the deleted people."
)
REPEATS_UNTRIED = "Not tried: whether two worlds that are handed the same rows make the same bytes."
BY_RECIPE = (
    "The recipe's code computes the updates and the retrainings; the service measures their distances. The code is not "
    "told whether an update serves a request or the calibration, and it is assumed not to guess it from the clock."
)
CALIBRATION = "The distances of the calibration were measured with everyone, the deleted people included."


def assumptions(guarantee: Guarantee, method: Method, bound: Bound | None, design: Design | None) -> tuple[str, ...]:
    """List what the claim assumes; from the guarantee, the method, the bound and the calibration's design alone."""
    if guarantee is Guarantee.EXACT:
        return method.assumptions
    if design is not None:
        return (*Calibrated(design, math.nan).assumptions(), NOISE)
    if bound is None:
        return ()
    return (*bound.assumptions, *(ESTIMATES if guarantee is Guarantee.ESTIMATED else ()), NOISE)


def of_calibration(guarantee: Guarantee, *, judged: bool) -> tuple[str, ...]:
    """List what a calibration adds to the assumptions where worlds of the recipe's own code computed it."""
    return () if judged or guarantee is not Guarantee.CALIBRATED else (BY_RECIPE,)


def chosen(guarantee: Guarantee, by_rule: bool) -> tuple[str, ...]:
    """List what the choice of a method that was not named adds to the assumptions."""
    return (CHOSEN,) if by_rule and guarantee is not Guarantee.NONE else ()


def of_files(artefact: Artefact | None) -> tuple[str, ...]:
    """List what files that the recipe made add to the assumptions."""
    return () if artefact is None else (ONE_PLATFORM, VALUES)


def foreign(package: str | None) -> tuple[str, ...]:
    """List what a method of another package (its name and version) adds to the assumptions."""
    if package is None:
        return ()
    return (f"{FOREIGN}{package}.",)


def of_world(
    guarantee: Guarantee, world: WorldRecord | None
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """List what a claim has checked, tried and declared of the worlds that made its version; nothing without one.

    What the kernel showed is checked only behind a new root; behind weaker walls it is declared. A guarantee without a
    distance that is proved has nothing checked, and ``none`` declares nothing.
    """
    if world is None or guarantee is Guarantee.NONE:
        return (), (), ()
    if guarantee not in (Guarantee.EXACT, Guarantee.PROVED):
        return (), (), world.declared
    exact = guarantee is Guarantee.EXACT
    opened = MADE if exact else BOUNDED
    verified = opened if world.walls is Enclosure.NEW_ROOT else HANDED
    repeated = {True: REPEATS, False: REPEATS_NOT, None: REPEATS_UNTRIED}[world.repeats]
    return (verified,), (repeated,) if exact else (), world.declared


def checked(guarantee: Guarantee, bound: Bound | None, world: WorldRecord | None) -> tuple[str, ...]:
    """List what the service has verified of this claim; from the guarantee, the bound and the world alone."""
    of_bound = bound.checked if guarantee is Guarantee.PROVED and bound is not None else ()
    return (*of_world(guarantee, world)[0], *of_bound)


def moved(guarantee: Guarantee, sentence: str | None) -> tuple[str, ...]:
    """Add that an exact update was trained in another environment than the version before it, where it was."""
    return (sentence,) if guarantee is Guarantee.EXACT and sentence is not None else ()


def secret_state(guarantee: Guarantee, method: Method, *, buffers: bool = False) -> tuple[str, ...]:
    """List what still depends on the deleted people: what is kept sealed, and published buffers.

    ``buffers``: the training may change buffers of the model, which are published with its weights.
    """
    if guarantee is Guarantee.EXACT:
        return method.secret_state
    calibration = (CALIBRATION,) if guarantee is Guarantee.CALIBRATED else ()
    published = () if not buffers else (BUFFERS,) if method.needs_no_steps else (REPEATED_BUFFERS,)
    return (*method.secret_state, NOISELESS, *published, *calibration)
