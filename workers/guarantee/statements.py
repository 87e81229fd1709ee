"""What a claim says in words: what it assumes, and what secret state still depends on the deleted people."""

from __future__ import annotations

import math

from unlearning.accounting.certificate import Guarantee
from unlearning.bounds.calibration import Calibrated, Design

FITTED = (
    "Architecture, features, scaling, feature selection, hyperparameters and noise_std belong to the reference as they "
    "are. Nothing of them was fitted on people who may be deleted."
)
ARGUMENTS = "model(), the loss and the training use nothing that was computed from these people but the samples."
PUBLIC = (
    "Nobody who may be deleted is in the parts that are marked public. That is the operator's word; if a deleted "
    "person is in them, this claim says nothing about it."
)
LISTED = (
    "What the model brings along besides zeros and ones (frozen tensors, buffers, starts that two seeds give alike) is "
    "listed under parts by name, size and digest, and was compared with that list before this version was made. "
    "model() was run without gradients when the model was registered: it trains nothing by itself."
)
BOUND = "The bound was computed in float64 for the very weights that got the noise, on every retained sample."
FEATURES = "Every sample's features were within the bound when the model was registered."
COLD = "The training started from what model() gives, and was handed the samples of those who remain and no others."
NOISE = "The noise is drawn from the operating system's entropy, fresh at every update, and not kept."
CONVEX = (
    "The objective is the recipe's mean data loss plus (weight_decay/2) ||w||^2 over every coordinate; it is strongly "
    "convex, and the reference is its unique minimiser on the retained samples. weight_decay is the same."
)
DESCENT = (
    "The reference is the same training (start, number of full-batch steps, step sizes, clipping) on the retained "
    "samples, in exact arithmetic; the bound of a sample's features was declared, not fitted."
)
ESTIMATES = (
    "The listed constants hold wherever the training, the retraining and the releases pass. Those that were measured "
    "were seen at a few points only: nothing proves them.",
    "The listed constants were measured on everyone, the deleted people included, and rounded to one digit. What they "
    "tell by themselves is not covered.",
)
BALL = "The trained and the retrained model lie in the ball of radius C."
REFERENCE = {
    "rewind": "The reference is the same full-batch training, from the same start, on the retained samples.",
    "newton": BALL,
}

NOISELESS = (
    "The weights before noise, which are kept, depend on the deleted people as far as the bound allows; without a "
    "bound, nobody knows how far."
)
SECRET_STATE = {
    "recollection": (
        "The recollections of the people who are left depend on those who were deleted.",
        "The sum of the deleted people's recollections: a converged model keeps it by itself, a recorded training "
        "keeps it added to the weights before noise. After a single deletion that sum is that person's vector.",
    ),
    "mini": ("The weights of the training's last steps were trained on the people who were deleted.",),
    "newton": ("The weights before noise start from those that were trained on the deleted people.",),
    "retrain": (),
    "rewind": ("The checkpoint that every update starts from was trained on everyone, the deleted people included.",),
    "safe": (
        "The trained weights, the gradient sums and the class moments that every update starts from depend on the "
        "deleted people; in the mode keep their samples stay too.",
    ),
}
CALIBRATION = "The distances of the calibration were measured with everyone, the deleted people included."


def assumptions(guarantee: Guarantee, method: str, design: Design | None) -> tuple[str, ...]:
    """What the claim assumes; from the guarantee, the method and the design alone."""
    if guarantee is Guarantee.NONE:
        return ()
    if guarantee is Guarantee.EXACT:
        return ()
    if guarantee is Guarantee.PROVED:
        return (DESCENT if method == "rewind" else CONVEX, NOISE)
    if guarantee is Guarantee.ESTIMATED:
        return (REFERENCE[method], *ESTIMATES, NOISE)
    if design is None:
        raise ValueError("a calibrated claim without its design")
    return (*Calibrated(design, math.nan).assumptions(), NOISE)


def checked(guarantee: Guarantee, method: str) -> tuple[str, ...]:
    """What the service has verified of this claim; from the guarantee and the method alone."""
    if guarantee is Guarantee.EXACT:
        return (COLD, LISTED)
    if guarantee is Guarantee.PROVED:
        return (FEATURES if method == "rewind" else BOUND, LISTED)
    return ()


def declared(guarantee: Guarantee, public: bool) -> tuple[str, ...]:
    """What the operator says and nobody verifies. ``public``: the recipe declares parts of the model public."""
    if guarantee is Guarantee.NONE:
        return ()
    return (FITTED, ARGUMENTS, PUBLIC) if public else (FITTED, ARGUMENTS)


def secret_state(guarantee: Guarantee, method: str) -> tuple[str, ...]:
    """List what is kept sealed and still depends on the deleted people."""
    own = SECRET_STATE.get(method, ("The method's own state depends on the deleted people.",))
    kept = () if guarantee is Guarantee.EXACT else (NOISELESS,)
    return (*own, *kept, *((CALIBRATION,) if guarantee is Guarantee.CALIBRATED else ()))
