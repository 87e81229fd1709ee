"""From forgotten weights to what may be published: the bound, the noise, the accuracy of y, the claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from service.infra.fault_injection import crash_point
from unlearning.accounting.certificate import Claim, Constant, Guarantee, Reference
from unlearning.bounds.calibration import Design
from unlearning.bounds.rewind import head_required
from unlearning.methods.rewind import Rewind
from unlearning.model import convex
from unlearning.model.closed_form import require_agreement_at
from unlearning.model.problem import Problem
from unlearning.types import Examples, Forgotten, Json, Refused, State
from workers.guarantee import statements as words
from workers.guarantee.choose import constrained_of, descent_of, residual_of
from workers.guarantee.noise import perturbed
from workers.runtime.model import Bench
from workers.storage.checkpoint_format import admit

TIGHTEN = (4.0, 64.0, 1024.0)
"""the bound is aimed at the cap over these, one after the other"""


class CapNotReached(RuntimeError):
    """The bound stayed above the generation's cap. A public bit: the release holds."""


class Oversize(CapNotReached):
    """More people would be forgotten than the calibration ever measured. Counts alone decide it."""


@dataclass(frozen=True)
class Terms:
    """What a generation fixed at registration, and where its budget stands."""

    method: str
    guarantee: Guarantee
    reference: Reference
    noise_std: float
    max_distance: float
    delta: float
    budget_cost: int
    spent: int
    limit: int | None
    count: int
    """n, the samples of the manifest"""
    updates: int
    """how many updates forgot somebody so far"""
    holders: int = 0
    """how many of them were forgotten so far"""
    constants: tuple[Constant, ...] = ()
    """of an estimated bound"""
    design: Design | None = None
    """of a calibrated one"""


@dataclass(frozen=True)
class Size:
    """How much goes in this release."""

    samples: int = 0
    people: int = 0
    holders: int = 0
    """whom the method forgets; a candidate's first version also lacks people whom it never trained on"""


@dataclass(frozen=True)
class Certified:
    """``state`` holds w~, secret; ``tensors`` hold y, what is published. ``charge`` in budget units."""

    state: State
    tensors: Mapping[str, Tensor]
    claim: Claim
    accuracy: float
    budget_cost: int
    evidence: dict[str, Json]


def certify(bench: Bench, terms: Terms, forgotten: Forgotten, retain: Examples | None, size: Size) -> Certified:
    """Bound, draw, measure and claim. The noise is drawn once, over the very bytes whose bound was computed.

    Raises CapNotReached, Malformed (weights that are not finite), Refused (fewer than two classes left, or a bound that
    says nothing).
    """
    weights, bound = bounded(bench, terms, forgotten, retain, size)
    state = replace(forgotten.state, weights=weights)
    evidence = dict(forgotten.evidence) | ({} if bound is None else {"bound": bound})
    crash_point("worker-after-compute")
    y = published_of(terms, state.weights, bench.problem.dtype)
    crash_point("worker-after-noise")
    published = y.to(bench.problem.device)
    tensors = bench.problem.views(published)
    admit(tensors)
    budget_cost = terms.budget_cost if size.samples else 0
    inputs, targets = (part.to(bench.problem.device) for part in bench.recipe.holdout)
    return Certified(
        state=state,
        tensors=tensors,
        claim=_claim(bench, terms, budget_cost, size),
        accuracy=bench.problem.accuracy(published, inputs, targets),
        budget_cost=budget_cost,
        evidence=evidence,
    )


def published_of(terms: Terms, weights: Tensor, dtype: torch.dtype) -> Tensor:
    """What is published of w~ (d,), on the CPU in ``dtype``: with noise, or as it is for an exact retraining."""
    if terms.guarantee is Guarantee.EXACT:
        return weights.detach().cpu().to(dtype)
    return perturbed(weights, terms.noise_std, dtype)


def bounded(
    bench: Bench, terms: Terms, forgotten: Forgotten, retain: Examples | None, size: Size
) -> tuple[Tensor, float | None]:
    """The weights that get noise, and the bound on their distance to retraining (None where nothing is computed).

    Raises CapNotReached, Refused.
    """
    state = forgotten.state
    if terms.design is not None:
        _require_measured(terms.design, terms.holders + size.holders)
    if terms.guarantee is Guarantee.PROVED and not isinstance(bench.method, Rewind):
        return within_cap(bench.problem.double(), state.weights, _read(retain), terms)
    if terms.guarantee not in (Guarantee.PROVED, Guarantee.ESTIMATED) or not size.holders:
        return state.weights, None
    if terms.guarantee is Guarantee.PROVED:
        _require_closed_form(bench.problem.double(), state.weights, _read(retain))
    bound = _distance(bench, terms, forgotten)
    if bound > terms.max_distance:
        raise CapNotReached("the bound stayed above the cap")
    return state.weights, bound


def _read(retain: Examples | None) -> Examples:
    if retain is None:
        raise ValueError("the guarantee proved reads the retained samples; they were not loaded")
    return retain


def _require_closed_form(problem: Problem, weights: Tensor, retain: Examples) -> None:
    """As ``convex.distance_bound`` does before its bound, for rewind's. Raises Refused."""
    require_agreement_at(head_required(problem), weights.to(problem.device, problem.dtype), retain)


def _distance(bench: Bench, terms: Terms, forgotten: Forgotten) -> float:
    constants = {each.name: each.value for each in terms.constants} if terms.guarantee is Guarantee.ESTIMATED else None
    if isinstance(bench.method, Rewind):
        return descent_of(bench.problem, bench.method, forgotten.state, constants).require_useful()
    return constrained_of(constants or {}, residual_of(forgotten.evidence)).require_useful()


def _require_measured(design: Design, holders: int) -> None:
    if holders > design.sizes[-1]:
        raise Oversize(f"{holders} people in all would be forgotten and the calibration ends at {design.sizes[-1]}")


def within_cap(problem: Problem, weights: Tensor, retain: Examples, terms: Terms) -> tuple[Tensor, float]:
    """Float64 weights whose distance to the retained samples' minimiser is proved to be at most the cap.

    Raises CapNotReached.
    """
    denominator = terms.count if terms.reference is Reference.FIXED_DENOMINATOR else None
    w = weights.to(device=problem.device, dtype=torch.float64)
    for tighter in TIGHTEN:
        bound = convex.distance_bound(problem, w, retain, denominator)
        if bound <= terms.max_distance:
            return w, bound
        try:
            w = convex.converge(
                problem, w, retain, problem.training.weight_decay * terms.max_distance / tighter, denominator
            )
        except Refused:
            break
    bound = convex.distance_bound(problem, w, retain, denominator)
    if bound <= terms.max_distance:
        return w, bound
    raise CapNotReached("the bound stayed above the cap")


def _claim(bench: Bench, terms: Terms, budget_cost: int, size: Size) -> Claim:
    forgot = 1 if size.samples else 0
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
        assumptions=words.assumptions(terms.guarantee, terms.method, terms.design),
        checked=words.checked(terms.guarantee, terms.method),
        declared=words.declared(terms.guarantee, any(part.public for part in bench.parts)),
        parts=bench.parts,
        constants=terms.constants,
        secret_state=words.secret_state(terms.guarantee, terms.method),
    )
