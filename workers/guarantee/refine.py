"""Move the weights of an update towards the retraining until their bound is at most the greatest distance allowed."""

from __future__ import annotations

from dataclasses import replace

from expunge.workers.guarantee.certify import Terms
from expunge.workers.runtime.model import OpenModel
from unlearning.types import Examples, Forgotten


def refine(bench: OpenModel, terms: Terms, forgotten: Forgotten, retain: Examples | None) -> Forgotten:
    """Return the update with the weights that get noise; float64 where the guarantee is computed at the weights.

    Only bounds that can be worked on move them: under ``proved``, Newton's method on ``retain``.
    """
    bound = terms.bound(bench.method)
    if bound is None:
        return forgotten
    weights = bound.refine(bench.problem, forgotten.state.weights, retain, terms.max_distance)
    return replace(forgotten, state=replace(forgotten.state, weights=weights))
