"""What preparation fixes for a lineage: basis, noise, cap, charge and limit, and what registration reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from service.infra.tables import Lineage
from unlearning.accounting.certificate import Basis, Reference
from unlearning.accounting.policy import Policy
from unlearning.types import State
from workers.guarantee.certify import Terms
from workers.guarantee.choose import BOUNDED
from workers.guarantee.dry_run import basis_to_json
from workers.runtime.jobs import Preparation
from workers.runtime.lease import fence
from workers.runtime.model import Bench
from workers.storage.private_state import Kept
from workers.storage.workshop import Workshop


def register(workshop: Workshop, job: Preparation, basis: Basis, made: State, count: int) -> Terms:
    """Fix the lineage's terms: basis, noise, cap, charge and limit. They never change again."""
    policy = job.policy
    budget = policy.budget(basis)
    with workshop.database.write() as session:
        fence(session, job.lease)
        lineage = session.get_one(Lineage, job.lineage_id)
        lineage.method, lineage.basis = policy.method, basis.value
        lineage.sigma, lineage.charge, lineage.budget = sigma_of(policy, basis), budget.charge, budget.limit
        claims = basis is not Basis.NONE
        lineage.delta_cap = policy.delta_cap if basis in BOUNDED else 0.0 if claims else None
        lineage.epsilon, lineage.delta = (policy.epsilon, policy.delta) if claims else (None, None)
        reference = reference_of(policy, made)
        lineage.manifest = (lineage.manifest or {}) | {"reference": reference.value, "vectors": _longest(made)}
    return terms_of(policy, basis, reference, count)


def _longest(made: State) -> int:
    """The most numbers that a holder's row has; 0 where the method keeps no rows."""
    if isinstance(made.vectors, Kept):
        return made.vectors.numbers
    return max((vector.numel() for vector in made.vectors.values()), default=0)


def freeze_basis(workshop: Workshop, job: Preparation, terms: Terms) -> None:
    """What every claim of the lineage rests on stands in its manifest: constants, and the calibration's design."""
    with workshop.database.write() as session:
        fence(session, job.lease)
        lineage = session.get_one(Lineage, job.lineage_id)
        lineage.manifest = (lineage.manifest or {}) | basis_to_json(terms)


def sigma_of(policy: Policy, basis: Basis) -> float:
    """The lineage's noise: none where every version is an exact retraining."""
    return 0.0 if basis is Basis.EXACT else policy.sigma


def terms_of(policy: Policy, basis: Basis, reference: Reference, count: int) -> Terms:
    budget = policy.budget(basis)
    return Terms(
        method=policy.method,
        basis=basis,
        reference=reference,
        sigma=sigma_of(policy, basis),
        delta_cap=policy.delta_cap,
        delta=policy.delta,
        charge=budget.charge,
        spent=0,
        limit=budget.limit,
        count=count,
        releases=0,
        standby=policy.standby,
    )


def reference_of(policy: Policy, made: State) -> Reference:
    """Which retraining the method approximates: what its report says, else what the policy asks."""
    report = made.facts.get("report")
    named = report.get("reference") if isinstance(report, dict) else None
    if isinstance(named, str):
        return Reference(named)
    return policy.reference or Reference.RENORMALISED


def report_of(made: State, bench: Bench, job: Preparation) -> dict[str, Any]:
    """What preparation measured, before any deletion."""
    measured = made.facts.get("report")
    report = dict(cast(Mapping[str, Any], measured)) if isinstance(measured, dict) else {}
    return report | {"dimension": bench.problem.dimension, "attempts": job.attempt}


def how_chosen(workshop: Workshop, job: Preparation) -> dict[str, Any]:
    """Where the fallback took the method's place: which, and why."""
    with workshop.database.read() as session:
        switched = (session.get_one(Lineage, job.lineage_id).manifest or {}).get("switched")
    return {} if switched is None else {"switched": switched}
