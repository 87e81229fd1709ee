"""What a claim says in words: what it assumes, and what secret state still depends on the deleted people."""

from __future__ import annotations

import math

from unlearning.accounting.certificate import Guarantee
from unlearning.artefact import Artefact
from unlearning.bounds.calibration import Calibrated, Design
from unlearning.model.method import Bound, Method

FITTED = (
    "Architecture, features, scaling, feature selection, hyperparameters and noise_std belong to the reference as they "
    "are. Nothing of them was fitted on people who may be deleted."
)
ARGUMENTS = "model(), the loss and the training use nothing that was computed from these people but the samples."
PUBLIC = (
    "No person who may be deleted is in the parts that are marked public. That is the operator's word; if a deleted "
    "person is in them, this claim says nothing about it."
)
LISTED = (
    "What the model has other than zeros and ones (frozen tensors, buffers, starts that two seeds give alike) is "
    "listed under parts by name, size and digest, and was compared with that list before this version was made. "
    "model() was run without gradients when the model was registered: it trains nothing by itself."
)
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
CHOSEN = (
    "The method was chosen by the counts of samples and features, the deleted people's samples included. It is a "
    "setting that the reference keeps."
)
ONE_PLATFORM = (
    "The published file equals that of a retraining byte for byte on one platform: the same versions of the libraries, "
    "the same instruction set and number of threads. The registration records them."
)
VALUES = "Numbers in the published file, as thresholds are, may be values of samples of people who stay."
ROWS = (
    "The published file holds whole samples of people who stay, as support vectors and neighbours are: its readers see "
    "them. The training of this version was not handed those of a deleted person; copies of older versions hold them."
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


def chosen(guarantee: Guarantee, by_rule: bool) -> tuple[str, ...]:
    """List what the choice of a method that was not named adds to the assumptions."""
    return (CHOSEN,) if by_rule and guarantee is not Guarantee.NONE else ()


def of_bytes(artefact: Artefact | None) -> tuple[str, ...]:
    """List what a model of bytes adds to the assumptions."""
    if artefact is None:
        return ()
    if artefact.rows:
        return ONE_PLATFORM, ROWS
    return (ONE_PLATFORM,) if artefact.clean else (ONE_PLATFORM, VALUES)


def foreign(package: str | None) -> tuple[str, ...]:
    """List what a method of another package (its name and version) adds to the assumptions."""
    if package is None:
        return ()
    return (f"The method is no part of Expunge. What this claim says of it is the word of its package, {package}.",)


def checked(guarantee: Guarantee, method: Method, bound: Bound | None) -> tuple[str, ...]:
    """List what the service has verified of this claim; from the guarantee, the method and the bound alone."""
    if guarantee is Guarantee.EXACT:
        return (*method.checked, LISTED)
    if guarantee is Guarantee.PROVED and bound is not None:
        return (*bound.checked, LISTED)
    return ()


def declared(guarantee: Guarantee, public: bool) -> tuple[str, ...]:
    """List what the operator says and no check verifies. ``public``: the recipe declares parts of the model public."""
    if guarantee is Guarantee.NONE:
        return ()
    return (FITTED, ARGUMENTS, PUBLIC) if public else (FITTED, ARGUMENTS)


def secret_state(guarantee: Guarantee, method: Method) -> tuple[str, ...]:
    """List what is kept sealed and still depends on the deleted people."""
    kept = () if guarantee is Guarantee.EXACT else (NOISELESS,)
    return (*method.secret_state, *kept, *((CALIBRATION,) if guarantee is Guarantee.CALIBRATED else ()))
