"""What preparation fixes for a generation: guarantee, noise, cap, charge and limit, and what registration reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from expunge.service.infra.db import Database
from expunge.service.infra.tables import Generation
from expunge.service.queue import Preparation, fence
from expunge.workers.guarantee.certify import Terms
from expunge.workers.guarantee.choose import BOUNDED
from expunge.workers.guarantee.dry_run import guarantee_to_json
from expunge.workers.runtime.model import OpenModel
from unlearning.accounting.certificate import Guarantee, Reference
from unlearning.accounting.policy import Policy
from unlearning.types import State


def register(
    database: Database, job: Preparation, guarantee: Guarantee, made: State, count: int, *, longest: int
) -> Terms:
    """Fix the generation's terms: guarantee, noise, cap, charge and limit. They never change again."""
    policy = job.policy
    budget = policy.budget(guarantee)
    with database.write() as session:
        fence(session, job.lease)
        generation = session.get_one(Generation, job.generation_id)
        generation.method, generation.guarantee = policy.method, guarantee.value
        generation.noise_std, generation.budget_cost, generation.budget = (
            sigma_of(policy, guarantee),
            budget.budget_cost,
            budget.limit,
        )
        claims = guarantee is not Guarantee.NONE
        generation.max_distance = policy.max_distance if guarantee in BOUNDED else 0.0 if claims else None
        generation.epsilon, generation.delta = (policy.epsilon, policy.delta) if claims else (None, None)
        reference = reference_of(policy, made)
        generation.manifest = (generation.manifest or {}) | {"reference": reference.value, "vectors": longest}
        chosen = "chosen" in generation.manifest
    return replace(terms_of(policy, guarantee, reference, count), chosen=chosen)


def longest_of(made: State) -> int:
    """Return the most numbers that a person's row has; 0 where the method keeps no rows."""
    return max((vector.numel() for vector in made.vectors.values()), default=0)


def freeze_guarantee(database: Database, job: Preparation, terms: Terms) -> None:
    """Write what every claim depends on into the manifest: constants, and the calibration's design."""
    with database.write() as session:
        fence(session, job.lease)
        generation = session.get_one(Generation, job.generation_id)
        generation.manifest = (generation.manifest or {}) | guarantee_to_json(terms)


def sigma_of(policy: Policy, guarantee: Guarantee) -> float:
    """Return the generation's noise: none where every version is an exact retraining."""
    return 0.0 if guarantee is Guarantee.EXACT else policy.noise_std


def terms_of(policy: Policy, guarantee: Guarantee, reference: Reference, count: int) -> Terms:
    budget = policy.budget(guarantee)
    return Terms(
        method=policy.method,
        guarantee=guarantee,
        reference=reference,
        noise_std=sigma_of(policy, guarantee),
        max_distance=policy.max_distance,
        delta=policy.delta,
        budget_cost=budget.budget_cost,
        spent=0,
        limit=budget.limit,
        count=count,
        updates=0,
    )


def reference_of(policy: Policy, made: State) -> Reference:
    """Return which retraining the method approximates: what its report says, else what the policy asks."""
    report = made.facts.get("report")
    named = report.get("reference") if isinstance(report, dict) else None
    if isinstance(named, str):
        return Reference(named)
    return policy.reference or Reference.RENORMALISED


def report_of(made: State, bench: OpenModel, job: Preparation) -> dict[str, Any]:
    """Return what preparation measured, before any deletion."""
    measured = made.facts.get("report")
    report = dict(cast(Mapping[str, Any], measured)) if isinstance(measured, dict) else {}
    return report | {"dimension": bench.problem.dimension, "attempts": job.attempt}


def how_chosen(database: Database, job: Preparation) -> dict[str, Any]:
    """Return which method the rule chose, and which one the fallback replaced, each with why; empty for neither."""
    with database.read() as session:
        frozen = session.get_one(Generation, job.generation_id).manifest or {}
    return {name: frozen[name] for name in ("chosen", "switched") if name in frozen}
