"""From forgotten weights to what may be published: the bound, the noise, the accuracy of y, the claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from expunge_service.queue import Blocked, ForgottenCount
from expunge_service.requests import Cause, Reason
from expunge_workers.guarantee import statements
from expunge_workers.guarantee.noise import perturbed
from expunge_workers.guarantee.terms import Terms
from expunge_workers.runtime.model import OpenModel
from expunge_workers.storage.checkpoint_format import Malformed, admit
from expunge_workers.storage.environment import Environment
from unlearning.accounting.certificate import Claim, Guarantee
from unlearning.artefact import bytes_of
from unlearning.methods import package_of
from unlearning.model.method import Method
from unlearning.types import Examples, Forgotten, Json, Need, Refused, State

BOUND = "bound"
"""the name in the evidence of an update"""


@dataclass(frozen=True)
class Certified:
    """``state`` holds w~, secret; ``published`` is y: tensors, or an artefact's bytes. ``charge`` in budget units."""

    state: State
    published: Mapping[str, Tensor] | bytes
    claim: Claim
    accuracy: float | None
    budget_cost: int
    evidence: dict[str, Json]
    environment: Mapping[str, Any]
    """of this process, as ``Environment.to_json`` gives it"""


def certify(bench: OpenModel, terms: Terms, forgotten: Forgotten, size: ForgottenCount) -> Certified | Blocked:
    """Compute the bound, draw the noise, measure y, and claim. Noise is drawn once, over the bytes that were bounded.

    The weights of ``forgotten`` are those that ``refine`` gave. Blocked, with facts that are public: the bound stayed
    above the greatest distance, more people would be forgotten than the calibration ever measured, or the weights are
    not finite.
    """
    state, bound = forgotten.state, bounded(bench.method, terms, forgotten, size)
    if isinstance(bound, Blocked):
        return bound
    evidence = dict(forgotten.evidence) | ({} if bound is None else {BOUND: bound})
    y = published_of(terms, state.weights, bench.problem.dtype, trained=bench.problem.trained)
    published = y.to(bench.problem.device)
    tensors = bench.problem.views(published)
    artefact = bench.problem.artefact
    whole = tensors if bench.world_model is None else bench.world_model.published(tensors)
    try:
        admit(tensors)
    except Malformed:
        return Blocked(Reason.NEEDS_RETRAIN, {"cause": Cause.WEIGHTS_NOT_FINITE})
    budget_cost = terms.budget_cost if size.samples else 0
    return Certified(
        state=state,
        published=whole if artefact is None else bytes_of(published),
        claim=_claim(bench, terms, budget_cost, size),
        accuracy=bench.accuracies([published])[0],
        budget_cost=budget_cost,
        evidence=evidence,
        environment=Environment.of(bench.problem.device).to_json(),
    )


def require_certified(found: Certified | Blocked) -> Certified:
    """Return what was certified, where no repair can be waited for. Raises Refused."""
    if isinstance(found, Certified):
        return found
    match found.facts["cause"]:
        case Cause.WEIGHTS_NOT_FINITE:
            raise Refused("The weights cannot be published: they are not finite.", "Lower the learning rate.")
        case Cause.BEYOND_CALIBRATION:
            people = found.facts["people"]
            raise Refused(f"More people would be forgotten than the calibration covers ({people}).", "Measure more.")
        case _:
            what = "The cap cannot be reached: the bound stayed above it."
            raise Refused(what, "Raise max_distance and noise_std together, or weight_decay.")


def published_of(terms: Terms, weights: Tensor, dtype: torch.dtype, *, trained: int | None = None) -> Tensor:
    """Return what is published of w~ (d,), on the CPU in ``dtype``: with noise, or as it is for an exact retraining.

    ``trained``: how many of the d numbers are trained parameters (None: all). The buffers behind them get no noise.
    A claim covers the whole file, so that a training with buffers has none (``terms.guarantee_of``).
    """
    if terms.guarantee is Guarantee.EXACT:
        return weights.detach().cpu().to(dtype)
    # A running variance with noise may be negative, and the model's answers then are no numbers.
    return perturbed(weights, terms.noise_std, dtype, trained=trained)


def bounded(method: Method, terms: Terms, forgotten: Forgotten, size: ForgottenCount) -> float | Blocked | None:
    """Return the bound on the distance of the weights to retraining; None where none is computed."""
    if terms.design is not None and terms.unlearned + size.unlearned > terms.design.sizes[-1]:
        facts = {"cause": Cause.BEYOND_CALIBRATION, "people": terms.design.sizes[-1]}
        return Blocked(Reason.NEEDS_RETRAIN, facts)
    if terms.bound(method) is None:
        return None
    distance = cast("float", forgotten.evidence[BOUND])  # the judge that moved the weights said it
    if distance > terms.max_distance:
        return Blocked(Reason.NEEDS_RETRAIN, {"cause": Cause.CAP_NOT_REACHED})
    return distance


def _claim(bench: OpenModel, terms: Terms, budget_cost: int, size: ForgottenCount) -> Claim:
    artefact = bench.problem.artefact
    forgot, bound = 1 if size.samples else 0, terms.bound(bench.method)
    world = None if bench.built is None else bench.built.record(terms.repeats)
    world = world if bench.world_model is None else bench.world_model.record()
    return Claim.of(
        method=terms.method,
        guarantee=terms.guarantee,
        reference=terms.reference,
        noise_std=terms.noise_std,
        max_distance=terms.max_distance,
        delta=terms.delta,
        updates=terms.updates + forgot,
        spent=terms.spent + budget_cost,
        limit=terms.limit,
        samples=size.samples,
        people=size.people,
        assumptions=(
            *statements.assumptions(terms.guarantee, bench.method, bound, terms.design),
            *statements.of_calibration(
                terms.guarantee, judged=bench.world_model is None or bench.world_model.has_judge
            ),
            *statements.chosen(terms.guarantee, terms.chosen),
            *statements.foreign(package_of(terms.method)),
            *statements.of_files(artefact),
        ),
        checked=(
            *statements.checked(terms.guarantee, bound, world),
            *statements.moved(terms.guarantee, terms.moved),
        ),
        tried=statements.of_world(terms.guarantee, world)[1],
        deterministic=terms.deterministic,
        declared=statements.of_world(terms.guarantee, world)[2],
        world=world,
        constants=terms.constants,
        secret_state=statements.secret_state(
            terms.guarantee, bench.method, buffers=bench.problem.trained < bench.problem.dimension
        ),
    )


def needs_retained(method: Method, guarantee: Guarantee) -> bool:
    """Tell whether an update reads the retained samples. ``proved`` does, with every method."""
    return Need.RETAINED in method.needs or guarantee is Guarantee.PROVED


def refine(bench: OpenModel, terms: Terms, forgotten: Forgotten, retain: Examples) -> Forgotten:
    """Return the update with the weights that get noise; float64 where the guarantee is computed at the weights.

    Only bounds that can be worked on move them: under ``proved``, Newton's method on ``retain``.
    """
    if bench.world_model is None or terms.bound(bench.method) is None:
        return forgotten
    weights, distance = bench.world_model.refined(
        forgotten,
        retain,
        terms.guarantee,
        denominator=terms.denominator,
        max_distance=terms.max_distance,
        constants=terms.values,
    )
    evidence = {**forgotten.evidence, BOUND: distance}
    return replace(forgotten, state=replace(forgotten.state, weights=weights), evidence=evidence)
