"""Who is compared: each paper's method as published and as served, and plain gradient ascent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expunge_lab.experiment.comparator import Walk
from unlearning.accounting.certificate import Guarantee
from unlearning.methods.cns import Cns
from unlearning.methods.mini import Mini
from unlearning.methods.recollection import Recollection
from unlearning.methods.rewind import Rewind
from unlearning.methods.safe import Safe
from unlearning.model.method import KeepsVectors, Method
from unlearning.model.problem import Problem
from unlearning.model.training import data_gradient
from unlearning.types import Examples, Need, Refused

NOTHING, RETRAINING = "doing nothing", "retraining"


@dataclass(frozen=True)
class GradientAscent(Walk):
    """Climb the loss of the forgotten, with the lab's untuned defaults: five passes at a tenth of the step size."""

    name: ClassVar[str] = "gradient_ascent"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.FORGOTTEN})

    def unlearn(
        self,
        problem: Problem,
        w: Tensor,
        forget: Examples,
        retain: Examples,  # noqa: ARG002  (a walk is handed it)
        generator: torch.Generator,
    ) -> Tensor:
        for places in self.batches(forget, self.epochs, generator):
            w = self.step(problem, w, -data_gradient(problem, w, *forget.pick(places)))
        return w


ENTRANTS: Mapping[str, Method] = {
    "gradient ascent": GradientAscent(),
    "HF, as published": Recollection(carried_by="everyone"),
    "HF, as served": Recollection(),
    "SAFE, as published": Safe(mode="keep", step="published", divisor=2.5, rounds=20, strength=1000.0),
    "SAFE, as served": Safe(),
    "CNS, as published": Cns(damping=1.0),
    "CNS, as served": Cns(),
    "R2D, as published and served": Rewind(),
    "Mini, as published": Mini(products="secant", epochs=10),
    "Mini, as served": Mini(),
}
CALLED: Mapping[str, str] = {
    "gradient ascent": "five passes over the forgotten at a tenth of the training's step size, tuned for nothing",
    "HF, as published": '`recollection`, `{"carried_by": "everyone"}`',
    "HF, as served": "`recollection`",
    "SAFE, as published": '`safe`, `{"mode": "keep", "step": "published", "divisor": 2.5, "rounds": 20, '
    '"strength": 1000}`, the paper\'s for MNIST',
    "SAFE, as served": "`safe`",
    "CNS, as published": '`cns`, `{"damping": 1}`, the paper\'s value',
    "CNS, as served": "`cns`",
    "R2D, as published and served": "`rewind`",
    "Mini, as published": '`mini`, `{"products": "secant", "epochs": 10}`',
    "Mini, as served": "`mini`",
}
"""the method and its options, as a policy names them"""


def reads(method: Method) -> str:
    """Say what an update reads."""
    parts = []
    if Need.RETAINED in method.needs:
        parts.append("everyone who stays")
    if Need.FORGOTTEN in method.needs:
        parts.append("the forgotten samples")
    if isinstance(method, KeepsVectors):
        parts.append("their vectors")
    return ", ".join(parts)


def guarantee(method: Method, problem: Problem) -> str:
    """Return the strongest guarantee that a certificate could state of this method on this model, by its options."""
    if method.exact:
        return str(Guarantee.EXACT)
    if problem.training.converge is not None:
        return str(Guarantee.PROVED)
    bound = method.bound(Guarantee.PROVED)
    if bound is None:
        return str(Guarantee.NONE)
    try:
        bound.require_possible(problem)
    except Refused:
        return str(Guarantee.NONE)
    return str(Guarantee.PROVED)
