"""From forgotten weights to what may be published: the bound, the noise, the accuracy of y, the claim."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from service.crash import crash_point
from unlearning import convex
from unlearning.certificate import Basis, Claim, Reference
from unlearning.policy import Policy
from unlearning.problem import Problem
from unlearning.protocol import Examples, Forgotten, Json, Refused, State
from workers.bench import Bench
from workers.codec import admit
from workers.noise import perturbed

TIGHTEN = (4.0, 64.0, 1024.0)
"""the bound is aimed at the cap over these, one after the other"""

ASSUMPTIONS = {
    Basis.EXACT: (
        "Nothing outside the training recipe was fitted on the deleted people: features, scaling and "
        "hyperparameters belong to the reference as they are.",
    ),
    Basis.PROVED: (
        "The objective is the recipe's mean data loss plus (weight_decay/2) ||w||^2 over every coordinate; it is "
        "strongly convex, and the reference is its unique minimiser on the retained samples.",
        "weight_decay, architecture, features, scaling, feature selection and sigma belong to the reference: nothing "
        "of them was fitted on the deleted people.",
        "The noise is drawn from the operating system's entropy, fresh at every release, and not kept.",
    ),
}
SECRET_STATE = {
    "recollection": ("The recollections of the people who are left depend on those who were deleted.",),
    "mini": ("The weights of the training's last steps were trained on the people who were deleted.",),
    "newton": ("The weights before noise depend on the deleted people, within the bound.",),
    "retrain": (),
    "rewind": ("The checkpoint that every release starts from was trained on everyone, the deleted people included.",),
    "safe": (
        "The trained weights, the gradient sums and the class moments that every release starts from depend on the "
        "deleted people; in the mode keep their samples stay too.",
    ),
}


class CapNotReached(RuntimeError):
    """The proved bound stayed above the lineage's cap. A public bit: the release holds."""


@dataclass(frozen=True)
class Terms:
    """What a lineage fixed at registration, and where its budget stands."""

    method: str
    basis: Basis
    reference: Reference
    sigma: float
    delta_cap: float
    delta: float
    charge: int
    spent: int
    limit: int | None
    count: int
    """n, the samples of the manifest"""
    releases: int
    """how many releases forgot somebody so far"""


@dataclass(frozen=True)
class Size:
    """How much goes in this release."""

    samples: int = 0
    people: int = 0


@dataclass(frozen=True)
class Certified:
    """``state`` holds w~, secret; ``y`` (d,) in the model's dtype is what is published. ``charge`` in budget units."""

    state: State
    y: Tensor
    claim: Claim
    accuracy: float
    charge: int
    evidence: dict[str, Json]


def basis_of(policy: Policy, problem: Problem) -> Basis:
    """The strongest basis that this model and method have. Raises Refused where the policy requires a stronger one."""
    why = None if policy.method == "retrain" else _unproved(problem)
    basis = Basis.EXACT if policy.method == "retrain" else Basis.PROVED if why is None else Basis.NONE
    if basis.satisfies(policy.require):
        return basis
    what = f"The policy requires the basis {policy.require.value}; {policy.method} on this model has {basis.value}."
    if why is None:
        raise Refused(what, "Use retrain, or require less.")
    raise Refused(f"{what} {why.what}", why.hint)


def _unproved(problem: Problem) -> Refused | None:
    """Why nothing can be proved about this problem; None where it can."""
    try:
        convex.require_strongly_convex(problem)
    except Refused as why:
        return why
    if problem.training.converge is None:
        return Refused("The training does not end in the minimiser.", "Set Training.converge, for example to 1e-8.")
    return None


def certify(bench: Bench, terms: Terms, forgotten: Forgotten, retain: Examples | None, size: Size) -> Certified:
    """Bound, draw, measure and claim. The noise is drawn once, over the very bytes whose bound was computed.

    Raises CapNotReached, Malformed (weights that are not finite), Refused (fewer than two classes left).
    """
    state, evidence = forgotten.state, dict(forgotten.evidence)
    if terms.basis is Basis.PROVED:
        if retain is None:
            raise ValueError("the basis proved reads the retained samples; they were not loaded")
        weights, bound = within_cap(bench.problem.double(), state.weights, retain, terms)
        state, evidence = replace(state, weights=weights), evidence | {"bound": bound}
    crash_point("worker-after-compute")
    y = perturbed(state.weights, terms.sigma).to(bench.problem.dtype)
    crash_point("worker-after-noise")
    published = y.to(bench.problem.device)
    admit(bench.problem.tensors(published))
    charge = terms.charge if size.samples else 0
    inputs, targets = (part.to(bench.problem.device) for part in bench.recipe.holdout)
    return Certified(
        state=state,
        y=y,
        claim=_claim(terms, charge, size),
        accuracy=bench.problem.accuracy(published, inputs, targets),
        charge=charge,
        evidence=evidence,
    )


def within_cap(problem: Problem, weights: Tensor, retain: Examples, terms: Terms) -> tuple[Tensor, float]:
    """Float64 weights whose distance to the retained samples' minimiser is proved to be at most the cap.

    Raises CapNotReached.
    """
    denominator = terms.count if terms.reference is Reference.FIXED_DENOMINATOR else None
    w = weights.to(device=problem.device, dtype=torch.float64)
    for tighter in TIGHTEN:
        bound = convex.distance_bound(problem, w, retain, denominator)
        if bound <= terms.delta_cap:
            return w, bound
        try:
            w = convex.converge(
                problem, w, retain, problem.training.weight_decay * terms.delta_cap / tighter, denominator
            )
        except Refused:
            break
    bound = convex.distance_bound(problem, w, retain, denominator)
    if bound <= terms.delta_cap:
        return w, bound
    raise CapNotReached("the bound stayed above the cap")


def _claim(terms: Terms, charge: int, size: Size) -> Claim:
    forgot = 1 if size.samples else 0
    return Claim.of(
        method=terms.method,
        basis=terms.basis,
        reference=terms.reference,
        sigma=terms.sigma,
        delta_cap=terms.delta_cap,
        delta=terms.delta,
        releases=terms.releases + forgot,
        spent=terms.spent + charge,
        limit=terms.limit,
        samples=size.samples,
        people=size.people,
        assumptions=ASSUMPTIONS.get(terms.basis, ()),
        secret_state=SECRET_STATE.get(terms.method, ("The method's own state depends on the deleted people.",)),
    )
